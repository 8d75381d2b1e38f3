"""Runs `cfs` as `python -m cfs`."""

from cfs.cli import main

main()
