"""The interface of transports, and the choice of an endpoint (C1)."""

import os
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from typing import Literal, Protocol

from cfs.contract.errors import InvalidRequest, Unreachable
from cfs.contract.wire import (
    MergedFiles,
    Message,
    NewMessage,
    Question,
    RedoRequest,
    RewindRequest,
    Rewound,
    SessionVersion,
    Settings,
    SettingsPatch,
)
from cfs.state.replies import MessageOutcome
from cfs.transports.deadlines import Deadline

URL_VARIABLE = "CFS_URL"
TOKEN_VARIABLE = "CFS_TOKEN"  # noqa: S105 - the name of a variable


class _Default(str):
    """A default that differs in identity from the same text given by a caller."""

    __slots__ = ()


DEFAULT_MOUNT = _Default("/cfs")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a session is reached: the URL of a server, or the directory of a mount."""

    kind: Literal["http", "file"]
    location: str


def resolve(url: str | None, mount: str | os.PathLike[str]) -> Endpoint:
    """Return the given endpoint, or that of `CFS_URL`, or the mount if it exists (C1).

    Raises `InvalidRequest` when both a URL and a mount are given, `Unreachable` when there is neither.
    """
    mount_given = not isinstance(mount, _Default)
    if url is not None and mount_given:
        raise InvalidRequest("give a URL or a mount, not both: they are two ways to the same sessions")
    if url is None and not mount_given:
        url = os.environ.get(URL_VARIABLE) or None
    if url is not None:
        return Endpoint("http", url)
    directory = os.fspath(mount)
    if os.path.isdir(directory):  # noqa: PTH112 - pathlib raises where a mount has died
        return Endpoint("file", directory)
    raise Unreachable(
        f"{directory} is no directory: mount the sessions there (`cfs mount {directory}`), or name a server by url=..."
        f" or {URL_VARIABLE}, such as http://127.0.0.1:8000"
    )


class Transport(Protocol):
    """One session at one endpoint. Raises the errors of `cfs.errors`; `Unsupported` for missing features."""

    takes_tools: bool
    """Whether a message carries tools, and a reply its calls; else both are part of the texts."""

    def open(self) -> None:
        """Make the session if there is none."""
        ...

    def require(self) -> None:
        """Raise `NotFound` if there is none."""
        ...

    def reopen(self) -> None:
        """Take whatever has the name by now for the session; make it if there is none."""
        ...

    def close(self) -> None:
        """Let go of connections; the session stays."""
        ...

    def send(self, message: NewMessage, deadline: Deadline, key: str | None) -> MessageOutcome:
        """Write a message and wait for what comes of it. `key` is the caller's idempotency key."""
        ...

    def stream(self, message: NewMessage, deadline: Deadline, key: str | None) -> Generator[str | MessageOutcome]:
        """Write a message and yield its reply as it is generated, then what came of it.

        Raises `EngineError` when the turn fails.
        """
        ...

    def read(self, deadline: Deadline) -> str:
        """Return the transcript once it is settled."""
        ...

    def read_now(self) -> str:
        """Return the transcript, or raise `Busy` while it is not settled."""
        ...

    def settings(self) -> Settings:
        """Read the settings."""
        ...

    def configure(self, patch: SettingsPatch) -> Settings:
        """Change settings and return all of them."""
        ...

    def delete(self) -> None:
        """Delete the session."""
        ...

    def fork(
        self, copy: str | None, messages: int | None, deadline: Deadline, key: str | None, *, files: bool = True
    ) -> str:
        """Copy the first `messages`, or all; return the copy's id."""
        ...

    def versions(self, before: int | None, limit: int) -> tuple[SessionVersion, ...]:
        """Return its newest versions, or those before one, oldest first."""
        ...

    def read_at(self, at: int | str) -> tuple[Message, ...]:
        """Return the messages of a version or of a time."""
        ...

    def rewind(self, how: RewindRequest) -> Rewound:
        """Take it back to a version or a time, or only plan it."""
        ...

    def redo(self, how: RedoRequest) -> Rewound:
        """Undo its last rewind, or only plan it."""
        ...

    def merge(self, source: str, *, dry_run: bool) -> MergedFiles:
        """Merge the files of another session into its own, or only plan it."""
        ...

    def cancel(self, *, queued: bool, cascade: bool) -> None:
        """Cancel the running turn, and what else is asked."""
        ...

    def questions(self) -> tuple[Question, ...]:
        """Return the open questions of its agent."""
        ...

    def answer(self, question: str, answer: str) -> None:
        """Answer a question of its agent."""
        ...

    def wait(self, deadline: Deadline) -> None:
        """Return once it is settled."""
        ...


class AsyncTransport(Protocol):
    """The same for `AsyncSession`."""

    takes_tools: bool
    """Whether a message carries tools, and a reply its calls; else both are part of the texts."""

    async def open(self) -> None:
        """Make the session if there is none."""
        ...

    async def require(self) -> None:
        """Raise `NotFound` if there is none."""
        ...

    async def reopen(self) -> None:
        """Take whatever has the name by now for the session; make it if there is none."""
        ...

    async def close(self) -> None:
        """Let go of connections; the session stays."""
        ...

    async def send(self, message: NewMessage, deadline: Deadline, key: str | None) -> MessageOutcome:
        """Write a message and wait for what comes of it. `key` is the caller's idempotency key."""
        ...

    def stream(self, message: NewMessage, deadline: Deadline, key: str | None) -> AsyncGenerator[str | MessageOutcome]:
        """Write a message and yield its reply as it is generated, then what came of it.

        Raises `EngineError` when the turn fails.
        """
        ...

    async def read(self, deadline: Deadline) -> str:
        """Return the transcript once it is settled."""
        ...

    async def read_now(self) -> str:
        """Return the transcript, or raise `Busy` while it is not settled."""
        ...

    async def settings(self) -> Settings:
        """Read the settings."""
        ...

    async def configure(self, patch: SettingsPatch) -> Settings:
        """Change settings and return all of them."""
        ...

    async def delete(self) -> None:
        """Delete the session."""
        ...

    async def fork(
        self, copy: str | None, messages: int | None, deadline: Deadline, key: str | None, *, files: bool = True
    ) -> str:
        """Copy the first `messages`, or all; return the copy's id."""
        ...

    async def versions(self, before: int | None, limit: int) -> tuple[SessionVersion, ...]:
        """Return its newest versions, or those before one, oldest first."""
        ...

    async def read_at(self, at: int | str) -> tuple[Message, ...]:
        """Return the messages of a version or of a time."""
        ...

    async def rewind(self, how: RewindRequest) -> Rewound:
        """Take it back to a version or a time, or only plan it."""
        ...

    async def redo(self, how: RedoRequest) -> Rewound:
        """Undo its last rewind, or only plan it."""
        ...

    async def merge(self, source: str, *, dry_run: bool) -> MergedFiles:
        """Merge the files of another session into its own, or only plan it."""
        ...

    async def cancel(self, *, queued: bool, cascade: bool) -> None:
        """Cancel the running turn, and what else is asked."""
        ...

    async def questions(self) -> tuple[Question, ...]:
        """Return the open questions of its agent."""
        ...

    async def answer(self, question: str, answer: str) -> None:
        """Answer a question of its agent."""
        ...

    async def wait(self, deadline: Deadline) -> None:
        """Return once it is settled."""
        ...
