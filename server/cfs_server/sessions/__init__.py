"""Sessions: the one truth (S). No HTTP in here."""
