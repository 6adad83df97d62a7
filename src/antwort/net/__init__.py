"""HTTP as a client: connections, exchanges and streams of events, for whoever asks others."""
