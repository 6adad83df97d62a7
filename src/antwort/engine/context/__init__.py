"""What fits into the model's context: truncation, token counts, compaction."""
