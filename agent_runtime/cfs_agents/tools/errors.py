"""Errors of tools: reasons for the model, and definitions that are wrong.

ToolError               a tool cannot do what the model asked for; the model reads the reason
ToolDefinitionError     a function cannot be a tool, or a name is already used; the programmer reads it
"""


class ToolError(Exception):
    """Raise it in a tool that cannot do its work. The model reads `reason`: write a sentence that it can act on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ToolDefinitionError(TypeError):
    """A function cannot be described as a tool, or a tool's name is already used or unknown."""
