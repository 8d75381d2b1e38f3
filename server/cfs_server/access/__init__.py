"""Tokens and the principals that they authenticate."""
