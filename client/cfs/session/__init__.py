"""Sessions as Python objects."""
