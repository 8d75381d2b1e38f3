"""Completions for all protocols: what is asked for, and how it runs. No HTTP in here (H4)."""
