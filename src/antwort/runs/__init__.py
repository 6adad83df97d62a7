"""Runs that outlive a process: who makes them, and what was said so far."""
