"""What a tool is: a function with a description, and what it reads and writes (A3, O4)."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cfs_agents.tools.arguments import ToolArguments, arguments_of
from cfs_agents.tools.consent import CommandRequest
from cfs_agents.tools.errors import ToolDefinitionError


@dataclass(frozen=True, slots=True)
class FileAccess:
    """The files that a call reads or writes: a logical path and everything below it."""

    path: str
    writes: bool

    def conflicts_with(self, other: "FileAccess") -> bool:
        """Whether two calls must run in order: one writes what the other one reads or writes."""
        return (self.writes or other.writes) and (_is_below(self.path, other.path) or _is_below(other.path, self.path))


def _is_below(path: str, above: str) -> bool:
    return path == above or path.startswith(above if above.endswith("/") else f"{above}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call. `@tool` makes one; it can still be called like the function.

    - `ephemeral` is how many of its newest results stay in a context (O4); None keeps all.
    - `timeout` is in seconds (default: the registry's).
    - `most_characters` is the maximum length of a result. The middle of a longer one is left out. None is no limit.
    - `paging` names parameters that continue a cut result. A brief schema leaves them out; calls may have them anyway.
    - `contexts` says, by parameter, how many tokens the context of a model must have at least to see it.
    - `touches` returns the files that a call with these arguments reads or writes. Calls of one reply that do not
      conflict run in parallel. If it is None or returns None, a call runs alone.
    - `in_brief` says whether a model with a small context gets the tool, and `min_context` how many tokens the context
      of a model must have at least to get it; one that does not say it has none.
    - `command_of` returns the command that a call with these arguments runs. None for a tool that runs no command.
    - `remote_of` returns the MCP server, its tool and the arguments that a call with these arguments reaches. None for
      a tool of this program.
    - `described_arguments` are those of a tool that is described elsewhere; the default reads the signature.

    It is also a `cfs.session.tools.Tool`, for `Session.send(tools=[...])`.
    """

    name: str
    description: str
    callable: Callable[..., Any]
    ephemeral: int | None = None
    timeout: float | None = None
    most_characters: int | None = None
    paging: Collection[str] = ()
    contexts: Mapping[str, int] = field(default_factory=dict)
    touches: Callable[[Mapping[str, Any]], FileAccess | None] | None = None
    command_of: Callable[..., Awaitable[CommandRequest]] | None = None
    in_brief: bool = True
    min_context: int = 0
    remote_of: Callable[..., tuple[str, str, Mapping[str, Any]]] | None = None
    described_arguments: ToolArguments | None = field(default=None, repr=False, compare=False)
    arguments: ToolArguments = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the settings and read the signature."""
        if not self.name.replace("-", "_").isidentifier() or len(self.name) > 64 or not self.name.isascii():
            raise ToolDefinitionError(f"{self.name!r} cannot name a tool: use ASCII letters, digits and '_'")
        if self.ephemeral is not None and self.ephemeral < 1:
            raise ToolDefinitionError(f"{self.name}: ephemeral is how many results stay, at least 1")
        arguments = self.described_arguments or arguments_of(self.name, self.callable)
        object.__setattr__(self, "arguments", arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function without checking the arguments."""
        return self.callable(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function, which can be cancelled. Other functions run in a thread, which cannot."""
        return inspect.iscoroutinefunction(self.callable)

    def schema(self, *, brief: bool = False, window: int | None = None) -> dict[str, Any]:
        """Return the tool's description in the format of OpenAI's API; a `brief` one leaves out `paging`.

        `window` is the model's context in tokens; parameters that need more are left out.
        """
        parameters = self.arguments.schema
        hidden = {name for name, context in self.contexts.items() if context > (window or 0)}
        if brief:
            hidden.update(self.paging)
        if hidden:
            properties = {name: value for name, value in parameters["properties"].items() if name not in hidden}
            parameters = parameters | {"properties": properties}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def tool(
    description: str | None = None,
    *,
    name: str | None = None,
    ephemeral: int | None = None,
    timeout: float | None = None,
    most_characters: int | None = None,
    paging: Collection[str] = (),
    contexts: Mapping[str, int] | None = None,
    touches: Callable[[Mapping[str, Any]], FileAccess | None] | None = None,
    command_of: Callable[..., Awaitable[CommandRequest]] | None = None,
    remote_of: Callable[..., tuple[str, str, Mapping[str, Any]]] | None = None,
    in_brief: bool = True,
    min_context: int = 0,
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a sync or async function: `@tool("what it does", ephemeral=3)`.

    The default name is the function's, the default description its docstring. Pydantic checks the types of the
    signature. Describe a parameter by `Annotated[type, "text"]` or a pydantic `Field`. The other arguments are those
    of `Tool`. Raises `ToolDefinitionError` for a function that cannot be described.
    """

    def made(function: Callable[..., Any]) -> Tool:
        called = name or str(getattr(function, "__name__", ""))
        about = description or inspect.getdoc(function)
        if not about:
            raise ToolDefinitionError(f"{called}: a tool needs a description")
        return Tool(
            name=called,
            description=about,
            callable=function,
            ephemeral=ephemeral,
            timeout=timeout,
            most_characters=most_characters,
            paging=paging,
            contexts=contexts or {},
            touches=touches,
            command_of=command_of,
            remote_of=remote_of,
            in_brief=in_brief,
            min_context=min_context,
        )

    return made
