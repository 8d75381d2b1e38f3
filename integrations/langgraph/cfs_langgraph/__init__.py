"""Keeps the checkpoints and the store of LangGraph in CFS."""
