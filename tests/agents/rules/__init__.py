"""Tests of the rules about what agents may do."""
