"""The engine's workloads, the sides that run them, and how figures are reported."""
