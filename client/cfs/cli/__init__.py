"""The program `cfs`."""

from cfs.cli.app import main

__all__ = ["main"]
