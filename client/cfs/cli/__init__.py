"""The command line of CFS."""

import sys

from cfs.cli.base import imports

__all__ = ["main"]


def main() -> None:
    """Run `cfs`. An interrupt is one line at any moment, also while the program is being imported."""
    imports.begin()
    try:
        from cfs.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("cfs: interrupted\n")
        sys.exit(130)
