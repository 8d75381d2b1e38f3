"""Tools: functions that a model may call, with what it is told of them (A3, O4)."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cfs_agents.tools.arguments import Arguments, arguments_of
from cfs_agents.tools.errors import ToolDefinitionError


@dataclass(frozen=True, slots=True)
class Touch:
    """What a call has to do with files: it reads or writes what is at a logical path, and below it."""

    path: str
    writes: bool

    def hinders(self, other: "Touch") -> bool:
        """Whether two calls must keep their order: one writes where the other one reads or writes."""
        return (self.writes or other.writes) and (_is_below(self.path, other.path) or _is_below(other.path, self.path))


def _is_below(path: str, above: str) -> bool:
    return path == above or path.startswith(above if above.endswith("/") else f"{above}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call. `@tool` makes one; it can still be called as the function that it was.

    With `ephemeral` only the newest so many of its results stay in a context (O4). `timeout` is in seconds (without:
    the registry's). A result longer than `most_characters` is cut in its middle; without, nothing is ever cut.
    `touches` says of arguments what a call with them touches, so that calls of one reply can run side by side; without
    it, or where it returns None, a call runs alone.
    It is also a `cfs.tools.Tool`, for `Session.send(tools=[...])`.
    """

    name: str
    description: str
    callable: Callable[..., Any]
    ephemeral: int | None = None
    timeout: float | None = None
    most_characters: int | None = None
    touches: Callable[[Mapping[str, Any]], Touch | None] | None = None
    arguments: Arguments = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read the signature."""
        if not self.name.replace("-", "_").isidentifier() or len(self.name) > 64 or not self.name.isascii():
            raise ToolDefinitionError(f"{self.name!r} cannot name a tool: use ASCII letters, digits and '_'")
        if self.ephemeral is not None and self.ephemeral < 1:
            raise ToolDefinitionError(f"{self.name}: ephemeral is how many results stay, at least 1")
        object.__setattr__(self, "arguments", arguments_of(self.name, self.callable))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, unchecked."""
        return self.callable(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether it is awaited, and can be cancelled; other functions run in a thread, which cannot."""
        return inspect.iscoroutinefunction(self.callable)

    def schema(self) -> dict[str, Any]:
        """Describe the tool as OpenAI's interface wants it."""
        function = {"name": self.name, "description": self.description, "parameters": self.arguments.schema}
        return {"type": "function", "function": function}


def tool(
    description: str | None = None,
    *,
    name: str | None = None,
    ephemeral: int | None = None,
    timeout: float | None = None,
    most_characters: int | None = None,
    touches: Callable[[Mapping[str, Any]], Touch | None] | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, sync or async: `@tool("what it does", ephemeral=3)`.

    Its name is the function's, its description the docstring unless given. Types are those of the signature, checked
    by pydantic; a parameter is described by `Annotated[type, "text"]` or by a pydantic `Field`.
    Raises `ToolDefinitionError` for a function that cannot be described.
    """

    def made(function: Callable[..., Any]) -> Tool:
        called = name or str(getattr(function, "__name__", ""))
        told = description or inspect.getdoc(function)
        if not told:
            raise ToolDefinitionError(f"{called}: a tool needs a description")
        return Tool(
            name=called,
            description=told,
            callable=function,
            ephemeral=ephemeral,
            timeout=timeout,
            most_characters=most_characters,
            touches=touches,
        )

    return made
