"""The file of an off-loaded item, and its row in the index (O1). No I/O.

An item has two files. `NAME.json` is the item (`NAME.json.gz` once a large one has been compressed), `NAME.txt` its
plain content. A placeholder names the text: in JSON the whole content is one line, and a tool that reads by lines could
show all of it or nothing. The text can always be made again from the JSON.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

from cfs.wire import Message
from cfs_agents.context.items import ContextItem, ItemType
from cfs_agents.context.redaction import redact, redact_json

SCHEMA_VERSION = "1.0"
GZIP_ABOVE = 262_144
"""A clean-up compresses items whose JSON has more bytes, if that halves them."""

_SAMPLE = 16_384


class Unreadable(Exception):
    """A file does not hold an item or an index of ours."""


def _seconds(value: Any) -> Any:
    """Read a time of an earlier version, in ISO 8601, as Unix seconds."""
    return int(datetime.fromisoformat(value).timestamp()) if isinstance(value, str) else value


UnixSeconds = Annotated[int, BeforeValidator(_seconds)]


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """Where an item is on disk, and its description.

    `path` (of the JSON) is relative to the session's folder, and None once the files have been cleaned away.
    `size` is the content's bytes in UTF-8, `stored` those of both files. `tokens` is what the item cost in the prompt.
    `redactions` says how many secrets of which kind are not in the files. `offloaded_at` is in Unix seconds, and
    `microsecond` is the rest of that time; `removed_at` is ISO 8601.
    """

    item_id: str
    item_type: ItemType
    path: str | None
    offloaded_at: UnixSeconds
    tokens: int | None
    size: int
    stored: int
    digest: str
    summary: str
    tool: str | None = None
    tool_call_id: str | None = None
    redactions: Mapping[str, int] | None = None
    removed_at: str | None = None
    removed_because: str | None = None
    microsecond: int = 0

    @property
    def time(self) -> datetime:
        """When the item was off-loaded."""
        return datetime.fromtimestamp(self.offloaded_at, UTC).replace(microsecond=self.microsecond)

    @property
    def stem(self) -> str:
        """Path without its ending: no two items share it."""
        return (self.path or "").removesuffix(".gz").removesuffix(".json")

    @property
    def text_path(self) -> str | None:
        """Path of the text."""
        return f"{self.stem}.txt" if self.path is not None else None

    def gone(self, now: datetime, because: str) -> Self:
        """Describe the item after its files have been removed."""
        return replace(self, path=None, stored=0, removed_at=now.isoformat(), removed_because=because)

    def dump(self) -> dict[str, Any]:
        """Describe the record as plain JSON; what is None is left out."""
        values = {name: getattr(self, name) for name in (*_FIELDS, "text_path")}
        return {name: value for name, value in values.items() if value is not None}

    @staticmethod
    def load(state: Any) -> "ItemRecord":
        """Make the record that `dump` described; raises `Unreadable`."""
        try:
            record: ItemRecord = _RECORD.validate_python(
                {"path": None, "tokens": None} | _with_microsecond(state, state)
            )
            _ = record.time
        except (ValueError, TypeError, KeyError, OverflowError, OSError) as error:
            raise Unreadable(str(error)) from error
        return record


def _with_microsecond(state: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the microseconds of a time that an earlier version wrote in ISO 8601."""
    time = state["offloaded_at"]
    return {**values, "microsecond": datetime.fromisoformat(time).microsecond} if isinstance(time, str) else {**values}


_RECORD = TypeAdapter(ItemRecord)
_FIELDS = [field.name for field in fields(ItemRecord)]


@dataclass(frozen=True)
class Document:
    """An item as it is written, without secrets. `metadata` is the rest of the message and what the index needs."""

    item_id: str
    item_type: ItemType
    offloaded_at: UnixSeconds
    metadata: Mapping[str, Any]
    content: str

    @classmethod
    def of(cls, item: ContextItem, summary: str, now: datetime) -> Self:
        """Describe an item without its secrets."""
        redacted = redact(item.message.content)
        rest = redact_json(item.message.model_dump(mode="json", exclude={"content"}, exclude_defaults=True))
        redactions = {
            kind: redacted.found.get(kind, 0) + rest.found.get(kind, 0) for kind in {**redacted.found, **rest.found}
        }
        metadata = {**rest.value, "tokens": item.tokens, "summary": redact(summary).text, "redactions": redactions}
        metadata |= {"tool_name": rest.value.get("name")} if item.item_type == "tool_result" else {}
        metadata["microsecond"] = now.microsecond
        return cls(item.item_id, item.item_type, int(now.timestamp()), metadata, redacted.text)

    @property
    def message(self) -> Message:
        """The message as it can be read back."""
        return Message(content=self.content, **{key: self.metadata[key] for key in _MESSAGE if key in self.metadata})

    @property
    def digest(self) -> str:
        """Hash of the message: equal if the same item is off-loaded twice."""
        hasher = hashlib.sha256(_json([self.item_type, {key: self.metadata.get(key) for key in _MESSAGE}]))
        hasher.update(self._bytes)
        return hasher.hexdigest()

    def encoded(self) -> bytes:
        """Write the JSON file."""
        return _json({"schema_version": SCHEMA_VERSION} | {name: getattr(self, name) for name in _DOCUMENT})

    def text(self) -> bytes:
        """Write the text file; half characters, which UTF-8 cannot hold, become question marks."""
        return self._bytes

    @cached_property
    def _bytes(self) -> bytes:
        return self.content.encode("utf-8", "replace")

    def record(self, path: str, stored: int) -> ItemRecord:
        """Make the line of the index for it."""
        return ItemRecord(
            self.item_id,
            self.item_type,
            path,
            self.offloaded_at,
            self.metadata.get("tokens"),
            len(self.text()),
            stored,
            self.digest,
            str(self.metadata.get("summary", "")),
            self.metadata.get("name") if self.item_type == "tool_result" else None,
            self.metadata.get("tool_call_id"),
            dict(self.metadata.get("redactions", {})) or None,
            microsecond=self.metadata.get("microsecond", 0),
        )


_DOCUMENT = tuple(field.name for field in fields(Document))
_ADAPTER = TypeAdapter(Document)
_MESSAGE = ("role", "tool_calls", "tool_call_id", "name", "thinking")


def read_document(data: bytes) -> Document:
    """Read the file of an item, compressed or not; raises `Unreadable`."""
    try:
        state = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
        if state["schema_version"] != SCHEMA_VERSION:
            raise Unreadable(f"an item of version {state['schema_version']!r}")
        state["metadata"] = _with_microsecond(state, state["metadata"])
        document: Document = _ADAPTER.validate_python(state)
        _ = document.message, datetime.fromtimestamp(document.offloaded_at, UTC)
    except (ValueError, KeyError, TypeError, EOFError, OSError, OverflowError, zlib.error) as error:
        raise Unreadable(str(error)) from error
    return document


def compressed(data: bytes) -> bytes | None:
    """Compress a large file; return None if a sample shows that it does not pay."""
    if len(data) <= GZIP_ABOVE or len(zlib.compress(data[:_SAMPLE], 1)) > _SAMPLE // 2:
        return None
    return gzip.compress(data, 1, mtime=0)


def _json(value: Any) -> bytes:
    """Write JSON. Pydantic's writer is the fastest, but refuses lone surrogates."""
    try:
        return to_json(value)
    except PydanticSerializationError:
        return json.dumps(value).encode()
