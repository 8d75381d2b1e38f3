"""The run log: the running conversation on disk, and of each call whether it began and its result (A1, A7).

The file is `journal.jsonl`, with a line of JSON for each step, written before the agent acts on it, so a killed process
loses none. Before a call runs and at the end of a task the agent waits for the disk (fsync).

    {"kind": "head", "version": 1, "generation": 3}       first line; the generation counts the syncs
    {"kind": "item", "item": {...}, "broken": {...}}      a message; calls that could not be read, by their ids
    {"kind": "change", "removed": [...], ...}             items were off-loaded, left, or gave way to a summary
    {"kind": "intent", "call": {...}}                     a call of the last reply is about to be run
    {"kind": "result", "item": {...}, "operation": {...}} it was run, and this came of it
    {"kind": "end", "reason": "answered", "detail": ""}   the task is over, or was given up
    {"kind": "sync", "window": ..., "archive": ..., "item": {...}, ...}   the window is to be replaced by this one

After a kill the log says it all: a call with an intent and no result may or may not have happened, a call with a result
has happened. A `sync` is repeated from its beginning until a new log replaces the one that holds it; its message is the
first of the new log. Conversations may hold secrets, so only the owner can read the file.

The module also holds the operation log, which is for people, and the checks of the disk.
"""

import json
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any
from uuid import uuid4

from cfs.errors import Unavailable
from cfs.wire import ToolCall
from cfs_agents.base.disk import (
    Warn,
    cut_torn_line,
    disk_errors,
    encoded_line,
    is_intact,
    open_file,
    replace_file,
    usable_file,
    without_damage,
    write_all,
)
from cfs_agents.base.events import Finished
from cfs_agents.base.logs import get_logger
from cfs_agents.context import Change, Context, ContextItem
from cfs_agents.context.redaction import redact, redact_json
from cfs_agents.tools.registry import shortened, text_of

_log = get_logger(__name__)


# The operation log: what an agent did, a line of JSON each (A6).
#
# `logs/operations_YYYYMMDD.jsonl` has for each operation `timestamp`, `operation`, `params`, `result` or `error`,
# `success`, and an `id` that is its place in the run log. It is for people and other programs; the agent itself
# reads its run log. Secrets are taken out, long texts shortened, and a line is written in one piece.

LONGEST_TEXT = 2_000
_LONGEST_LINE = 64 * 1024
_MOST_MEMBERS = 50
_DEEPEST = 6
_TAIL = 1 << 20
_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: what was done with which parameters, and what came of it; `id` tells it from all others."""

    id: str
    operation: str
    params: Mapping[str, Any]
    outcome: str
    success: bool


class OperationLogger:
    """Appends operations to the file of the day in a folder, a line of JSON each; threads may share it.

    Secrets are taken out, long texts are shortened. `warn` gets a sentence for each repair. Raises `StorageFull` and
    `Unavailable`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        warn: Warn = _log.warning,
    ) -> None:
        self._folder = Path(folder)
        self._now = now
        self._warn = warn
        self._lock = threading.Lock()
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._newest_ids = deque(self._repaired(), maxlen=_REMEMBERED)

    def __contains__(self, operation_id: object) -> bool:
        """Whether the operation is among the last ones of the log."""
        return operation_id in self._newest_ids

    def log_operation(
        self, operation: str, params: Mapping[str, Any], result: Any = "", error: str | None = None
    ) -> None:
        """Append an operation with its parameters and its result, or with the error that it failed with.

        A `result` that is no text is written as JSON.
        """
        outcome = text_of(result) if error is None else error
        self.write(Operation(uuid4().hex, operation, params, outcome, success=error is None))

    def write(self, operation: Operation) -> None:
        """Append an operation of the run log, which has an id."""
        now = self._now()
        line = _line(operation, now)
        path = self._folder / f"operations_{now:%Y%m%d}.jsonl"
        with self._lock, disk_errors(path):
            _append(usable_file(path, self._warn), line)
            self._newest_ids.append(operation.id)

    def _repaired(self) -> list[str]:
        """Put aside a newest file with damaged lines; return the ids of the newest lines.

        A last line that a crash left in pieces is cut off.
        """
        logs = sorted(self._folder.glob("operations_*.jsonl"))
        if not logs:
            return []
        path = usable_file(logs[-1], self._warn)
        if not path.exists():
            return []
        size = path.stat().st_size
        file = open_file(path)
        try:
            cut_torn_line(file)
            start = max(0, size - _TAIL)
            tail = os.pread(file, _TAIL, start)
        finally:
            os.close(file)
        lines = tail.splitlines()[1 if start else 0 :]  # the reading may begin within a line
        ids = [_id_in(line) for line in lines]
        if None in ids or not size:
            good = [line for line in path.read_bytes().splitlines(keepends=True) if _id_in(line) is not None]
            problem = "is empty" if not size else "has lines that cannot be read: they are left out"
            without_damage(path, b"".join(good), problem, self._warn)
            if not good:
                path.unlink()
        return [each for each in ids if each is not None]


def _id_in(line: bytes) -> str | None:
    """Return the id in a line of the log; None for a line that is none."""
    try:
        return str(json.loads(line)["id"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _append(path: Path, line: bytes) -> None:
    """Append a line, or nothing of it. A line before it that has no end, as somebody has cut the file, stays apart."""
    file = open_file(path)
    try:
        size = os.fstat(file).st_size
        apart = b"\n" if size and os.pread(file, 1, size - 1) != b"\n" else b""
        write_all(file, apart + line, wait=False)
    finally:
        os.close(file)


def _line(operation: Operation, now: datetime) -> bytes:
    params = _short(redact_json(dict(operation.params)).value)
    if len(json.dumps(params)) > _LONGEST_LINE:
        params = {"shortened": shortened(json.dumps(params, ensure_ascii=False), LONGEST_TEXT)}
    record = {
        "timestamp": now.isoformat(timespec="milliseconds"),
        "id": operation.id,
        "operation": operation.operation,
        "params": params,
        ("result" if operation.success else "error"): _short(redact_json(operation.outcome).value),
        "success": operation.success,
    }
    return json.dumps(record).encode() + b"\n"


def _short(value: Any, depth: int = 0) -> Any:
    """Shorten what is long in a value of JSON, so that it stays one."""
    if isinstance(value, str):
        return shortened(value, LONGEST_TEXT)
    if isinstance(value, list | tuple | dict) and depth == _DEEPEST:
        return f"[{len(value)} members]"
    if isinstance(value, dict):
        kept = dict(list(value.items())[:_MOST_MEMBERS])
        short = {shortened(str(key), 200): _short(each, depth + 1) for key, each in kept.items()}
        return short | ({"...": f"{len(value) - len(kept)} more"} if len(value) > len(kept) else {})
    if isinstance(value, list | tuple):
        more = [f"[... {len(value) - _MOST_MEMBERS} more]"] if len(value) > _MOST_MEMBERS else []
        return [*(_short(each, depth + 1) for each in value[:_MOST_MEMBERS]), *more]
    return value


# The agent's log: what happened to it, with tracebacks, for people who look for a cause.

AGENT_LOG = "agent.log"
_LOG_BYTES = 1 << 20


class AgentLog:
    """Writes lines and tracebacks to `agent.log` in a folder, by a thread of its own, so no task waits for the disk.

    There are two files of at most 1 MiB each. Secrets are taken out. A disk that takes no lines loses them, never a
    task. `warn` gets a sentence for each repair.
    """

    def __init__(self, folder: Path, agent_id: str, warn: Warn = _log.warning) -> None:
        lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with disk_errors(folder):
            path = usable_file(folder / AGENT_LOG, warn)
        file = _LogFile(path, maxBytes=_LOG_BYTES, backupCount=1, delay=True)
        self._logger = logging.Logger(agent_id, logging.INFO)  # noqa: LOG001 - it belongs to this agent alone
        into_queue = QueueHandler(lines)
        into_queue.setFormatter(_Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._logger.addHandler(into_queue)
        self._listener = QueueListener(lines, file)
        self._file = file
        self._listener.start()

    def info(self, text: str) -> None:
        """Log an event."""
        self._logger.info("%s", text)

    def warning(self, text: str) -> None:
        """Log what a person should know."""
        self._logger.warning("%s", text)

    def error(self, text: str, error: BaseException) -> None:
        """Log a failure with its traceback."""
        self._logger.error("%s", text, exc_info=error)

    def close(self) -> None:
        """Write what is left and close the file. Blocks."""
        self._listener.stop()
        self._file.close()


class _Redacting(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record)).text


class _LogFile(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Lose the line: the disk does not take it."""


# The run log itself.

FILE = "journal.jsonl"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Sync:
    """A change of windows: the new one, where the old one is archived, the message to go on with, and its log line."""

    window: str
    archive: str
    item: ContextItem
    operation: Operation


@dataclass(slots=True)
class RunState:
    """What a run log says: the conversation, which of its open calls were begun, and how the last task ended.

    `end` is None while a task is under way, or before the first. `last_call` is the last one of the task that has come
    to its result. `sync` is a change that may not be complete.
    """

    generation: int = 0
    context: Context = field(default_factory=Context)
    begun: set[str] = field(default_factory=set)
    broken: dict[str, str] = field(default_factory=dict)
    end: Finished | None = None
    last: Operation | None = None
    last_call: Operation | None = None
    sync: Sync | None = None

    @property
    def unfinished(self) -> bool:
        """Whether there is a task that no answer has ended."""
        return len(self.context) > 0 and (self.end is None or self.end.reason not in ("answered", "unverified"))


class RunLog:
    """Appends to the run log of an agent, and reads it; threads may share it.

    `warn` gets a sentence for each repair. An empty or missing log is one if the agent has `begun` a task before. The
    lines stay in memory, so what others do to the file in the meantime loses nothing.

    Raises `StorageFull` and `Unavailable`; what could not be written whole is not there at all.
    """

    def __init__(self, path: Path, warn: Warn = _log.warning, *, begun: bool = False) -> None:
        self._warn = warn
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._generation = 0
        self._file = -1
        with disk_errors(path):
            repairs: list[str] = []
            self._path = usable_file(path, repairs.append)
            problem = "is empty" if self._path.exists() else "is missing"
            self._open()
            self._torn = cut_torn_line(self._file)
            if self._torn:
                repairs.append(f"the last line of {path.name} in {path.parent} was incomplete: it is left out")
            if os.fstat(self._file).st_size == 0:
                if begun:
                    if not repairs:
                        repairs.append(f"{path.name} in {path.parent} {problem}: the conversation begins anew")
                    self._generation = int(time.time())  # above that of the log that was lost
                write_all(self._file, encoded_line(_head(self._generation)), wait=False)
            self._lines = self._content().splitlines(keepends=True)
        for sentence in repairs:
            warn(sentence)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def read(self) -> RunState:
        """Return what is written. Lines from the first damaged one on are put aside, and `warn` says so.

        Calls whose result may be lost with them, or with a last line that was cut off, count as begun. Raises
        `Unavailable` for a log of a later version.
        """
        with self._lock, disk_errors(self._path):
            state, lines, damage = self._read()
            if damage:
                problem = f"cannot be read from line {len(lines) + 1} on ({damage}): the agent goes on from before it"
                self._rewrite(without_damage(self._path, b"".join(lines), problem, self._warn))
            self._lines, self._generation = lines, state.generation
        lost = state.context.open_calls if damage or self._torn else ()
        if calls := [call for call in lost if call.id not in state.begun]:
            self.intents(calls)
            state.begun.update(call.id for call in calls)
        return state

    def _read(self) -> tuple[RunState, list[bytes], str]:
        """Read up to the first damaged line; return the state, the good lines, and what is wrong with the next one."""
        state, lines = RunState(), list[bytes]()
        for number, line in enumerate(self._content().splitlines(keepends=True), 1):
            before = replace(state, begun=set(state.begun))
            try:
                _apply(state, json.loads(line), number)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                return before, lines, type(error).__name__
            lines.append(line)
        return state, lines, ""

    # -- writing --------------------------------------------------------------------------------------------------

    def item(self, item: ContextItem, broken: Mapping[str, str]) -> None:
        """Write a message down; an answer is on the disk with the end, calls are with the intent of the first."""
        self._append({"kind": "item", "item": item.dump(), "broken": dict(broken)})

    def change(self, change: Change) -> None:
        """Write down what has become of the conversation; what a crash of the machine loses is done again."""
        self._append({"kind": "change", **change.dump()})

    def intents(self, calls: Sequence[ToolCall]) -> None:
        """Write down that calls are about to be run."""
        self._append(*({"kind": "intent", "call": call.model_dump(mode="json")} for call in calls), wait=True)

    def result(self, item: ContextItem, operation: Operation) -> None:
        """Write down what came of it; a crash of the machine may lose a result that was not acted on."""
        self._append({"kind": "result", "item": item.dump(), "operation": asdict(operation)})

    def end(self, end: Finished) -> None:
        """Write down that the task is over."""
        self._append({"kind": "end", **asdict(end)}, wait=True)

    def sync(self, sync: Sync) -> None:
        """Write down a change of windows; from here on it happens, whatever comes between."""
        self._append(
            {
                "kind": "sync",
                "window": sync.window,
                "archive": sync.archive,
                "item": sync.item.dump(),
                "operation": asdict(sync.operation),
            },
            wait=True,
        )

    def restart(self, *items: ContextItem) -> None:
        """Replace this log by a new one with these messages, in one step."""
        with self._lock, disk_errors(self._path):
            messages = ({"kind": "item", "item": item.dump(), "broken": {}} for item in items)
            lines = [encoded_line(record) for record in (_head(self._generation + 1), *messages)]
            path = usable_file(self._path, self._warn)
            replace_file(path, b"".join(lines))
            self._rewrite(path)
            self._lines, self._generation = lines, self._generation + 1

    def place(self) -> str:
        """Name the place that the next line will have, among all the run logs of this agent."""
        with self._lock:
            return f"{self._generation}.{len(self._lines) + 1}"

    def _append(self, *records: Mapping[str, Any], wait: bool = False) -> None:
        lines = [encoded_line(record) for record in records]
        with self._lock, disk_errors(self._path):
            if not is_intact(self._path, self._file, sum(map(len, self._lines))):
                problem = "was changed by another program while the agent had it open: it is written again"
                self._rewrite(without_damage(self._path, b"".join(self._lines), problem, self._warn))
            try:
                write_all(self._file, b"".join(lines), wait=wait)
            except PermissionError:
                path = usable_file(self._path, self._warn)
                replace_file(path, b"".join([*self._lines, *lines]))
                self._rewrite(path)
            self._lines += lines

    def _open(self) -> None:
        self._file = open_file(self._path)

    def _content(self) -> bytes:
        return os.pread(self._file, os.fstat(self._file).st_size, 0)

    def _rewrite(self, path: Path) -> None:
        """Go on with the file that has just been written at this path."""
        os.close(self._file)
        self._path = path
        self._open()


def _apply(state: RunState, record: Mapping[str, Any], number: int) -> None:
    """Apply one line to a state."""
    kind = record["kind"]
    if kind == "head":
        if record["version"] != VERSION:
            raise Unavailable(
                f"the journal is of version {record['version']!r}, and this program reads version {VERSION}: use a"
                " later one, or move the journal away to go on without it"
            )
        state.generation = record["generation"]
    elif kind == "item":
        item = ContextItem.load(record["item"])
        state.context = (state.context.released() if item.protected else state.context).with_item(item)
        state.begun, state.broken = set(), record["broken"]
        state.end = None
        if item.protected:
            state.last_call = None
    elif kind == "change":
        state.context = Change.load(record).applied(state.context)
    elif kind == "intent":
        state.begun.add(record["call"]["id"])
        state.end = None
    elif kind == "result":
        item = ContextItem.load(record["item"])
        state.context = state.context.with_item(item)
        state.begun.discard(item.message.tool_call_id or "")
        state.end = None
        state.last = state.last_call = Operation(**record["operation"])
    elif kind == "end":
        state.end = Finished(record["reason"], record["detail"])
    elif kind == "sync":
        note, operation = ContextItem.load(record["item"]), Operation(**record["operation"])
        state.sync = Sync(record["window"], record["archive"], note, operation)
    else:
        raise ValueError(f"line {number} is of the kind {kind!r}")


def _head(generation: int) -> dict[str, Any]:
    return {"kind": "head", "version": VERSION, "generation": generation}
