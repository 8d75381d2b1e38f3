"""Stores the off-loaded items of one session on disk, with an index (O1).

`{root}/{session_id}/` holds `index.json`, `tool_result/{tool}/{call_id}.json`, `user_message/{item_id}.json` and so on
for each type; beside each JSON a `.txt`. A file is complete before the index names it, and leaves the index before it
is removed, so the index never names a missing file, whenever the process is killed. Opening a session rebuilds the
index from the files; of the old one only the list of removed items is needed.

The module goes from names and records over the index and the folder to `ContextFileSystem`, the store itself.
"""

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import secrets
import threading
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

from cfs.errors import CfsError, Conflict, InvalidIdentifier, NotFound, StorageFull, Unavailable
from cfs.wire import Message
from cfs_agents.base.folders import open_own_folder, put_aside
from cfs_agents.base.logs import get_logger
from cfs_agents.context.conversation import ContextItem, ItemType
from cfs_agents.context.redaction import redact, redact_json
from cfs_filesystem import DiskFileSystem, FileSystemError, FsHandle, Grant, NotFoundError, open_beneath, remove_empty

_log = get_logger(__name__)

# -- names of files and sessions --------------------------------------------------------------------------------------

GENERATED_SESSION = re.compile(r"session_\d{8}_\d{6}_[a-z0-9]{6}")

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)")
_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_session_id(now: datetime) -> str:
    """Return a new id for a session: its time and six random characters (O1)."""
    return f"session_{now:%Y%m%d_%H%M%S}_{''.join(secrets.choice(_LETTERS) for _ in range(6))}"


def valid_session_id(session_id: str) -> str:
    """Return an id that can be the name of a folder, or raise `InvalidIdentifier`."""
    if not _SESSION.fullmatch(session_id) or _DEVICES.fullmatch(session_id):
        raise InvalidIdentifier(f"{session_id!r} cannot be the name of a context's folder: letters, digits, . _ - only")
    return session_id


def safe_name(raw: str, otherwise: str) -> str:
    """Return a file name, without an ending, for an id; `otherwise` replaces an empty id.

    A plain id stays as it is. Any other id (long, with dots, slashes, NUL, letters of other scripts, or the name of a
    device) becomes its plain characters and a hash of the whole. The same id always has the same name.
    """
    if not raw:
        raw = otherwise
    if _PLAIN.fullmatch(raw) and not _DEVICES.fullmatch(raw):
        return raw
    plain = _OTHERS.sub("_", raw[:200]).strip("_-")[:40]
    return f"{plain or 'id'}-{_digest(raw)}"


def distinct_name(name: str, item_id: str, taken: Collection[str]) -> str:
    """Return a name that differs from all of `taken` (in lower case), also on disks that ignore case."""
    candidate, count = name, 1
    while candidate.lower() in taken:
        candidate = f"{name}-{_digest(f'{item_id} {count}')}"
        count += 1
    return candidate


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


# -- an item on disk (O1) ---------------------------------------------------------------------------------------------
#
# An item has two files. `NAME.json` is the item (`NAME.json.gz` once a large one has been compressed), `NAME.txt` its
# plain content. A placeholder names the text: in JSON the whole content is one line, and a tool that reads by lines
# could show all of it or nothing. The text can always be made again from the JSON.

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
class Record:
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
    def load(state: Any) -> "Record":
        """Make the record that `dump` described; raises `Unreadable`."""
        try:
            record: Record = _RECORD.validate_python({"path": None, "tokens": None} | _with_microsecond(state, state))
            _ = record.time
        except (ValueError, TypeError, KeyError, OverflowError, OSError) as error:
            raise Unreadable(str(error)) from error
        return record


def _with_microsecond(state: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the microseconds of a time that an earlier version wrote in ISO 8601."""
    time = state["offloaded_at"]
    return {**values, "microsecond": datetime.fromisoformat(time).microsecond} if isinstance(time, str) else {**values}


_RECORD = TypeAdapter(Record)
_FIELDS = [field.name for field in fields(Record)]


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
        found = {
            kind: redacted.found.get(kind, 0) + rest.found.get(kind, 0) for kind in {**redacted.found, **rest.found}
        }
        metadata = {**rest.value, "tokens": item.tokens, "summary": redact(summary).text, "redactions": found}
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


# -- the index of a session -------------------------------------------------------------------------------------------

INDEX = "index.json"
MAX_HISTORY = 1_000
"""How many removed items are remembered."""


class Index:
    """Records by item id, in the order of off-loading, and records of removed items."""

    def __init__(self, records: Iterable[Record] = (), removed: Iterable[Record] = ()) -> None:
        self.records = {record.item_id: record for record in records}
        self.removed = list(removed)
        self._lines: dict[str, tuple[Record, str]] = {}

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def stems(self) -> set[str]:
        """Paths that are taken, in lower case and without endings."""
        return {record.stem.lower() for record in self}

    def forget(self, gone: Iterable[Record]) -> None:
        """Move records, whose paths are cleared already, to the removed ones."""
        for record in gone:
            self.records.pop(record.item_id, None)
            self.removed.append(record)
        del self.removed[:-MAX_HISTORY]

    def encoded(self, session_id: str) -> bytes:
        """Return the index as JSON with a line for each item, so that a tool that reads by lines can show a part."""
        head = json.dumps({"schema_version": SCHEMA_VERSION, "session_id": session_id})[:-1]
        self._lines = {record.item_id: self._line(record) for record in self}
        items = ",\n".join(line for _, line in self._lines.values())
        removed = ",\n".join(json.dumps(record.dump()) for record in self.removed)
        return f'{head}, "items": [\n{items}\n], "removed": [\n{removed}\n]}}\n'.encode()

    def _line(self, record: Record) -> tuple[Record, str]:
        """Return a record's line, encoded once: an index of hundreds is written often, and few records are new."""
        known = self._lines.get(record.item_id)
        return known if known is not None and known[0] is record else (record, json.dumps(record.dump()))


def decoded(data: bytes) -> Index:
    """Read an index; raises `Unreadable` if it is cut off or not ours."""
    try:
        state: Mapping[str, Any] = json.loads(data)
        if state["schema_version"] != SCHEMA_VERSION:
            raise Unreadable(f"an index of version {state['schema_version']!r}")
        return Index(map(Record.load, state["items"]), map(Record.load, state["removed"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(str(error)) from error


def rebuilt(handle: FsHandle, known: Index, put_aside: Callable[[str], object]) -> Index:
    """Return the index of the items that are on disk; `known` is the last index.

    Every item is read. If a crash left one in two places, the place that `known` names stays, else the older one. Texts
    that are missing or differ are written again. What is in the way of one is `put_aside`.
    """
    sizes = {meta["path"][1:]: meta["size"] for meta in handle.list("/")}
    named = {record.path for record in known}
    found = [record for path in sizes if (record := _read(handle, path, sizes, put_aside)) is not None]
    kept: dict[str, Record] = {}
    for record in sorted(found, key=lambda record: (record.path not in named, record.time)):
        other = kept.setdefault(record.item_id, record)
        if other is not record and other.stem == record.stem:
            handle.delete(f"/{record.path}")  # the same one, compressed or not
        elif other is not record:
            remove_files(handle, record)
    return Index(sorted(kept.values(), key=lambda record: record.time), known.removed)


def check_integrity(index: Index, handle: FsHandle) -> list[str]:
    """Compare the index with the files; each line is a violation."""
    sizes = {meta["path"][1:]: meta["size"] for meta in handle.list("/")}
    problems = []
    for record in index:
        if record.path not in sizes or sizes.get(record.text_path or "") != record.size:
            problems.append(f"{record.item_id} leads to nothing")
        elif _read(handle, record.path, sizes) != record:
            problems.append(f"{record.item_id} is not what its file says")
    if len(index.stems()) != len(index.records):
        problems.append("two items share a name")
    listed = {INDEX} | {path for record in index for path in (record.path, record.text_path)}
    unlisted = {path for path in sizes if ".aside-" not in path} - listed
    return [*problems, *(f"{path} belongs to no item" for path in sorted(unlisted))]


def remove_files(handle: FsHandle, record: Record) -> None:
    """Remove both files of an item, the text first, so that no text is left without its JSON."""
    for path in (record.text_path, record.path):
        with suppress(NotFoundError):
            handle.delete(f"/{path}")


def _read(
    handle: FsHandle, path: str, sizes: Mapping[str, int], put_aside: Callable[[str], object] = lambda _: None
) -> Record | None:
    """Read an item, and write its text again where that is missing or differs, as no write waits for it.

    Return None for a file that holds no item.
    """
    if path == INDEX or not path.endswith((".json", ".json.gz")):
        return None
    try:
        data = handle.read_binary(f"/{path}")
        document = read_document(data)
    except (Unreadable, FileSystemError, OSError):
        return None
    record = document.record(path, len(data) + len(document.text()))
    text = record.text_path or ""
    if sizes.get(text) != record.size or not _holds(handle, text, document.text()):
        with suppress(OSError, FileSystemError):  # a full disk; the item itself can be read all the same
            try:
                handle.write(f"/{text}", document.text())
            except (OSError, FileSystemError):
                put_aside(text)
                handle.write(f"/{text}", document.text())
    return record


def _holds(handle: FsHandle, path: str, content: bytes) -> bool:
    with suppress(OSError, FileSystemError):
        return handle.read_binary(f"/{path}") == content
    return False


# -- the folder of a session ------------------------------------------------------------------------------------------

_EVERYTHING = Grant(prefix="/", ops={"list", "file", "read", "write", "delete"})
_FULL = {errno.ENOSPC, errno.EDQUOT}
_SLACK = 65_536


class Folder:
    """Creates a folder if it is missing, locks it, and rebuilds its index from its files.

    Others (an agent's commands) may change what lies between `trusted` and the folder at any time: each step is opened
    without following links, and the folder is used by its descriptor only. `handle` waits for the disk if `durable`;
    `hasty` does not, for files that can be made again or that `settle` waits for. Raises `Conflict` if another object
    has the folder open, and `Unavailable` or `StorageFull` if the disk refuses.
    """

    def __init__(self, path: Path, trusted: Path, *, durable: bool, warn: Callable[[str], None]) -> None:
        self.path = path
        self._warn = warn
        self.descriptor = -1
        self._trusted = trusted
        self._parts = path.relative_to(trusted).parts
        self._disks: list[DiskFileSystem] = []
        self._durable = durable
        with translated_errors(path):
            self._lock()
            try:
                self._disks = [DiskFileSystem(self.descriptor, durable=wait, private=True) for wait in (durable, False)]
                self.handle, self.hasty = (disk.create_handle([_EVERYTHING]) for disk in self._disks)
                self.index = self._rebuild()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Unlock the folder."""
        for disk in self._disks:
            disk.close()
        self._release()

    def save(self, *, wait: bool = True) -> None:
        """Write the index. After additions there is no need to wait for the disk: the files say the same."""
        (self.handle if wait else self.hasty).write(f"/{INDEX}", self.index.encoded(self.path.name))

    def settle(self, path: str) -> None:
        """Wait until the disk has a new file (fsync of the file and its directories).

        The file gets its name before its content is on the disk, so that one transaction of the disk takes both. That
        takes half the time of waiting twice, and is safe because the file is not read before the index names it.
        """
        if self._durable:
            *folders, name = Path(path).parts
            for depth in range(len(folders), -1, -1):
                folder = open_beneath(self.descriptor, folders[:depth])
                try:
                    if depth == len(folders):
                        _wait_for(name, folder)
                    os.fsync(folder)
                finally:
                    os.close(folder)

    def remove(self) -> None:
        """Remove the folder with its directories; raises `OSError` if a file is left in one of them."""
        above = open_beneath(self._trusted, self._parts[:-1])
        try:
            remove_empty(above, self._parts[-1])
        finally:
            os.close(above)

    def require_space(self, size: int, reserve: int) -> None:
        """Raise `StorageFull` if so many bytes more would leave less than the reserve free."""
        status = os.statvfs(self.descriptor)
        free = status.f_bavail * status.f_frsize
        if free < size + _SLACK + reserve:
            raise StorageFull(
                f"the disk of {self.path} has {free:,} bytes left, of which {reserve:,} are kept free:"
                " nothing more is off-loaded until there is room"
            )

    def _lock(self) -> None:
        while True:
            _make_private(self._trusted)
            descriptor = self.descriptor = open_own_folder(self._trusted, self._parts, mode=0o700)
            self._release = weakref.finalize(self, os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._release()
                raise Conflict(f"the context {self.path.name!r} is in use by another agent") from None
            except OSError:  # this file system has no locks
                return
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                    return
            self._release()  # the folder was removed meanwhile: create it again

    def _rebuild(self) -> Index:
        """Build the index from the files, so that it is correct after any crash; writes it if it has changed."""
        known = self._known()
        self.index = rebuilt(self.handle, known, self._put_aside)
        if lost := [record for record in known if record.item_id not in self.index.records]:
            names = ", ".join(self._put_aside(record.path or "") for record in lost)
            self._warn(f"off-loaded results in {self.path} are missing or damaged, and lost: {names}")
        if [*self.index] != [*known]:
            with suppress(OSError):  # a full disk: the next process builds the same index
                self.save()
        return self.index

    def _known(self) -> Index:
        """Read the stored index. One that is damaged is replaced; what is no file of the runtime is put aside."""
        problem = f"{INDEX} in {self.path} is damaged: it is made again from the files of the items"
        try:
            os.close(os.open(INDEX, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.descriptor))
            return decoded(self.handle.read_binary(f"/{INDEX}"))
        except FileNotFoundError:
            return Index()
        except Unreadable:
            self._warn(problem)
        except (FileSystemError, OSError):
            self._warn(f"{problem}, and kept as {self._put_aside(INDEX)}")
        return Index()

    def _put_aside(self, path: str) -> str:
        """Rename a file that cannot be used; return the path that it has now."""
        *folders, name = path.split("/")
        with suppress(OSError):
            folder = open_beneath(self.descriptor, folders)
            try:
                return "/".join([*folders, put_aside(folder, name)])
            finally:
                os.close(folder)
        return path


def _wait_for(name: str, directory: int) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise failures of the disk as `StorageFull` or `Unavailable`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"the disk of {path} is full: nothing more is off-loaded until there is room") from None
        raise Unavailable(f"{path} cannot be written: {error.strerror or error}") from None
    except FileSystemError as error:
        raise Unavailable(f"{path} cannot be written: {error}") from None


def _make_private(folder: Path) -> None:
    """Create a folder, and missing ones above it, for its owner only."""
    for missing in [*(parent for parent in reversed(folder.parents) if not parent.exists()), folder]:
        missing.mkdir(mode=0o700, exist_ok=True)


# -- the store --------------------------------------------------------------------------------------------------------

DEFAULT_ROOT = Path("~/.agent/context")
RESERVE = 64 * 1024 * 1024
"""Free bytes that off-loading leaves on the disk."""


@dataclass(frozen=True, slots=True)
class Offloaded:
    """Result of off-loading: by item id the records of what is on disk now, and why the rest was refused.

    `contents` are the texts as written, without secrets.
    """

    records: Mapping[str, Record] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)
    refused: CfsError | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """An item that was read back. If it is `redacted`, secrets are missing from it."""

    record: Record
    message: Message

    @property
    def redacted(self) -> bool:
        """Whether secrets were taken out before it was written."""
        return bool(self.record.redactions)


class ContextFileSystem:
    """Stores the off-loaded items of one session. One object at a time can have a session open; threads may share it.

    Nothing is created on disk before the first item is off-loaded.

    - `root` is the folder of all sessions, `~/.agent/context` unless given.
    - `shown_as` replaces the root in the paths that the model sees, for file tools with paths of their own.
    - `durable` waits for the disk. Without it a crash of the machine (not of the process) can lose the last items.
    - `reserve` is the number of bytes that stay free on the disk.
    - `warn` gets a sentence if files of the session were damaged.
    - `trusted` is a directory above the folder that others (an agent's commands) cannot replace; no link below it is
      followed. It is the root unless given.

    What touches the disk raises `Conflict` if another object has the session open, and `Unavailable` or `StorageFull`
    if the disk refuses; only `offload` reports the last two in its result.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        *,
        shown_as: str | None = None,
        trusted: Path | None = None,
        durable: bool = True,
        reserve: int = RESERVE,
        warn: Callable[[str], None] = _log.warning,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.root = Path(root if root is not None else DEFAULT_ROOT).expanduser().absolute()
        self.session_id = valid_session_id(session_id if session_id is not None else new_session_id(now()))
        self.path = self.root / self.session_id
        self.shown = f"{str(self.root) if shown_as is None else shown_as.rstrip('/')}/{self.session_id}"
        self.now = now
        self._trusted = self.root if trusted is None else trusted.absolute()
        self._durable = durable
        self._reserve = reserve
        self._warn = warn
        self._folder: Folder | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the session, so that others can open it; a lost object closes by itself."""
        with self._lock:
            if self._folder is not None:
                self._folder.close()
            self._folder = None

    def _open(self) -> Folder:
        if self._folder is None:
            self._folder = Folder(self.path, self._trusted, durable=self._durable, warn=self._warn)
        return self._folder

    def _look(self) -> Folder | None:
        """Open the folder if it exists."""
        return self._open() if self._folder is not None or self.path.is_dir() else None

    # -- writing --------------------------------------------------------------------------------------------------

    def offload(self, items: Iterable[ContextItem], summaries: Mapping[str, str] | None = None) -> Offloaded:
        """Write items that are not on disk yet, then the index once; return which are on disk now.

        Items that were off-loaded or destroyed already have no content of their own and are not written. `summaries`
        has a line for each id (O7). A disk that is full or cannot be written raises nothing: `refused` is the reason
        why the remaining items were not written.
        """
        records: dict[str, Record] = {}
        contents: dict[str, str] = {}
        replaced: list[Record] = []
        refused: CfsError | None = None
        with self._lock:
            try:
                with translated_errors(self.path):
                    folder = self._open()
                    for item in items:
                        known = folder.index.records.get(item.item_id)
                        if not (item.offloaded or item.destroyed):
                            document = Document.of(item, (summaries or {}).get(item.item_id, ""), self.now())
                            if known is None or known.digest != document.digest:
                                replaced += [known] if known else []
                                known = folder.index.records[item.item_id] = self._write(folder, document)
                            contents[item.item_id] = document.content
                        if known is not None:
                            records[item.item_id] = known
            except (StorageFull, Unavailable) as error:
                refused = error
                self.close()  # if the folder was removed, the next call creates it again
            offloaded = Offloaded(records, contents, refused)
            return self._settle(offloaded, replaced) if contents else offloaded

    def _settle(self, offloaded: Offloaded, replaced: list[Record]) -> Offloaded:
        """Write the index; if that fails, nothing counts as off-loaded."""
        try:
            with translated_errors(self.path):
                folder = self._open()
                folder.save(wait=False)
                for record in replaced:
                    remove_files(folder.handle, record)
        except (StorageFull, Unavailable) as error:
            self.close()  # the next call reads the state from the disk
            return Offloaded(refused=error)
        return offloaded

    def _write(self, folder: Folder, document: Document) -> Record:
        data, text = document.encoded(), document.text()
        path = distinct_name(_stem(document), document.item_id, folder.index.stems()) + ".json"
        folder.require_space(len(data) + len(text), self._reserve)
        record = document.record(path, len(data) + len(text))
        try:
            folder.hasty.write(f"/{path}", data)
            folder.hasty.write(f"/{record.text_path}", text)
            folder.settle(path)
        except BaseException:
            remove_files(folder.handle, record)  # or it would be in the next index
            raise
        return record

    def compress(self) -> int:
        """Compress large items where that halves them (O7); return the number of bytes freed.

        This is not done at off-loading, when the model waits: it takes longer than writing.
        """
        with self._lock, translated_errors(self.path):
            if (folder := self._look()) is None:
                return 0
            packed = [new for record in folder.index if (new := _packed(folder, record)) is not None]
            before = [folder.index.records[record.item_id] for record in packed]
            folder.index.records.update({record.item_id: record for record in packed})
            if packed:
                folder.save()
            for record in before:
                folder.handle.delete(f"/{record.path}")
            return sum(old.stored - new.stored for old, new in zip(before, packed, strict=True))

    def remove(self, item_ids: Iterable[str], because: str) -> int:
        """Remove items from the disk; the index remembers them. Return the number of bytes freed."""
        with self._lock, translated_errors(self.path):
            if (folder := self._look()) is None:
                return 0
            doomed = [record for item_id in item_ids if (record := folder.index.records.get(item_id)) is not None]
            if doomed:
                folder.index.forget(record.gone(self.now(), because) for record in doomed)
                folder.save()
                for record in doomed:
                    remove_files(folder.handle, record)
            return sum(record.stored for record in doomed)

    def discard(self) -> None:
        """Remove the session from the disk; raises `Unavailable` if it holds files of others."""
        with self._lock, translated_errors(self.path):
            if (folder := self._look()) is not None:
                for record in folder.index:
                    remove_files(folder.handle, record)
                with suppress(FileSystemError):  # there is none
                    folder.handle.delete(f"/{INDEX}")
                folder.remove()
                self.close()

    # -- reading --------------------------------------------------------------------------------------------------

    def restore(self, item_id: str) -> Restored:
        """Read an item back. Raises `NotFound` if it was never off-loaded here, or was removed."""
        with self._lock:
            folder = self._look()
            record = folder.index.records.get(item_id) if folder else None
            if folder is None or record is None:
                raise NotFound(f"no item {item_id!r} is off-loaded in {self.session_id}")
            try:
                return Restored(record, read_document(folder.handle.read_binary(f"/{record.path}")).message)
            except (Unreadable, FileSystemError) as error:
                raise NotFound(f"the file of {item_id!r} cannot be read: {error}") from None

    def history(self) -> list[Record]:
        """Return the records of all items ever off-loaded, oldest first; removed ones have no path."""
        with self._lock:
            folder = self._look()
            records = [*folder.index.removed, *folder.index] if folder else []
            return sorted(records, key=lambda record: record.time)

    def open(self) -> None:
        """Open the session now, if it exists, so that `warn` hears of damaged files before they are needed."""
        with self._lock:
            self._look()

    def path_of(self, record: Record) -> str:
        """Return the path by which the model reads an item's content."""
        return f"{self.shown}/{record.text_path}"

    @property
    def index_path(self) -> str:
        """The path by which the model reads the index."""
        return f"{self.shown}/{INDEX}"

    def reader(self) -> tuple[DiskFileSystem, Grant]:
        """Return a file system with the paths that placeholders name, and the grant to read it.

        Raises `InvalidPathError` if those are not logical paths (for example, a root with a `*` in its name).
        """
        prefix = self.shown + "/"
        with self._lock:
            files = DiskFileSystem(self._open().descriptor, prefix=prefix)
        return files, Grant(prefix=prefix, ops={"list", "file", "read"})

    def check_integrity(self) -> list[str]:
        """Compare the index with the files; every line is a violation."""
        with self._lock:
            folder = self._look()
            return check_integrity(folder.index, folder.handle) if folder else []


def _packed(folder: Folder, record: Record) -> Record | None:
    """Write the compressed file of an item beside the plain one; return None if it does not pay."""
    path = record.path or ""
    if not path.endswith(".json") or record.stored <= GZIP_ABOVE:
        return None
    try:
        data = folder.handle.read_binary(f"/{path}")
    except FileSystemError:
        return None  # the next open will notice it
    smaller = compressed(data)
    if smaller is None:
        return None
    folder.handle.write(f"/{path}.gz", smaller)
    return replace(record, path=f"{path}.gz", stored=record.stored - len(data) + len(smaller))


def _stem(document: Document) -> str:
    """Make the path of an item's files, without an ending."""
    name = document.item_id
    kind: str = document.item_type
    if document.item_type == "tool_result":
        kind += "/" + safe_name(str(document.metadata.get("name") or ""), "unknown")
        name = str(document.metadata.get("tool_call_id") or "")
    return f"{kind}/{safe_name(name, document.item_id)}"
