"""MCP servers: sessions with them, what they offer, and running their tools."""
