"""The protocol between the server and its worker process.

A frame is a length (four bytes, big-endian) and that many bytes of JSON: the frame's class and its fields. The worker
sends one `Step` per engine step for all sequences together, not one frame per token.
"""

import json
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, NamedTuple, get_args

from cfs.errors import EngineError
from cfs.wire import FinishReason, Message
from cfs_server.engine.contract.backlog import Backlog
from cfs_server.engine.contract.interface import EnginePlan, GenerationRequest, KvType
from cfs_server.engine.contract.reply_options import REPLY_OPTIONS

HEADER = struct.Struct(">I")
LONGEST = 64 << 20
"""Bytes of a frame from the worker, which sends none of a thousandth of that."""


class BadFrame(ValueError):
    """The data is not a frame; the rest of the connection cannot be parsed."""


Speculation = Literal["auto", "on", "off", "always"]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How the worker runs its model; zeros mean "choose for this machine and model"."""

    parallel: int = 8
    """Sequences that are decoded together; more turns wait."""
    pool_tokens: int = 0
    """Cells of the shared pool that holds the attention state of all sequences."""
    pool_bytes: int = 0
    """Most memory that the pool takes, unless its size in tokens is given."""
    context_tokens: int = 0
    """Longest sequence; zero means the length of the model's training."""
    threads: int = 0
    parked_bytes: int = 512 << 20
    """Memory for state outside of the pool, to which every turn's is copied at its end."""
    disk: str = ""
    """Folder for state that is to outlive memory and the worker; empty for none."""
    disk_bytes: int = 4 << 30
    disk_rate: int = 64 << 20
    """Most bytes that are written there in a second."""
    rest_seconds: float = 60.0
    """State on disk that rested this long leaves memory."""
    idle_seconds: float = 0.5
    """A session that rested this long leaves the pool as soon as others compute."""
    step_tokens: int = 512
    """Most tokens of one step."""
    flash_attention: bool = True
    """Where the model can. It is faster and rounds more coarsely, so greedy near ties depend more on the company."""
    kv_type: KvType = "f16"
    """The type of the pool's numbers. All but `f16` need flash attention."""
    step_seconds: float = 0.2
    """The target time of a piece of a prompt and a token of all streams: a stream may pause that long."""
    slice_seconds: float = 2.0
    """A turn that has run so long gives way to one that has had less of the engine."""
    speculation: Speculation = "auto"
    """Whether tokens are guessed: where it pays (`on`), and only if rounding stays the same (`auto`), or never.

    `always` guesses wherever there is a guess, and is for tests.
    """


@dataclass(frozen=True, slots=True)
class Load:
    """To the worker, first of all: which model to load, and how."""

    path: str
    name: str
    options: WorkerOptions
    extra_buffers: bool = True


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """To the worker: a part of a long history; the key's messages are now the first `keep` it has, and `messages`."""

    cache_key: str
    keep: int
    messages: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Generate:
    """To the worker: one turn, in plain values (`wire.Message`s and `wire.Settings` dumped).

    Its history is the first `keep` messages of the key's last turn, and `messages` (see `histories`). A field with the
    name of a `ReplyOptions` has its value; the others of those are for the server.
    """

    id: str
    cache_key: str
    keep: int
    messages: list[dict[str, Any]]
    settings: dict[str, Any]
    json_schema: dict[str, Any] | None = None
    tools: Sequence[dict[str, Any]] = ()
    owner: str = ""
    account: str = ""
    kind: str = "interactive"
    deadline_seconds: float | None = None
    waited_seconds: float = 0.0
    """How much of the deadline has passed: a retry continues the same deadline."""
    logprobs: int | None = None
    may_shorten: bool = False


_SENT_OPTIONS = tuple(name for name in REPLY_OPTIONS if name in Generate.__slots__)


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """To the worker: end this turn at the next step."""

    id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """To the worker: this turn's text has no reader now; compute others until `Resume`."""

    id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """To the worker: continue this turn."""

    id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """To the worker: drop everything stored for this key."""

    cache_key: str


@dataclass(frozen=True, slots=True)
class Retain:
    """To the worker: of the sessions of the worker before it, only those with these keys still exist."""

    keys: list[str]


@dataclass(frozen=True, slots=True)
class DropHistory:
    """To the worker: drop the messages of this key, and nothing else; the next turn brings all of them again."""

    cache_key: str


@dataclass(frozen=True, slots=True)
class TokenLogRestore:
    """To a new worker: the token log of a session, put together from the deltas of the worker before it."""

    cache_key: str
    owner: str
    rows: list[str]


@dataclass(frozen=True, slots=True)
class TokenLogResync:
    """To the worker: the server does not have this session's token log; send all of it with the next delta."""

    cache_key: str


@dataclass(frozen=True, slots=True)
class Expect:
    """To the worker: a hint about the session's activity before its next turn."""

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
class Embed:
    """To the worker: answer with `Embedded`: the vectors of some texts, or of their tokens."""

    number: int
    inputs: list[str | list[int]]
    owner: str = ""
    account: str = ""
    truncate: bool = False


@dataclass(frozen=True, slots=True)
class StopEmbedding:
    """To the worker: the caller of this `Embed` has left."""

    number: int


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
    """To the worker: the caller of this `AskTokens` has left."""

    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    """From the worker: the model is loaded."""

    context_tokens: int
    pool_tokens: int
    has_chat_template: bool
    parameters: int
    plan: EnginePlan | None
    """None for a model that makes no texts."""
    longest_token: int = 256
    """The most characters of one token of this model."""
    pooling: str = ""
    """How the model makes embeddings; empty if it makes none."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """From the worker: the model cannot be loaded, and why, in one line."""

    reason: str


class Rank(NamedTuple):
    """A token, its bytes as characters of Latin-1, and its log-probability."""

    token: str
    logprob: float


class TextDelta(NamedTuple):
    """New text of one turn and the number of tokens behind it: plain tuples, as there is one for each token.

    `logprobs` has, for each token whose text is shown with this, that token's rank and those of the alternatives.
    """

    id: str
    text: str
    tokens: int
    logprobs: list[list[Rank]] | None = None


@dataclass(frozen=True, slots=True)
class TurnDequeued:
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
    tokens the others have. `stop` is the stop string that ended the text, if one did. Of the tokens that were guessed,
    `accepted` were right and `refused` were not.
    """

    id: str
    reason: FinishReason
    completion_tokens: int = 0
    kind: str = ""
    error: str = ""
    fits: int | None = None
    leaving: int = 0
    stop: str = ""
    accepted: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogDelta:
    """The new part of a session's token log: the log is the first `keep` rows of the log of `source`, then these.

    `source` is the session itself or the one it was forked from.
    """

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
    """Of preempted turns and had lost their state when they came back."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def __add__(self, other: "Counters") -> "Counters":
        """Count two workers together."""
        return Counters(
            self.steps + other.steps,
            self.prompt_tokens_evaluated + other.prompt_tokens_evaluated,
            self.tokens_generated + other.tokens_generated,
            self.recomputed_tokens + other.recomputed_tokens,
            self.drafted_tokens + other.drafted_tokens,
            self.accepted_tokens + other.accepted_tokens,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """From the worker: all results of one engine step, and the waiting work after it."""

    counters: Counters
    started: list[TurnDequeued] = field(default_factory=list)
    texts: list[TextDelta] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    backlog: Backlog = field(default_factory=Backlog)
    logs: list[TokenLogDelta] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stats:
    """From the worker: counters and gauges of now; `violations` lists broken invariants when a check was requested."""

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
class Embedded:
    """From the worker: a vector for each text, or an error (`kind` names its class).

    A vector is Base64 of numbers in single precision. `tokens` is the number of tokens of all texts.
    """

    number: int
    vectors: list[str] = field(default_factory=list)
    tokens: int = 0
    kind: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """From the worker: a warning or an error of the native library, or a line of the worker."""

    level: str
    text: str


QuickCommand = (
    HistoryPart
    | CancelTurn
    | Pause
    | Resume
    | Forget
    | Retain
    | DropHistory
    | TokenLogRestore
    | TokenLogResync
    | Expect
    | AskStats
)
"""Commands about turns and their histories that need no preparation."""
TurnCommand = Generate | QuickCommand
"""Commands about turns and their histories, which the worker carries out in order."""
ToWorker = Load | TurnCommand | AskTokens | StopCounting | Embed | StopEmbedding | Ping
FromWorker = Ready | LoadFailed | Step | Stats | CountedTokens | Embedded | Log | Alive | Computing
Frame = ToWorker | FromWorker

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Frame)}
_PARTS: dict[str, type[Any]] = {"options": WorkerOptions, "counters": Counters, "plan": EnginePlan, "backlog": Backlog}


def _text(identity: str, text: str, tokens: int, logprobs: list[list[list[Any]]] | None) -> TextDelta:
    ranks = None if logprobs is None else [[Rank(*rank) for rank in token] for token in logprobs]
    return TextDelta(identity, text, tokens, ranks)


_LISTS: dict[str, Callable[..., Any]] = {"started": TurnDequeued, "texts": _text, "ended": Ended, "logs": TokenLogDelta}


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
        if fields.get(key) is not None:
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


# Only the server decides. For the life of one worker it records the messages sent for each key. Each turn states how
# many of them stay (`Generate.keep`). Frames also state when to drop a history (`DropHistory`, `Forget`). A long
# history is sent in several parts (`HistoryPart`). The worker follows the frames in order and has no limit of its own,
# so its messages always match the server's record. A new worker has no messages. The server then starts a new record
# and sends everything again.

CHARACTERS = 32 << 20
"""Text that the worker holds of all histories together; the least recently used go first, and may be sent again."""
PART_CHARACTERS = 1 << 20
"""Text that is sent at once: some milliseconds of the event loop, except for a single longer message."""
_MESSAGE_CHARACTERS = 500
"""The size of a message without its text."""


class SentHistories:
    """The server's record of the messages that one worker has. They are the sessions' objects, not copies."""

    def __init__(self, limit: int = CHARACTERS) -> None:
        self._limit = limit
        self._sent: OrderedDict[str, tuple[Message, ...]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._size = 0

    def order(self, request: GenerationRequest, waited: float = 0.0) -> tuple[bytes, bool]:
        """Record a turn and return its frames, which must be sent; `waited` is the time since its arrival in seconds.

        A long history has several parts: call this again until the turn itself is included (the second value),
        with no other turn of the key in between. Raises `EngineError` for values that are not JSON; then nothing has
        changed.
        """
        key, messages = request.cache_key, request.messages
        before = self._sent.get(key, ())
        keep = _agreement(before, messages)
        end = _part(messages, keep)
        whole = end == len(messages)
        turn = _encode_request(request, keep, waited) if whole else _encode_part(key, keep, messages[keep:end])
        new = sum(map(_characters, messages[keep:end]))
        old = self._sizes.get(key, 0) if keep == len(before) else sum(map(_characters, messages[:keep]))
        self.forget(key)
        self._sent[key], self._sizes[key] = messages[:end], old + new
        self._size += old + new
        return self._drop_oldest() + turn, whole

    def forget(self, key: str) -> None:
        """Remove a history: the worker gets a frame to forget the key."""
        if self._sent.pop(key, None) is not None:
            self._size -= self._sizes.pop(key)

    def check_integrity(self) -> list[str]:
        """Compare the sizes with the messages; every line is a violation."""
        sizes = {key: sum(map(_characters, messages)) for key, messages in self._sent.items()}
        return [] if (sizes, sum(sizes.values())) == (self._sizes, self._size) else ["histories and their sizes differ"]

    def _drop_oldest(self) -> bytes:
        orders = b""
        while self._size > self._limit and len(self._sent) > 1:
            oldest = next(iter(self._sent))
            self.forget(oldest)
            orders += encode(DropHistory(oldest))
        return orders


class KnownHistories:
    """The worker's side: each history as the server sent it, validated once."""

    def __init__(self) -> None:
        self._known: dict[str, list[Message]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def take(self, order: Generate | HistoryPart) -> Sequence[Message]:
        """Update a history and return it; the key's next turn changes it.

        Raises `ValueError` if the server refers to messages that are not here. This is a defect and needs a restart.
        """
        history = self._known.setdefault(order.cache_key, [])
        if order.keep > len(history):
            raise ValueError(f"{order.keep} messages are to be kept of a history of {len(history)}")
        history[order.keep :] = [Message.model_validate(message) for message in order.messages]
        return history

    def drop(self, key: str) -> None:
        """Drop a history."""
        self._known.pop(key, None)


def _encode_request(request: GenerationRequest, keep: int, waited: float) -> bytes:
    return _json(
        Generate(
            id=request.id,
            cache_key=request.cache_key,
            keep=keep,
            messages=[_plain_message(message) for message in request.messages[keep:]],
            settings=request.settings.model_dump(mode="json"),
            **{name: getattr(request.options, name) for name in _SENT_OPTIONS},
            owner=request.owner,
            account=request.account or request.cache_key,
            kind=request.kind,
            deadline_seconds=request.deadline_seconds,
            waited_seconds=waited,
            may_shorten=request.may_shorten,
        )
    )


def _encode_part(key: str, keep: int, messages: Sequence[Message]) -> bytes:
    return _json(HistoryPart(key, keep, [_plain_message(message) for message in messages]))


def _json(frame: Generate | HistoryPart) -> bytes:
    try:
        return encode(frame)
    except (TypeError, ValueError, RecursionError) as error:
        raise EngineError(f"the request is no JSON: {error}") from error


def _part(messages: Sequence[Message], begin: int) -> int:
    """Return the end of the messages that are sent at once."""
    room = PART_CHARACTERS
    for index in range(begin, len(messages)):
        room -= _characters(messages[index])
        if room < 0:
            return max(index, begin + 1)
    return len(messages)


def _agreement(before: Sequence[Message], messages: Sequence[Message]) -> int:
    """Count the messages that two histories begin with alike."""
    count = 0
    for old, new in zip(before, messages, strict=False):
        if old is not new and not _same(old, new):
            break
        count += 1
    return count


def _same(old: Message, new: Message) -> bool:
    """Whether two messages are the same to the worker.

    To be equal is not enough for arguments: 1 equals True, and keys have an order that a template writes down.
    """
    return old == new and (not new.tool_calls or json.dumps(_plain_message(old)) == json.dumps(_plain_message(new)))


def _plain_message(message: Message) -> dict[str, Any]:
    return message.model_dump(mode="json", exclude_defaults=True)


def _characters(message: Message) -> int:
    calls = len(json.dumps(_plain_message(message)["tool_calls"])) if message.tool_calls else 0
    return _MESSAGE_CHARACTERS + len(message.content) + len(message.thinking or "") + calls
