"""An item on disk: the file that holds it, and the line of the index that leads there (O1). Pure: no I/O.

An item has two files. `NAME.json` is the item (`NAME.json.gz` once a large one has been compressed), and `NAME.txt` its
plain content. The second one is what a placeholder names: in JSON a text is one line, however many it has, and a tool
that reads by lines could show all of it or nothing. The text can always be made again from the JSON.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Self

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

from cfs.wire import Message
from cfs_agents.context.items import ContextItem, ItemType
from cfs_agents.context.redaction import redact, redact_json

SCHEMA_VERSION = "1.0"
GZIP_ABOVE = 262_144
"""Items whose JSON has more bytes are compressed at a clean-up, if that halves them."""

_SAMPLE = 16_384


class Unreadable(Exception):
    """A file does not hold an item, or an index, that was written here."""


@dataclass(frozen=True, slots=True)
class Record:
    """Where an item is on disk, and what is known of it without reading it.

    `path` (of the JSON) is relative to the session's folder, and None once the files have been cleaned away.
    `size` is the content's bytes in UTF-8, `stored` those of both files. `tokens` is what the item cost in the prompt.
    `redactions` says how many secrets of which kind are not in the files. `offloaded_at` and `removed_at` are ISO 8601.
    """

    item_id: str
    item_type: ItemType
    path: str | None
    offloaded_at: str
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

    @property
    def time(self) -> datetime:
        """When the item was off-loaded."""
        return datetime.fromisoformat(self.offloaded_at)

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
    def load(state: Any) -> "Record":
        """Make the record that `dump` described; raises `Unreadable`."""
        try:
            record: Record = _RECORD.validate_python({"path": None, "tokens": None} | state)
            _ = record.time
        except (ValueError, TypeError) as error:
            raise Unreadable(str(error)) from error
        return record


_RECORD = TypeAdapter(Record)
_FIELDS = [field.name for field in fields(Record)]


@dataclass(frozen=True)
class Document:
    """An item as it is written, without secrets. `metadata` is the rest of the message, and what the index says."""

    item_id: str
    item_type: ItemType
    offloaded_at: str
    metadata: Mapping[str, Any]
    content: str

    @classmethod
    def of(cls, item: ContextItem, summary: str, now: datetime) -> Self:
        """Describe an item; its secrets are taken out here."""
        redacted = redact(item.message.content)
        rest = redact_json(item.message.model_dump(mode="json", exclude={"content"}, exclude_defaults=True))
        found = {
            kind: redacted.found.get(kind, 0) + rest.found.get(kind, 0) for kind in {**redacted.found, **rest.found}
        }
        metadata = {**rest.value, "tokens": item.tokens, "summary": redact(summary).text, "redactions": found}
        return cls(item.item_id, item.item_type, now.isoformat(), metadata, redacted.text)

    @property
    def message(self) -> Message:
        """The message as it can be read back."""
        return Message(content=self.content, **{key: self.metadata[key] for key in _MESSAGE if key in self.metadata})

    @property
    def digest(self) -> str:
        """Hash of what was said: equal for the same item off-loaded twice."""
        said = hashlib.sha256(_json([self.item_type, {key: self.metadata.get(key) for key in _MESSAGE}]))
        said.update(self._bytes)
        return said.hexdigest()

    def encoded(self) -> bytes:
        """Write the JSON file."""
        return _json({"schema_version": SCHEMA_VERSION} | {name: getattr(self, name) for name in _DOCUMENT})

    def text(self) -> bytes:
        """Write the text file; half characters, which UTF-8 cannot hold, become question marks."""
        return self._bytes

    @cached_property
    def _bytes(self) -> bytes:
        return self.content.encode("utf-8", "replace")

    def record(self, path: str, stored: int) -> Record:
        """Make the line of the index for it."""
        return Record(
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
        document: Document = _ADAPTER.validate_python(state)
        _ = document.message, datetime.fromisoformat(document.offloaded_at)
    except (ValueError, KeyError, TypeError, EOFError, OSError, zlib.error) as error:
        raise Unreadable(str(error)) from error
    return document


def compressed(data: bytes) -> bytes | None:
    """Compress a large file, or return None where that is not worth while; a sample tells."""
    if len(data) <= GZIP_ABOVE or len(zlib.compress(data[:_SAMPLE], 1)) > _SAMPLE // 2:
        return None
    return gzip.compress(data, 1, mtime=0)


def _json(value: Any) -> bytes:
    """Write JSON; pydantic's writer is the quickest, but knows no half characters."""
    try:
        return to_json(value)
    except PydanticSerializationError:
        return json.dumps(value).encode()
