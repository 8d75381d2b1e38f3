"""`python -m cfs` is the program `cfs`."""

from cfs.cli import main

main()
