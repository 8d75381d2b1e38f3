"""What runs a workload: our engine, or a peer. One interface for all, the same settings for all."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import psutil

from cfs.wire import Message
from cfs_server.engine.contract.interface import Kind
from cfs_server.engine.contract.protocol import Speculation
from engine_bench.processes import cpu_seconds, family, resident_mib


class SideError(Exception):
    """A side failed a turn, or cannot be started; the text says why."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What all sides are given alike."""

    model: Path
    threads: int
    parallel: int = 8
    """Turns that are computed together."""
    pool_tokens: int = 8192
    """Cells of the pool that all sequences share."""
    memory_mib: int = 512
    """Memory for the state of turns that have left the pool."""
    batch_tokens: int = 512
    """Most tokens of one batch."""
    speculation: Speculation = "auto"
    """Whether our engine guesses tokens."""
    guess_flags: str = ""
    """By which flags llama.cpp's server guesses tokens; without them it does not."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: a complete history, and a reply of just so many tokens, or one that follows a schema."""

    session: str
    messages: tuple[Message, ...]
    tokens: int
    schema: dict[str, Any] | None = None
    owner: str = ""
    kind: Kind = "interactive"
    exact: bool = False
    """Keeps a trained model from ending the reply before; those with random weights never do."""
    temperature: float = 0.0
    """Zero is greedy; otherwise nothing else cuts the distribution."""
    seed: int = 0


@dataclass(slots=True)
class Answer:
    """What came of a turn and when; all of it is filled in as it happens, so that a turn can be watched."""

    asked: float = field(default_factory=time.perf_counter)
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    stopped: bool = False
    """Whether the model ended the reply by itself."""
    on_text: Callable[[], None] | None = None

    def arrive(self, text: str, tokens: int = 1) -> None:
        """Note new text and the tokens behind it."""
        self.arrivals.append(time.perf_counter())
        self.text += text
        self.tokens += tokens
        if self.on_text is not None:
            self.on_text()

    @property
    def first_token_seconds(self) -> float:
        """Time from the request to the first text."""
        return (self.arrivals[0] if self.arrivals else self.ended) - self.asked

    def longest_gap(self, since: float, until: float) -> float:
        """Return the longest time without new text between two moments."""
        moments = [since, *(moment for moment in self.arrivals if since < moment < until), until]
        return max(after - before for before, after in pairwise(moments))


class Side(ABC):
    """Something that answers turns."""

    name: ClassVar[str]

    def __init__(self, build: str) -> None:
        self.build = build
        """Which build of the library computes, in its own words."""

    @abstractmethod
    async def ask(self, turn: Turn, answer: Answer | None = None) -> Answer:
        """Answer a turn; cancelling this cancels the turn. Raises `SideError`."""

    @abstractmethod
    async def evaluated(self) -> int | None:
        """Prompt tokens evaluated since the start; None if the side does not say."""

    @abstractmethod
    async def busy(self) -> int:
        """Turns that are still at work, or places that are still taken."""

    @abstractmethod
    async def stop(self) -> None:
        """End."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process that computes; those below it belong to it."""

    def forget(self, session: str) -> None:  # noqa: B027 - the peers know no sessions
        """Free what is kept for a session, where there is such a thing."""

    def cpu_seconds(self) -> float:
        """CPU time of all that takes part so far: the side's processes, and this one, which is everybody's client."""
        return cpu_seconds([psutil.Process(), *(p for p in family(self.pid) if p.pid != psutil.Process().pid)])

    def memory_mib(self) -> float:
        """Memory of the side's processes."""
        return resident_mib(family(self.pid))
