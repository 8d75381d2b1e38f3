"""The stored form of changes and sessions. Pure functions, no I/O.

A `Row` is one change as stored: its kind, the version of its form, and its data as JSON. Rows are never rewritten, so
`decode` reads each version that has ever been written; `tests/sessions/journal/golden` contains examples of all. Each
row also contains its author, its time, and the events that the change published.

A `Head` is the state of a session at one row without its messages. A start reads the heads and the rows after them.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from cfs.wire import EventType, Message, Settings, TurnSettings
from cfs_server.domain import changes
from cfs_server.domain.authors import Author
from cfs_server.domain.changes import Record, SessionChange
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.past import HistoryChange, PastChange
from cfs_server.domain.state import Head
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.turns import TurnRequest

VERSION = 1
"""The version in which rows and heads are written."""

KINDS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "session.created": changes.Created,
        "session.renamed": changes.Renamed,
        "session.deleted": changes.Deleted,
        "settings.changed": changes.SettingsChanged,
        "state.announced": changes.StateAnnounced,
        "tokens.spent": changes.TokensSpent,
        "message.added": changes.MessageAdded,
        "history.replaced": changes.HistoryReplaced,
        "context.shifted": changes.ContextShifted,
        "message.excluded": changes.MessageExcluded,
        "turn.queued": changes.TurnQueued,
        "turn.started": changes.TurnStarted,
        "turn.interrupted": changes.TurnInterrupted,
        "reply.extended": changes.ReplyExtended,
        "lease.renewed": changes.LeaseRenewed,
        "lease.expired": changes.LeaseExpired,
        "cancel.requested": changes.CancelRequested,
        "turn.ended": changes.TurnEnded,
        "call.decided": changes.CallDecided,
        "question.asked": changes.QuestionAsked,
        "question.closed": changes.QuestionClosed,
        "work.reported": changes.WorkReported,
    }
)
"""The name of each kind of change."""

DELETED = "session.deleted"
TOKENS = "reply.extended"
HISTORY = ("session.created", "history.replaced", "message.added")
"""The kinds that contain messages. The first two begin a history."""

_NAMES = {change: kind for kind, change in KINDS.items()}
_SHARED: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "message.added": MappingProxyType({"message": ("message",), "turn": ("turn",)}),
        "reply.extended": MappingProxyType({"text": ("delta", "text"), "turn": ("turn",)}),
        "turn.ended": MappingProxyType({"reply": ("reply",), "turn": ("turn",)}),
        "call.decided": MappingProxyType(
            {"turn": ("turn",)} | {name: ("decision", name) for name in ("subject", "rule", "source", "digest")}
        ),
        "question.asked": MappingProxyType({"text": ("question", "text"), "turn": ("question", "turn")}),
    }
)
"""Data of events that the change contains as well. They are stored once."""
_HEAD = f'{{"version":{VERSION},'
"""The beginning of each head."""
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _json(value: Any) -> str:
    text = _dumps(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, from the arguments of a call
        return json.dumps(value, separators=(",", ":"))
    return text


class UnknownRecord(Exception):
    """A row has a kind or a version that this program does not know."""


class Row(NamedTuple):
    """A stored record. `seq` grows with each record; `session` is the session's key.

    `number` and `position` are the last ones of the session's log and of the common log after the record.
    """

    seq: int
    session: str
    at: float
    kind: str
    version: int
    author: str
    body: str
    events: str
    number: int
    position: int


def encode(seq: int, record: Record) -> Row:
    """Return a record as stored."""
    kind = _NAMES[type(record.change)]
    shared = _SHARED.get(kind, {})
    events = [
        [event.type, event.session, {key: _reference(key, shared) or value for key, value in event.data.items()}]
        for event in record.events
    ]
    author = "" if record.author is None else _json(plain(record.author))
    body, written = _json(plain(record.change)), _json(events) if events else ""
    return Row(seq, record.key, record.at, kind, VERSION, author, body, written, record.number, record.position)


def _reference(key: str, shared: Mapping[str, tuple[str, ...]]) -> dict[str, str] | None:
    return {"$": "/".join(shared[key])} if key in shared else None


def decode(row: Row) -> Record:
    """Return the record of a row, with its events. Raises `UnknownRecord` or `ValueError`."""
    change = decode_change(row)
    author = _read(Author, row.author) if row.author else None
    return Record(row.session, row.at, change, tuple(decode_events(row)), author, row.number, row.position)


def decode_change(row: Row) -> SessionChange:
    """Return the change of a row. Raises `UnknownRecord`, or `ValueError` for damaged data."""
    require_known(row)
    change: SessionChange = _read(KINDS[row.kind], row.body)
    return change


def require_known(row: Row) -> None:
    """Raise `UnknownRecord` for a row of a newer version."""
    if row.kind not in KINDS or row.version > VERSION:
        raise UnknownRecord(
            f"record {row.seq} is a {row.kind!r} of version {row.version}, which a newer CFS has written"
        )


def _read(kind: type[Any], text: str) -> Any:
    try:
        return _ADAPTERS[kind].validate_json(text)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] != "json_invalid":
            raise
        return _ADAPTERS[kind].validate_python(json.loads(text))  # pydantic's parser refuses lone surrogates


def decode_events(row: Row) -> list[LoggedEvent]:
    """Return the events of a row."""
    if not row.events:
        return []
    written: list[tuple[EventType, str, dict[str, Any]]] = json.loads(row.events)
    body: Any = None
    first, position = row.number - len(written) + 1, row.position - len(written) + 1
    events: list[LoggedEvent] = []
    for at, (kind, session, data) in enumerate(written):
        for key, value in data.items():
            if isinstance(value, dict) and value.keys() == {"$"}:
                body = json.loads(row.body) if body is None else body
                data[key] = _at(body, value["$"])
        events.append(LoggedEvent(kind, session, first + at, position + at, row.at, data))
    return events


def first_index(row: Row) -> int:
    """Return the index in the history of the first message that a row of one of the kinds `HISTORY` adds."""
    written: list[tuple[EventType, str, dict[str, Any]]] = json.loads(row.events) if row.events else []
    return next((int(data["index"]) for kind, _, data in written if kind == "message.added"), 0)


def _at(body: Any, path: str) -> Any:
    for part in path.split("/"):
        body = body.get(part, "")  # a default is not stored; all shared values are texts or objects
    return body


def decode_messages(row: Row) -> list[tuple[Message, float]]:
    """Return the messages that a row of one of the kinds `HISTORY` adds or begins with, and when each was added."""
    change = decode_change(row)
    if isinstance(change, changes.MessageAdded):
        return [(change.message, row.at)]
    history: SizedMessages = change.history  # type: ignore[attr-defined]
    return list(zip(history.messages, history.times_from(row.at), strict=True))


def past_change(row: Row, order: int | None) -> PastChange:
    """Return a row of one of the kinds `HISTORY`, and its place among the changes of files, as a change of the past."""
    author = _read(Author, row.author) if row.author else None
    return PastChange(row.at, cast("HistoryChange", decode_change(row)), author, order)


def encode_head(head: Head) -> str:
    """Return a head as JSON."""
    return _HEAD + _json(plain(head)).removeprefix("{")


def decode_head(text: str) -> Head:
    """Return the head of a JSON text. Raises `UnknownRecord`, or `ValueError` for damaged data."""
    if not text.startswith(_HEAD) and json.loads(text)["version"] > VERSION:
        raise UnknownRecord("the head of a session has a version that a newer CFS has written")
    head: Head = _read(Head, text)
    return head


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (*KINDS.values(), Head, Author)}


@cache
def _defaults(type_: type[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in fields(type_))


_FIRST_SETTINGS = frozenset(
    {
        *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "system", "prompt_style", "driver"),
        *("paused", "reproducible", "overflow", "keep"),
    }
)
"""Settings that are in each record of version 1. Younger ones are stored if they differ from their default."""
_YOUNGER_DEFAULTS = {name: value for name, value in Settings().model_dump().items() if name not in _FIRST_SETTINGS}


def plain(value: Any) -> Any:
    """Return a value as JSON data without fields that have their default.

    The settings of a session are complete, because defaults may change. In a patch, a field may be set to its default.
    The options of a reply are stored beside the other members of their request.
    """
    kind = type(value)
    if kind in (str, int, float, bool, type(None)):
        return value
    if isinstance(value, Settings):
        return value.model_dump(
            exclude={name for name, default in _YOUNGER_DEFAULTS.items() if getattr(value, name) == default}
        )
    if isinstance(value, BaseModel):
        patch = isinstance(value, TurnSettings)
        return value.model_dump(exclude_unset=patch, exclude_defaults=not patch)
    if is_dataclass(kind):
        attributes = ((name, getattr(value, name), default) for name, default in _defaults(kind))
        stored = {
            name: plain(field_value)
            for name, field_value, default in attributes
            if default is MISSING or field_value != default
        }
        options = stored.pop("options") if kind is TurnRequest else {}
        return stored | options
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value.value  # an enum
