"""The program `cfs`."""

from cfs.cli.program import main

__all__ = ["main"]
