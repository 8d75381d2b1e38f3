"""Completions in the protocol of the OpenAI API: what is asked for, made and written. No HTTP in here (H4)."""
