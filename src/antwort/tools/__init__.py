"""Who can run a call, and running it."""
