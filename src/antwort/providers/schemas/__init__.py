"""JSON schemas of others, made fit for constrained decoding. All pure."""
