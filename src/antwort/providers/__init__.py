"""One inference at a backend, as deltas."""
