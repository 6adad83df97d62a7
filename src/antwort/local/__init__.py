"""Run a model on this machine: llama.cpp in a subprocess, and the demo model."""
