"""The folder of one agent of a tree: its messages and the state of its work (B3). Methods block.

Each step is a line that is appended to `steps.jsonl` and flushed to the disk before anything acts on it. When a task
ends, and when the steps become long, `messages.json` and `session_status.json` are replaced, each atomically, and the
steps begin anew. The status names the generation of the steps that belong to it, so a kill in between repeats nothing.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from cfs.wire import Message
from cfs_agents.base.disk import AppendedFile, disk_errors, encoded_line, replace_file, sync_folder
from cfs_agents.base.logs import get_logger
from cfs_agents.base.repairs import Warn, usable_file, without_damage

MESSAGES = "messages.json"
STATUS = "session_status.json"
STEPS = "steps.jsonl"
WORKSPACE_FOLDER = "agent_workspace"
_NEW = ".new"
"""The end of the name of a draft, which a kill may leave behind."""
_MAX_STEPS_BYTES = 1 << 20
_ITEMS = "items"
"""The field of the status that grows with the conversation. Of it, a step has only what changed."""
_GENERATION = "generation"
_HEADED = "steps_have_head"

_log = get_logger(__name__)
_Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the folder of a sub-agent holds.

    `status` is None if it is lost. `losses` names the files that are damaged. `torn`: the last step was cut off.
    """

    status: dict[str, Any] | None
    messages: list[Message]
    losses: tuple[str, ...] = ()
    torn: bool = False


class SessionFolder:
    """The folder of one agent of a tree. `link` is where the link to the shared files leads; the root has none.

    `warn` gets a line for each repair. Methods raise `StorageFull` and `DiskError`.
    """

    def __init__(self, path: Path, *, link: Path | None, warn: Warn = _log.warning) -> None:
        self.path = path
        self.warn = warn
        self._link = link
        self._generation = 0
        self._headed = False
        """Whether the steps begin with a line that says their generation, so that an empty file is a damaged one."""
        self._losses: list[str] = []
        self._torn = False
        self._messages: list[Message] | None = None
        self._rows: list[_Row] = []
        self._status: dict[str, Any] = {}
        self._steps: AppendedFile | None = None

    @property
    def has_own_files(self) -> bool:
        """Whether the agent works in a copy of the files, and not in those that all share."""
        return (
            self._link is not None
            and (self.path / WORKSPACE_FOLDER).is_dir()
            and not (self.path / WORKSPACE_FOLDER).is_symlink()
        )

    def save(
        self, status: Mapping[str, Any], messages: Sequence[Message], *, rest: bool = False, wait: bool = True
    ) -> None:
        """Store the state: what has changed is appended to the steps; at `rest` both files are replaced.

        `status` consists of JSON values. Without `wait` the disk has the step only with the next one, so it survives a
        kill of this process, but not a power loss. If others have damaged the files meanwhile, all is written again.
        """
        with disk_errors(self.path):
            new, steps = self._rows_of(messages), self._steps
            if rest or self._messages is None or steps is None or not steps.intact or steps.size > _MAX_STEPS_BYTES:
                self._replace(status, new)
            elif step := _step(self._rows, new, self._status, status):
                try:
                    steps.append({_GENERATION: self._generation, **step}, wait=wait)
                except PermissionError:
                    self._replace(status, new)
            self._messages, self._rows, self._status = list(messages), new, dict(status)

    def _rows_of(self, messages: Sequence[Message]) -> list[_Row]:
        """Return the messages as JSON values; those that are stored already are not converted again."""
        stored = self._messages or []
        pairs = enumerate(zip(messages, stored, strict=False))
        same = next((number for number, (one, other) in pairs if one is not other), min(len(messages), len(stored)))
        new = messages[same:]
        return [*self._rows[:same], *(message.model_dump(mode="json", exclude_defaults=True) for message in new)]

    def _open_steps(self) -> AppendedFile:
        """Open the steps, unless they are open. What others have made of them meanwhile is put aside."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self._link is not None:
            with suppress(FileExistsError):
                (self.path / WORKSPACE_FOLDER).symlink_to(self._link)
        repairs: list[str] = []
        path, steps = usable_file(self.path / STEPS, repairs.append), self._steps
        if steps is not None and not steps.intact and not repairs:
            problem = "was changed by another program while its agent had it open: it is written again"
            path = without_damage(path, b"", problem, repairs.append)
        for sentence in repairs:
            self.warn(sentence)
        if steps is None or repairs:
            steps = self._steps = AppendedFile(path)
            sync_folder(self.path)
            sync_folder(self.path.parent)
        return steps

    def _replace(self, status: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
        """Write the messages, then the status with the next generation, to which no step belongs yet."""
        steps = self._open_steps()
        lines = [json.dumps(message, ensure_ascii=False) for message in messages]
        _replace(usable_file(self.path / MESSAGES, self.warn), "[\n" + ",\n".join(lines) + "\n]\n")
        self._generation += 1
        if not steps.size:  # the status says that there is a head: a kill may come before the restart below
            steps.append({_GENERATION: self._generation})
        private = {_GENERATION: self._generation, _HEADED: True}
        text = json.dumps({**status, **private}, ensure_ascii=False) + "\n"
        _replace(usable_file(self.path / STATUS, self.warn), text)
        steps.restart({_GENERATION: self._generation})

    def put_messages_aside(self, problem: str) -> None:
        """Put aside a conversation that does not go on, for which `problem` is the reason; `save` writes all files."""
        with disk_errors(self.path):
            if os.path.lexists(self.path / MESSAGES):
                without_damage(self.path / MESSAGES, None, problem, self.warn, what="conversation")
        self._messages = None

    def load(self, check: Callable[[_Row], object] = dict) -> StoredState | None:
        """Read the status and the messages, as far as they are not damaged; None if nothing was saved.

        `check` raises `ValueError` for a status that is none. What is damaged is put aside, and `warn` says so.
        """
        with disk_errors(self.path):
            for left in self.path.glob(f"*{_NEW}"):
                left.unlink(missing_ok=True)
            if self._is_empty():
                return None
            self._losses, self._torn = [], False
            status = self._load_status(check)
            rows = self._load_messages()
            status = self._apply_steps(status, rows, check)
        if status is not None and MESSAGES in self._losses:
            status |= {_ITEMS: [], "messages": 0}  # their places are those of other messages
        messages = [Message(**row) for row in rows]
        self._messages, self._rows, self._status = messages, rows, dict(status or {})
        return StoredState(status, messages, tuple(self._losses), self._torn)

    def _is_empty(self) -> bool:
        """Whether nothing was stored before a kill: the status is the last of the files that are made."""
        if os.path.lexists(self.path / STATUS):
            return False
        without_content = {MESSAGES: len(_NO_MESSAGES), STEPS: len(encoded_line({_GENERATION: 1}))}
        return all(
            path.lstat().st_size <= size
            for name, size in without_content.items()
            if os.path.lexists(path := self.path / name)
        )

    def _lose(self, name: str, sentence: str) -> None:
        if name not in self._losses:
            self._losses.append(name)
            self.warn(sentence)

    def _usable(self, name: str, *, required: bool) -> Path | None:
        """Return the path of a file that can be read; None if there is none."""
        repairs: list[str] = []
        path = usable_file(self.path / name, repairs.append)
        if path.exists():
            for sentence in repairs:
                self.warn(sentence)
            return path
        if required and not repairs:
            repairs.append(f"{name} in {self.path} is missing")
        for sentence in repairs:
            self._lose(name, sentence)
        return None

    def _load_status(self, check: Callable[[_Row], object]) -> _Row | None:
        path = self._usable(STATUS, required=True)
        if path is None:
            return None
        try:
            status = dict(json.loads(path.read_bytes()))
            generation, headed = int(status.pop(_GENERATION, 0)), bool(status.pop(_HEADED, False))
            check(status)
        except (ValueError, TypeError, RecursionError):
            problem = "cannot be read: what the agent was doing is lost"
            without_damage(path, None, problem, partial(self._lose, STATUS))
            return None
        self._generation, self._headed = generation, headed
        return status

    def _load_messages(self) -> list[_Row]:
        path = self._usable(MESSAGES, required=True)
        if path is None:
            return []
        data = path.read_bytes()
        try:
            return _checked_rows(json.loads(data))
        except (ValueError, TypeError, RecursionError):
            rows = _whole_rows(data)
            problem = f"cannot be read after its first {len(rows)} messages: the agent goes on from there"
            without_damage(path, None, problem, partial(self._lose, MESSAGES))
            return rows

    def _apply_steps(self, status: _Row | None, rows: list[_Row], check: Callable[[_Row], object]) -> _Row | None:
        """Bring both up to the last whole step; a line that a kill left in pieces had no effect."""
        path = self._usable(STEPS, required=self._headed)
        if path is None:
            return status
        data = path.read_bytes()
        if not data and self._headed:
            self._lose(STEPS, f"{STEPS} in {self.path} is empty: the last steps of the agent are lost")
        good, new = bytearray(), dict(status or {})
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            try:
                step = json.loads(line)
                if status is None and not good:
                    self._generation = step[_GENERATION]
                if step[_GENERATION] == self._generation:
                    _apply(step, new, rows, whole=MESSAGES not in self._losses)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
                if len(good) + len(line) == len(data) and not line.endswith(b"\n") and b"\0" not in line:
                    self._torn = True
                    self.warn(f"the last line of {path.name} in {self.path} was incomplete: it is left out")
                else:
                    problem = f"cannot be read from line {number} on: later steps of the agent are lost"
                    without_damage(path, bytes(good), problem, partial(self._lose, STEPS))
                break
            good += line
        if status is None:
            return None
        try:
            check(new)
        except ValueError:
            self._lose(STEPS, f"{STEPS} in {self.path} holds no steps of its agent: they are left out")
            return status
        return new


_NO_MESSAGES = "[\n\n]\n"


def _checked_rows(rows: Any) -> list[_Row]:
    """Return messages as JSON values; raises `ValueError` or `TypeError`."""
    for row in rows:
        Message(**row)
    return list(rows)


def _whole_rows(data: bytes) -> list[_Row]:
    """Return the messages before the damage: each has a line of its own."""
    rows: list[_Row] = []
    for line in data.splitlines()[1:]:
        try:
            rows += _checked_rows([json.loads(line.removesuffix(b","))])
        except (ValueError, TypeError, RecursionError):
            break
    return rows


def _step(old: Sequence[_Row], new: Sequence[_Row], before: Mapping[str, Any], now: Mapping[str, Any]) -> _Row:
    """Return what has changed in messages and status; empty for nothing."""
    step: _Row = {}
    if (same := _equal_at_first(old, new)) < max(len(old), len(new)):
        step["messages"] = {"after": same, "new": new[same:]}
    items, were = now.get(_ITEMS, ()), before.get(_ITEMS, ())
    if (same := _equal_at_first(were, items)) < max(len(were), len(items)):
        step[_ITEMS] = {"after": same, "new": items[same:]}
    changed = {key: value for key, value in now.items() if key not in before or before[key] != value}
    changed.pop(_ITEMS, None)
    if changed:
        step["status"] = changed
    return step


def _apply(step: Mapping[str, Any], status: _Row, rows: list[_Row], *, whole: bool) -> None:
    """Apply a step, or only its part of the status if the messages before it are not `whole`."""
    if whole and (messages := step.get("messages")) is not None:
        if messages["after"] > len(rows):
            raise IndexError
        rows[messages["after"] :] = _checked_rows(messages["new"])
    if whole and (items := step.get(_ITEMS)) is not None:
        status[_ITEMS] = [*status.get(_ITEMS, ())[: items["after"]], *items["new"]]
    status.update(step.get("status", {}))


def _equal_at_first(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Count the entries at the beginning that are equal."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left is not right and left != right:
            return index
    return min(len(one), len(other))


def _replace(path: Path, text: str) -> None:
    replace_file(path, text.encode("utf-8", "replace"))
