"""Sessions and workspaces by WebDAV (part W)."""
