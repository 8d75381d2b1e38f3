"""What can go wrong with tools.

ToolError              a tool says why it cannot do what it was asked; the model reads it
ToolDefinitionError    a function cannot be a tool, or two tools have one name; the programmer reads it
ShellError             a shell cannot do its work
├── ShellUnavailable   it cannot be started here
└── ShellClosed        it has been closed
"""


class ToolError(Exception):
    """A reason, in a sentence, for a model that can act on it: raise it in a tool to say why it did nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ToolDefinitionError(TypeError):
    """A function that cannot be described as a tool, or a name that is taken or unknown."""


class ShellError(Exception):
    """Anything that keeps a shell from its work."""


class ShellUnavailable(ShellError):
    """No shell can be started here: bash or bubblewrap is missing, or does not start."""


class ShellClosed(ShellError):
    """The shell was closed and runs nothing any more."""
