"""Tests of the guards, each by itself."""
