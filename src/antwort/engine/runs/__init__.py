"""Runs in progress: their event logs and subscriptions, idempotency keys, background workers and recovery."""
