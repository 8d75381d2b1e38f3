"""A tree of agents on disk: one folder for the root and one for each sub-agent (B3). Methods block.

    {workspace_root}/{main_session_id}/
        messages.json           all messages of the root, its calls and their results, in order
        session_status.json     the state of its work
        steps.jsonl             what has changed in both since they were written
        agent_workspace/        the files that all agents share
        ledger.jsonl            the changes of each file, with their agents
        sub_sessions/{agent}/   the same three files, and agent_workspace -> ../../agent_workspace

Each step is a line that is appended to `steps.jsonl` and flushed to the disk before anything acts on it. When a task
ends, and when the steps become long, `messages.json` and `session_status.json` are replaced, each atomically, and the
steps begin anew. The status names the generation of the steps that belong to it, so a kill in between repeats nothing.
"""

import fcntl
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import structlog
from pydantic import ValidationError

from cfs.errors import Conflict, Unavailable
from cfs.wire import Message
from cfs_agents.file_agent.run_log import AppendedFile, disk_errors, replace_file, sync_folder

MESSAGES = "messages.json"
STATUS = "session_status.json"
STEPS = "steps.jsonl"
WORKSPACE_FOLDER = "agent_workspace"
PUBLISHED = "published/files.json"
"""Which versions of files were equal here and on the server."""

SUB_SESSIONS = "sub_sessions"
LEDGER = "ledger.jsonl"
_NEW = ".new"
"""The end of the name of a draft, which a kill may leave behind."""
_MAX_STEPS_BYTES = 1 << 20
_ITEMS = "items"
"""The field of the status that grows with the conversation. Of it, a step has only what changed."""
_GENERATION = "generation"

_log = structlog.get_logger(__name__)
_Row: TypeAlias = dict[str, Any]


class SessionFolder:
    """The folder of one sub-agent. Methods raise `StorageFull` and `Unavailable`."""

    def __init__(self, path: Path, *, link: bool) -> None:
        self.path = path
        self._link = link
        self._generation = 0
        self._messages: list[Message] | None = None
        self._rows: list[_Row] = []
        self._status: dict[str, Any] = {}
        self._steps: AppendedFile | None = None

    def save(
        self, status: Mapping[str, Any], messages: Sequence[Message], *, rest: bool = False, wait: bool = True
    ) -> None:
        """Store the state: what has changed is appended to the steps; at `rest` both files are replaced.

        `status` consists of JSON values. Without `wait` the disk has the step only with the next one, so it survives a
        kill of this process, but not a power loss.
        """
        with disk_errors(self.path):
            new = self._rows_of(messages)
            if self._steps is None or self._messages is None:
                self._make()
                rest = True
            assert self._steps is not None  # noqa: S101 - for the type checker
            if rest or self._steps.size > _MAX_STEPS_BYTES:
                self._replace(dict(status), new)
            elif step := _step(self._rows, new, self._status, status):
                self._steps.append({_GENERATION: self._generation, **step}, wait=wait)
            self._messages, self._rows, self._status = list(messages), new, dict(status)

    def _rows_of(self, messages: Sequence[Message]) -> list[_Row]:
        """Return the messages as JSON values; those that are stored already are not converted again."""
        stored = self._messages or []
        pairs = enumerate(zip(messages, stored, strict=False))
        same = next((number for number, (one, other) in pairs if one is not other), min(len(messages), len(stored)))
        new = messages[same:]
        return [*self._rows[:same], *(message.model_dump(mode="json", exclude_defaults=True) for message in new)]

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if self._link:
            with suppress(FileExistsError):
                (self.path / WORKSPACE_FOLDER).symlink_to(Path("..", "..", WORKSPACE_FOLDER))
        self._steps = AppendedFile(self.path / STEPS)
        sync_folder(self.path)
        sync_folder(self.path.parent)

    def _replace(self, status: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
        """Write the messages, then the status with the next generation, to which no step belongs yet."""
        lines = [json.dumps(message, ensure_ascii=False) for message in messages]
        _replace(self.path / MESSAGES, "[\n" + ",\n".join(lines) + "\n]\n")
        self._generation += 1
        _replace(self.path / STATUS, json.dumps({**status, _GENERATION: self._generation}, ensure_ascii=False) + "\n")
        if self._steps is not None:
            self._steps.clear()

    def load(self) -> tuple[dict[str, Any], list[Message]] | None:
        """Read the status and the messages; None if nothing was saved. Raises `Unavailable` if they are damaged.

        Steps after a damaged one are lost; the log says so.
        """
        with disk_errors(self.path):
            for left in self.path.glob(f"*{_NEW}"):
                left.unlink(missing_ok=True)
            if not (self.path / STATUS).exists():
                return None
            try:
                status = dict(json.loads((self.path / STATUS).read_bytes()))
                rows = list(json.loads((self.path / MESSAGES).read_bytes()))
                self._generation = int(status.pop(_GENERATION, 0))
                self._apply_steps(status, rows)
                messages = [Message(**row) for row in rows]
            except (ValidationError, ValueError, TypeError) as error:
                raise Unavailable(f"{self.path} cannot be read: {error}; move it away to continue without it") from None
        self._messages, self._rows, self._status = messages, rows, dict(status)
        return status, messages

    def _apply_steps(self, status: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """Bring both up to the last whole step; a line that a kill left in pieces had no effect."""
        path = self.path / STEPS
        if not path.exists():
            return
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
            try:
                step = json.loads(line)
                if step[_GENERATION] == self._generation:
                    _apply(step, status, rows)
            except (ValueError, KeyError, TypeError, IndexError):
                if line.endswith(b"\n"):
                    _log.warning("steps.damaged", file=str(path), line=number)
                break


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


def _apply(step: Mapping[str, Any], status: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    if (messages := step.get("messages")) is not None:
        rows[messages["after"] :] = messages["new"]
    if (items := step.get(_ITEMS)) is not None:
        status[_ITEMS] = [*status.get(_ITEMS, ())[: items["after"]], *items["new"]]
    status.update(step.get("status", {}))


def _equal_at_first(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Count the entries at the beginning that are equal."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left is not right and left != right:
            return index
    return min(len(one), len(other))


class TreeFolder:
    """The folder of a tree. Raises `Conflict` if another program has it open."""

    def __init__(self, workspace_root: str | os.PathLike[str], main_session_id: str) -> None:
        self.workspace_root = Path(workspace_root).expanduser().absolute()
        self.path = self.workspace_root / main_session_id
        self.workspace = self.path / WORKSPACE_FOLDER
        with disk_errors(self.path):
            self.workspace.mkdir(parents=True, exist_ok=True)
            (self.path / PUBLISHED).parent.mkdir(exist_ok=True)
            (self.path / PUBLISHED).touch()
            (self.path / SUB_SESSIONS).mkdir(exist_ok=True)
            for folder in ((self.path / PUBLISHED).parent, self.path, self.workspace_root, self.workspace_root.parent):
                sync_folder(folder)
            self._unlock = self._lock()

    def _lock(self) -> "weakref.finalize[[int], TreeFolder]":
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        unlock = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            unlock()
            raise Conflict(f"another agent is at work in {self.path}") from None
        except OSError:  # a disk without locks: it cannot be checked
            pass
        return unlock

    def close(self) -> None:
        """Unlock the folder; the end of the process does that, too."""
        self._unlock()

    def main(self) -> SessionFolder:
        """Return the root's folder."""
        return SessionFolder(self.path, link=False)

    def sub(self, agent_id: str) -> SessionFolder:
        """Return the folder of a sub-agent, which is created when something is saved."""
        return SessionFolder(self.path / SUB_SESSIONS / agent_id, link=True)

    def subs(self) -> list[str]:
        """Return the ids of the sub-agents that have a folder."""
        with disk_errors(self.path):
            return sorted(entry.name for entry in (self.path / SUB_SESSIONS).iterdir() if entry.is_dir())


def _replace(path: Path, text: str) -> None:
    replace_file(path, text.encode("utf-8", "replace"))
