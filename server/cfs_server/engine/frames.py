"""What the server and its worker process say to each other.

A frame is a length (four bytes, big-endian) and that many bytes of JSON: the frame's class and its fields. The worker
sends one `Step` per engine step for all sequences together, not one frame per token.
"""

import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, get_args

from cfs.wire import FinishReason
from cfs_server.engine.backlog import Backlog
from cfs_server.engine.interface import EnginePlan

HEADER = struct.Struct(">I")
LONGEST = 64 << 20
"""Bytes of a frame from the worker, which sends none of a thousandth of that."""


class BadFrame(ValueError):
    """What came is no frame; whoever sent it cannot be understood any more."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the worker runs its model; zeros mean "choose for this machine and model"."""

    parallel: int = 8
    """Sequences that are decoded together; more turns wait."""
    pool_tokens: int = 0
    """Cells of the shared pool that holds the attention state of all sequences."""
    pool_bytes: int = 1 << 30
    """Most memory that the pool takes, unless its size in tokens is given; at most a quarter of the machine's."""
    context_tokens: int = 0
    """Longest sequence; zero means what the model was trained for."""
    threads: int = 0
    parked_bytes: int = 512 << 20
    """Memory for state outside of the pool, to which every turn's is copied at its end."""
    disk: str = ""
    """Folder for state that is to outlive memory and the worker; empty for none."""
    disk_bytes: int = 4 << 30
    idle_seconds: float = 0.5
    """A session that rested this long leaves the pool as soon as others compute."""
    step_tokens: int = 512
    """Most tokens of one step."""
    flash_attention: bool = True
    """Where the model can. It is faster and rounds more coarsely, so greedy near ties depend more on the company."""
    step_seconds: float = 0.2
    """What a piece of a prompt and a token of all streams should cost together: so long a stream may stand still."""
    slice_seconds: float = 2.0
    """A turn that has run so long gives way to one that has had less of the engine."""


@dataclass(frozen=True, slots=True)
class Load:
    """To the worker, first of all: which model to load, and how."""

    path: str
    name: str
    options: Options
    extra_buffers: bool = True


@dataclass(frozen=True, slots=True)
class History:
    """To the worker: a part of a long history; the key's messages are now the first `keep` it has, and `messages`."""

    cache_key: str
    keep: int
    messages: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Generate:
    """To the worker: one turn, in plain values (`wire.Message`s and `wire.Settings` dumped).

    Its history is the first `keep` messages of the key's last turn, and `messages` (see `histories`).
    """

    id: str
    cache_key: str
    keep: int
    messages: list[dict[str, Any]]
    settings: dict[str, Any]
    json_schema: dict[str, Any] | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    owner: str = ""
    account: str = ""
    kind: str = "interactive"
    deadline_seconds: float | None = None
    waited_seconds: float = 0.0
    """How much of the deadline has passed: a turn that is tried again keeps it."""
    logprobs: int | None = None
    may_shorten: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the worker: end this turn at the next step."""

    id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """To the worker: nobody takes what this turn says; compute for others until `Resume`."""

    id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """To the worker: this turn goes on from where it was."""

    id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """To the worker: drop what is kept for this key."""

    cache_key: str


@dataclass(frozen=True, slots=True)
class DropHistory:
    """To the worker: drop the messages of this key, and nothing else; the next turn brings all of them again."""

    cache_key: str


@dataclass(frozen=True, slots=True)
class Recall:
    """To a new worker: the token log of a session, as the worker before told it (`Told`)."""

    cache_key: str
    owner: str
    rows: list[str]


@dataclass(frozen=True, slots=True)
class TellAgain:
    """To the worker: the server has nothing of this session's token log; tell the whole of it next time."""

    cache_key: str


@dataclass(frozen=True, slots=True)
class Expect:
    """To the worker: the session's next turn will come after this."""

    cache_key: str
    hint: str


@dataclass(frozen=True, slots=True)
class AskStats:
    """To the worker: answer with `Stats`, after everything sent before; `check` verifies the invariants as well."""

    number: int
    check: bool = False


@dataclass(frozen=True, slots=True)
class AskTokens:
    """To the worker: answer with `CountedTokens`: how many each text has, and the prompt of a conversation, if any."""

    number: int
    contents: list[str]
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ping:
    """To the worker: its engine thread answers with `Alive` between two steps."""


@dataclass(frozen=True, slots=True)
class Alive:
    """From the worker's engine thread: it makes progress."""


@dataclass(frozen=True, slots=True)
class Computing:
    """From the worker's engine thread: a long step begins; it may take so many seconds before the next frame."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StopCounting:
    """To the worker: the asker of this `AskTokens` is gone."""

    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    """From the worker: the model is loaded."""

    context_tokens: int
    pool_tokens: int
    has_chat_template: bool
    parameters: int
    plan: EnginePlan
    longest_token: int = 256
    """Characters of it: no token of this model's stands for more."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """From the worker: the model cannot be loaded, and why, in one line."""

    reason: str


class Rank(NamedTuple):
    """A token, its bytes as characters of Latin-1, and its log-probability."""

    token: str
    logprob: float


class Text(NamedTuple):
    """New text of one turn and the number of tokens behind it: plain tuples, as there is one for each token.

    `logprobs` has, for each token whose text is shown with this, that token's rank and those of the alternatives.
    """

    id: str
    text: str
    tokens: int
    logprobs: list[list[Rank]] | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A turn left the queue; `cached_tokens` of its prompt need no evaluation.

    With `thinking` its reply begins in the middle of the model's thinking.
    """

    id: str
    prompt_tokens: int
    cached_tokens: int
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn is over: with a finish reason, or with an error (`kind` names its class).

    When the prompt was too long, `fits` is how many of its newest exchanges would fit, and `leaving` about how many
    tokens the others have.
    """

    id: str
    reason: FinishReason
    completion_tokens: int = 0
    kind: str = ""
    error: str = ""
    fits: int | None = None
    leaving: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """A session's token log: the first `keep` rows of the log of `source` (a fork's, or its own), then these."""

    cache_key: str
    owner: str
    source: str
    keep: int
    rows: list[str]


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the worker started."""

    steps: int = 0
    prompt_tokens_evaluated: int = 0
    tokens_generated: int = 0
    recomputed_tokens: int = 0
    """Of turns that were put aside and had lost their state when they came back."""

    def __add__(self, other: "Counters") -> "Counters":
        """Count two workers together."""
        return Counters(
            self.steps + other.steps,
            self.prompt_tokens_evaluated + other.prompt_tokens_evaluated,
            self.tokens_generated + other.tokens_generated,
            self.recomputed_tokens + other.recomputed_tokens,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """From the worker: everything that one engine step brought, and what waits after it."""

    counters: Counters
    started: list[Started] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    backlog: Backlog = field(default_factory=Backlog)
    logs: list[Told] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stats:
    """From the worker: counters and gauges of now; `violations` lists broken invariants when a check was asked for."""

    number: int
    counters: Counters
    running: int
    waiting: int
    sequences_resident: int
    sequences_parked: int
    cells_used: int
    gauges: dict[str, float]
    violations: list[str]


@dataclass(frozen=True, slots=True)
class CountedTokens:
    """From the worker: numbers of tokens, or why there are none."""

    number: int
    counts: list[int] = field(default_factory=list)
    prompt: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """From the worker: a warning or an error of the native library, or a line of our own."""

    level: str
    text: str


ToWorker = (
    Load
    | History
    | Generate
    | Cancel
    | Pause
    | Resume
    | Forget
    | DropHistory
    | Recall
    | TellAgain
    | Expect
    | AskStats
    | AskTokens
    | StopCounting
    | Ping
)
FromWorker = Ready | LoadFailed | Step | Stats | CountedTokens | Log | Alive | Computing
Frame = ToWorker | FromWorker

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Frame)}
_PARTS: dict[str, type[Any]] = {"options": Options, "counters": Counters, "plan": EnginePlan, "backlog": Backlog}


def _text(identity: str, text: str, tokens: int, logprobs: list[list[list[Any]]] | None) -> Text:
    ranks = None if logprobs is None else [[Rank(*rank) for rank in token] for token in logprobs]
    return Text(identity, text, tokens, ranks)


_LISTS: dict[str, Callable[..., Any]] = {"started": Started, "texts": _text, "ended": Ended, "logs": Told}


def _plain_value(value: Any) -> list[Any]:
    if not hasattr(value, "__slots__"):
        raise TypeError(f"{type(value).__name__} is no part of a frame")
    return [getattr(value, name) for name in value.__slots__]


_to_json = json.JSONEncoder(default=_plain_value, separators=(",", ":"), ensure_ascii=False).encode


def encode(frame: Frame) -> bytes:
    """Encode a frame with its length."""
    text = _to_json([type(frame).__name__, *_plain_value(frame)])
    body = text.encode("utf-8", "surrogatepass")  # half the size of escapes, in half the time, and nothing is refused
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> Frame:
    """Decode the body of a frame; raises `BadFrame`."""
    try:
        return _decode(body)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadFrame(f"no frame, but {body[:60]!r} ({type(error).__name__}: {error})") from error


def length(header: bytes) -> int:
    """Read how long the body of a frame from the worker is; raises `BadFrame`."""
    (size,) = HEADER.unpack(header)
    if size > LONGEST:
        raise BadFrame(f"no frame, but one of {size} bytes")
    return int(size)


def _decode(body: bytes) -> Frame:
    name, *values = json.loads(body)
    kind = _KINDS[name]
    fields = dict(zip(kind.__slots__, values, strict=True))
    for key, part in _PARTS.items():
        if key in fields:
            fields[key] = part(*fields[key])
    for key, make in _LISTS.items():
        if key in fields:
            fields[key] = [make(*row) for row in fields[key]]
    frame: Frame = kind(**fields)
    return frame


def read(stream: BinaryIO) -> Frame | None:
    """Read the next frame of a blocking stream; `None` at its end."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    body = stream.read(length)
    return decode(body) if len(body) == length else None


def send(connection: socket.socket, frame: Frame) -> None:
    """Send a frame over a blocking socket."""
    connection.sendall(encode(frame))
