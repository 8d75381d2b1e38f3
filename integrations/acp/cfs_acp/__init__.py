"""Serves editors by the Agent Client Protocol: `cfs acp`. The conversations are sessions of a CFS server."""
