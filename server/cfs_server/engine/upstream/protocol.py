"""The interface of an upstream protocol: it builds request bodies and parses response events.

Implementations are pure: they do no I/O.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cfs.contract.sse import ServerSentEvent
from cfs.wire import FinishReason
from cfs_server.engine.contract.history_forms import HistoryForm
from cfs_server.engine.contract.interface import Delta, GenerationRequest
from cfs_server.engine.upstream.failures import Failure


@dataclass(frozen=True, slots=True)
class UpstreamUsage:
    """Tokens of a turn as the upstream counts them; None if it does not report them."""

    prompt: int | None = None
    cached: int = 0
    completion: int | None = None


class UpstreamReply(Protocol):
    """Reads the events of one answer."""

    @property
    def over(self) -> bool:
        """Whether the answer has ended."""
        ...

    @property
    def spent(self) -> UpstreamUsage:
        """Tokens as far as they are known."""
        ...

    @property
    def stop(self) -> str:
        """The stop string that ended the answer; empty if the upstream does not say."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the client has to know, a sentence each; complete after `finish`."""
        ...

    def feed(self, event: ServerSentEvent) -> Iterable[Delta]:
        """Process an event; return its new output. Raises `Failure` for an error or an invalid event."""
        ...

    def rest(self) -> Iterable[Delta]:
        """Return the output that was held until the end, after the last event; raises `Failure`."""
        ...

    def finish(self) -> FinishReason:
        """Return the end of the answer after `rest`; raises `Failure` if the answer is incomplete."""
        ...


class Dialect(Protocol):
    """One protocol, and the learned properties of its upstream."""

    @property
    def path(self) -> str:
        """Where turns are sent, below the upstream's address."""
        ...

    @property
    def embeddings_path(self) -> str | None:
        """Where requests for embeddings are sent; None if the protocol has none."""
        ...

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Make the headers of every request."""
        ...

    def body(self, request: GenerationRequest, form: HistoryForm = HistoryForm.PLAIN) -> dict[str, Any]:
        """Make the body of a turn's request; raises `EngineError` when this protocol cannot express it.

        In a strict `form`, ids and names of calls are those that all servers take.
        """
        ...

    def reply(self, request: GenerationRequest) -> UpstreamReply:
        """Make the reader of a turn's answer."""
        ...

    def learn(self, failure: Failure) -> None:
        """Omit a member from all later bodies if a failure reports that the upstream refused it."""
        ...

    def forget(self, cache_key: str) -> None:
        """Drop everything stored for a session."""
        ...
