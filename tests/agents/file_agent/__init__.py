"""Tests of the file agent: its directory, its tasks, and what is left of them after a kill."""
