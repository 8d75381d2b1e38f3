"""The author of requests: an agent, and the tool call that it makes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import quote

from cfs.api._calls import AGENT, TOOL_CALL

_author: ContextVar[Mapping[str, str]] = ContextVar("author", default={})  # noqa: B039 - it is never changed


@contextmanager
def acting_as(agent: str | None = None, call: str | None = None) -> Iterator[None]:
    """Let the requests of this block, and of tasks that it starts, name an agent and a tool call as their author.

    None leaves what the block around it says, and an empty text names none.
    """
    ids = {AGENT: agent, TOOL_CALL: call}
    names = {**_author.get(), **{key: quote(name) for key, name in ids.items() if name is not None}}
    before = _author.set({key: name for key, name in names.items() if name})
    try:
        yield
    finally:
        _author.reset(before)


def author() -> Mapping[str, str]:
    """Return the headers that name the author of a request."""
    return _author.get()
