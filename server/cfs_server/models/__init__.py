"""The embedded model (E5), shipped as package data."""
