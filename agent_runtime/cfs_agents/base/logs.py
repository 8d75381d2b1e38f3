"""Where the agents of a program log to: what structlog is configured for, and standard error if it is not.

The default of structlog is standard output, which belongs to the program.
"""

import sys
from typing import Any

import structlog


class _Output:
    """Chooses the output at each record, as a program may configure structlog after it has imported this package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if structlog.is_configured():
            logger = structlog.get_config()["logger_factory"](self._name)
        else:
            logger = structlog.PrintLogger(sys.stderr)
        return getattr(logger, method)


def get_logger(name: str) -> Any:
    """Return the logger of a module."""
    return structlog.wrap_logger(_Output(name))
