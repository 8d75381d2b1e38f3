"""Sessions and their state (S). No HTTP in here."""
