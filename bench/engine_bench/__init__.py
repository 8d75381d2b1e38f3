"""The engine's workloads, the sides that run them, and how the figures are told; `bench/engine.py` starts them."""
