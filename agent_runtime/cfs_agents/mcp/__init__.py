"""Tools of MCP servers: the configuration that other programs use too, connections, and tools made of them."""
