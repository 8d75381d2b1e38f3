"""What the engine asks of a protocol: bodies out, events in. Implementations are pure: they do no I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cfs.sse import ServerSentEvent
from cfs.wire import FinishReason
from cfs_server.engine.interface import Delta, GenerationRequest
from cfs_server.engine.upstream.failures import Failure


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of a turn as the upstream counts them; None where it does not say."""

    prompt: int | None = None
    cached: int = 0
    completion: int | None = None


class Reply(Protocol):
    """Reads the events of one answer."""

    @property
    def over(self) -> bool:
        """Whether the answer has come to its end."""
        ...

    @property
    def spent(self) -> Spent:
        """Tokens as far as they are known."""
        ...

    def feed(self, event: ServerSentEvent) -> Iterable[Delta]:
        """Take an event; return what is new. Raises `Failure` for an error, and for what is no event of its kind."""
        ...

    def finish(self) -> FinishReason:
        """Say how the answer ended, once no more events come; raises `Failure` when it broke off."""
        ...


class Dialect(Protocol):
    """One protocol, and what has been learned of the upstream that speaks it."""

    @property
    def path(self) -> str:
        """Where turns are sent, below the upstream's address."""
        ...

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Make the headers of every request."""
        ...

    def body(self, request: GenerationRequest) -> dict[str, Any]:
        """Make the body of a turn's request; raises `EngineError` when it cannot be said in this protocol."""
        ...

    def reply(self, request: GenerationRequest) -> Reply:
        """Make the reader of a turn's answer."""
        ...

    def learn(self, failure: Failure) -> None:
        """Leave out of all bodies to come what the upstream refused, if a failure says that it is that."""
        ...

    def forget(self, cache_key: str) -> None:
        """Drop what is kept for a session."""
        ...
