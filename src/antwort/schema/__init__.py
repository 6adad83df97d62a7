"""JSON Schema: normalize for backends, convert for constrained decoders, validate arguments, resolve references."""
