"""Looking at a backend: what works, what does not, and what to do about it."""
