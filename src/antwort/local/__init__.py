"""The model that antwort runs by itself: llama.cpp in a process of its own, and the demo model."""
