"""Keeping responses."""
