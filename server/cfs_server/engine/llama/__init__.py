"""The embedded engine: llama.cpp in a separate process (E1)."""
