"""Guards: checks by the system that protect agents from each other's errors and their own (B7)."""
