"""Tests of `deploy/`: what operators copy works with the real programs."""
