"""Trees of agents as Python objects."""
