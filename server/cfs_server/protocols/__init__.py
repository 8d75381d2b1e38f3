"""Translators of protocols: requests to completions, and engine output to responses. No HTTP in here (H4)."""
