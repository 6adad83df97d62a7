"""What an operator sees of a running server: logs and metrics."""
