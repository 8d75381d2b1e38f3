"""The command line of CFS."""

from cfs.cli.app import main

__all__ = ["main"]
