"""Serves sessions and workspaces over WebDAV (part W)."""

ROOT = "/dav"

__all__ = ["ROOT"]
