"""Tool calls for models that have none of their own."""
