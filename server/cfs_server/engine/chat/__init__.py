"""How messages become prompts."""
