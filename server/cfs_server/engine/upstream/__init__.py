"""Engines that run elsewhere: servers that speak the protocol of OpenAI or of Anthropic."""
