"""Finds models that a server can use, tries them, and writes them to its file of models."""
