"""The MCP server of CFS: sessions and workspace files for programs that speak the Model Context Protocol.

`cfs mcp` runs it. It is a client of a CFS server, so the tokens and grants of that server decide what a caller sees.
"""
