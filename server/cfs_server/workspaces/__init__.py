"""Workspaces of principals, and the files in them."""
