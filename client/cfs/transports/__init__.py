"""Transports to a session: over HTTP, or through files of a mount."""
