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
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cfs.errors import Unavailable
from cfs.wire import ToolCall
from cfs_agents.base.disk import (
    AppendedFile,
    disk_errors,
    encoded_line,
    replace_file,
)
from cfs_agents.base.events import Finished
from cfs_agents.base.logs import get_logger
from cfs_agents.base.repairs import Warn, usable_file, without_damage
from cfs_agents.context import ContextItem, Conversation, ConversationChange
from cfs_agents.tools import failure_of
from cfs_agents.tree.operations import Operation
from cfs_agents.tree.recorder import ResumePoint

_log = get_logger(__name__)


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
    context: Conversation = field(default_factory=Conversation)
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

    @property
    def resume_point(self) -> ResumePoint:
        """Where the agent goes on."""
        last = self.last_call
        failed = failure_of(last.operation, last.params, last.outcome, ok=last.success) if last else ""
        return ResumePoint(self.context, self.begun, self.broken, failed)


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
        with disk_errors(path):
            repairs: list[str] = []
            self._path = usable_file(path, repairs.append)
            problem = "is empty" if self._path.exists() else "is missing"
            self._file = AppendedFile(self._path)
            self._torn = self._file.torn
            if self._torn:
                repairs.append(f"the last line of {path.name} in {path.parent} was incomplete: it is left out")
            if self._file.size == 0:
                if begun:
                    if not repairs:
                        repairs.append(f"{path.name} in {path.parent} {problem}: the conversation begins anew")
                    self._generation = int(time.time())  # above that of the log that was lost
                self._file.append(_head(self._generation), wait=False)
            self._lines = self._file.content().splitlines(keepends=True)
        for sentence in repairs:
            warn(sentence)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._file.close()

    def read(self) -> RunState:
        """Return what is written. Lines from the first damaged one on are put aside, and `warn` says so.

        Calls whose result may be lost with them, or with a last line that was cut off, count as begun. Raises
        `Unavailable` for a log of a later version.
        """
        with self._lock, disk_errors(self._path):
            state, lines, damage = self._read()
            if damage:
                problem = f"cannot be read from line {len(lines) + 1} on ({damage}): the agent goes on from before it"
                self._reopen(without_damage(self._path, b"".join(lines), problem, self._warn))
            self._lines, self._generation = lines, state.generation
        lost = state.context.open_calls if damage or self._torn else ()
        if calls := [call for call in lost if call.id not in state.begun]:
            self.intents(calls)
            state.begun.update(call.id for call in calls)
        return state

    def _read(self) -> tuple[RunState, list[bytes], str]:
        """Read up to the first damaged line; return the state, the good lines, and what is wrong with the next one."""
        state, lines = RunState(), list[bytes]()
        for number, line in enumerate(self._file.content().splitlines(keepends=True), 1):
            before = replace(state, begun=set(state.begun))
            try:
                _apply(state, json.loads(line), number)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                return before, lines, type(error).__name__
            lines.append(line)
        return state, lines, ""

    def item(self, item: ContextItem, broken: Mapping[str, str]) -> None:
        """Write a message down; an answer is on the disk with the end, calls are with the intent of the first."""
        self._append({"kind": "item", "item": item.dump(), "broken": dict(broken)})

    def change(self, change: ConversationChange) -> None:
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
            self._reopen(path)
            self._lines, self._generation = lines, self._generation + 1

    def position(self) -> str:
        """Return the position of the next line, among all the run logs of this agent."""
        with self._lock:
            return f"{self._generation}.{len(self._lines) + 1}"

    def _append(self, *records: Mapping[str, Any], wait: bool = False) -> None:
        lines = [encoded_line(record) for record in records]
        with self._lock, disk_errors(self._path):
            if not self._file.intact:
                problem = "was changed by another program while the agent had it open: it is written again"
                self._reopen(without_damage(self._path, b"".join(self._lines), problem, self._warn))
            try:
                self._file.append(*records, wait=wait)
            except PermissionError:
                path = usable_file(self._path, self._warn)
                replace_file(path, b"".join([*self._lines, *lines]))
                self._reopen(path)
            self._lines += lines

    def _reopen(self, path: Path) -> None:
        """Go on with the file that has just been written at this path."""
        self._file.close()
        self._path, self._file = path, AppendedFile(path)


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
        state.context = ConversationChange.load(record).applied(state.context)
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
