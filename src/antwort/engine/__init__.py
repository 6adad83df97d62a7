"""The agentic loop: a request goes in, a stream of events comes out, and the response is the sum of its events."""
