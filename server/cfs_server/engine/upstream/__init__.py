"""Engines on other servers: clients of the protocols of OpenAI and Anthropic."""
