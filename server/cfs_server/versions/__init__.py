"""Versions of files where several servers share them: a store in PostgreSQL, and which folder it is about."""
