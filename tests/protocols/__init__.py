"""Protocols of other programs, by their own unmodified clients."""
