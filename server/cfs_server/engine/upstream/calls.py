"""Puts the calls of tools of one reply together, in OpenAI's protocol. Pure: no I/O.

By the protocol, each piece has the index of its call, and the first one has its id and name. Servers give all calls the
same index (ollama/ollama#15457), no ids (NousResearch/hermes-agent#62937), another id for each piece
(poolsideai/pool#9), a name that comes late (vercel/ai#14722) or again with each piece, and pieces of several calls in
turns (QwenLM/Qwen-Agent#943). So a call begins where the one before it is complete, or cannot be meant.
"""

import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cfs.errors import EngineError
from cfs_server.engine.contract.interface import CallDelta
from cfs_server.engine.upstream import failures

_MOST_CALLS = 1000
_PLACEHOLDER = "{}"
"""Arguments that some servers send first and then go on after (llamastack/llama-stack#5464)."""


@dataclass(frozen=True, slots=True)
class UpstreamCallPiece:
    """A piece of a call, as it was sent."""

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""

    @property
    def begins_object(self) -> bool:
        """Whether its arguments are the beginning of an object, or look like it."""
        return self.arguments.lstrip().startswith("{")


@dataclass(slots=True)
class _Call:
    id: str
    given_id: str
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    sent: int = 0
    """How many of the pieces have been released."""
    begun: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def is_placeholder(self) -> bool:
        return len(self.pieces) == 1 and self.pieces[0].strip() == _PLACEHOLDER

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a whole object. This reads all of them, so it is asked only when it matters."""
        if not self.pieces or not self.pieces[-1].rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads(self.text, strict=False), dict)
        except (ValueError, RecursionError):
            return False

    def begins_another(self, piece: UpstreamCallPiece) -> bool:
        """Whether a piece that seems to belong to this call begins another one."""
        other_id = piece.id not in ("", self.given_id)
        if not self.name:
            return other_id and bool(self.given_id) and self.is_complete
        if piece.name and (piece.name != self.name or (other_id and self.given_id)):
            return True
        if other_id:
            return self.is_complete
        if piece.id or not piece.begins_object or not self.is_complete:
            return False
        return bool(piece.name) or not (self.is_placeholder or piece.arguments == self.text)

    def add(self, piece: UpstreamCallPiece) -> None:
        """Add a piece; one that says everything again is dropped (mudler/cogito#66)."""
        self.given_id = self.given_id or piece.id
        self.name = self.name or piece.name
        if piece.begins_object and self.is_complete:
            if not self.is_placeholder:
                return
            self.pieces.clear()
        if piece.arguments:
            self.pieces.append(piece.arguments)

    def release(self, number: int, *, last: bool) -> Iterator[CallDelta]:
        """Yield what is new and certain; at the `last` time the rest."""
        if not self.name:
            return
        waits = not last and self.is_placeholder
        new = "" if waits else "".join(self.pieces[self.sent :])
        if not self.begun:
            yield CallDelta(number, self.id, self.name, new)
        elif new:
            yield CallDelta(number, arguments=new)
        self.begun = True
        self.sent = 0 if waits else len(self.pieces)


class CallReader:
    """Reads the calls of one reply. They are released one after the other: each is complete before the next begins."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._open: dict[int, int] = {}
        self._ids: set[str] = set()
        self._current = 0

    def __len__(self) -> int:
        """Return the number of calls so far."""
        return len(self._calls)

    def feed(self, pieces: Iterable[UpstreamCallPiece]) -> tuple[CallDelta, ...]:
        """Process pieces; return the new output."""
        for piece in pieces:
            self._call_of(piece).add(piece)
        return tuple(self._release(last=False))

    def finish(self, *, is_whole: bool = True) -> tuple[CallDelta, ...]:
        """Return the rest. Raises `Failure` for a call that has got no name.

        In a whole reply, a call that has got no arguments has none. In one that is cut off, they may be missing.
        """
        if is_whole and any(not call.name for call in self._calls):
            raise failures.nonsense("a call without a name")
        for call in self._calls if is_whole else ():
            if not call.text.strip():
                call.pieces.append(_PLACEHOLDER)
        return tuple(self._release(last=True))

    def _call_of(self, piece: UpstreamCallPiece) -> _Call:
        number = len(self._calls) - 1 if piece.index is None else self._open.get(piece.index, -1)
        if number < 0 and self._calls and not piece.name:  # Nebius and Cerebras count pieces (dirac-run/dirac#215)
            last = self._calls[-1]
            if piece.id == last.given_id if piece.id else not last.is_complete:
                return last
        if number < 0:
            return self._begin(piece)
        call = self._calls[number]
        if not call.begins_another(piece):
            return call
        return self._begin(piece, "" if piece.id else call.name)

    def _begin(self, piece: UpstreamCallPiece, name: str = "") -> _Call:
        """Begin a call. One without a name and an id, right behind another one, is of the same tool."""
        number = len(self._calls)
        if number == _MOST_CALLS:
            raise failures.Failure(EngineError(f"the upstream's reply has more than {_MOST_CALLS} calls"))
        call_id = piece.id if piece.id and piece.id not in self._ids else f"call_{secrets.token_hex(8)}"
        self._ids.add(call_id)
        self._calls.append(_Call(call_id, piece.id, piece.name or name))
        if piece.index is not None:
            self._open[piece.index] = number
        return self._calls[number]

    def _release(self, *, last: bool) -> Iterator[CallDelta]:
        while self._current < len(self._calls):
            call, ends = self._calls[self._current], self._current + 1 < len(self._calls)
            ends = last or (ends and bool(call.name) and call.is_complete)
            yield from call.release(self._current, last=ends)
            if not ends:
                return
            self._current += 1


def arguments_text(arguments: Any) -> str:
    """Return arguments as JSON text; some servers send the object itself (can1357/oh-my-pi#1779)."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
