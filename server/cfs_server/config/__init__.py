"""The settings of a server, and the file of its models."""
