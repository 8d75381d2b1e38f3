"""Completions in the OpenAI protocol: requests, execution and responses. No HTTP in here (H4)."""
