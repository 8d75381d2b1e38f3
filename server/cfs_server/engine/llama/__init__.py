"""The embedded engine: llama.cpp in a process of its own (E1)."""
