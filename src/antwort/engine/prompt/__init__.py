"""What the model is sent: messages and tools."""
