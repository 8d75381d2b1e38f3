"""Sessions and workspaces by WebDAV (part W)."""

ROOT = "/dav"

__all__ = ["ROOT"]
