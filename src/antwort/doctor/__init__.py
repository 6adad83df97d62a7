"""Examine a backend: what it can do, what antwort does about the rest, and what to configure."""
