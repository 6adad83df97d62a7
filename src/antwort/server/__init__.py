"""HTTP and SSE."""
