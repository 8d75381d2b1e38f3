"""Engines in the process of the server: the supervisor of the worker, several models, and their files."""
