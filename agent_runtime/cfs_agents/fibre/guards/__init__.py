"""Guards: the system, and not the prompt, keeps agents safe from each other and from themselves (B7)."""
