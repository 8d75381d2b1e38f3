"""The models of a server: found, configured, tried, and opened as engines."""
