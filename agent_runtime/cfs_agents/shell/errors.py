"""Errors of shells.

ShellError              a shell cannot run commands
├── ShellUnavailable    the shell cannot start
└── ShellClosed         the shell is closed
"""


class ShellError(Exception):
    """Base class of the errors of a shell."""


class ShellUnavailable(ShellError):
    """The shell cannot start: bash or bubblewrap is missing or fails."""


class ShellClosed(ShellError):
    """The shell is closed and runs no more commands."""
