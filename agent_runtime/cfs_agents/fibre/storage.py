"""A tree of agents on disk: a folder for the root, and one for each sub-agent below it (B3).

    {workspace_root}/{main_session_id}/
        messages.json           all that the root said, did and was told, in order
        session_status.json     where it is in its work; written after every step
        agent_workspace/        the files that all of them share
        ledger.jsonl            what became of each file, and through whom
        sub_sessions/{agent}/   messages.json, session_status.json, agent_workspace -> ../../agent_workspace

A file is replaced in one step, so whoever is killed leaves all of the old one or all of the new one. The messages are
written before the status that counts them: more than it counts is what was done last, and is taken in.
Only a crash of the machine, not of the process, can lose the last step.
"""

import fcntl
import json
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from cfs.errors import Conflict, Unavailable
from cfs.wire import Message
from cfs_agents.fibre.state import StrandRecord
from cfs_agents.file_agent.disk import disk_errors

MESSAGES = "messages.json"
STATUS = "session_status.json"
WORKSPACE_FOLDER = "agent_workspace"
SUB_SESSIONS = "sub_sessions"
LEDGER = "ledger.jsonl"
_NEW = ".new"


class SessionFolder:
    """The folder of one strand. Raises `StorageFull` and `Unavailable`; blocks."""

    def __init__(self, path: Path, *, link: bool) -> None:
        self.path = path
        self._link = link
        self._kept: list[Message] | None = None
        self._lines: list[str] = []

    def save(self, status: str, messages: Sequence[Message]) -> None:
        """Write the messages if there are new ones, then the status that counts them; `status` is a record's JSON."""
        with disk_errors(self.path):
            if self._kept is None:
                self._make()
            if self._kept is None or len(messages) != len(self._kept) or messages[-1:] != self._kept[-1:]:
                same = min(len(messages) - 1, len(self._lines) - 1) if self._kept else 0
                lines = [*self._lines[: max(same, 0)], *map(_line, messages[max(same, 0) :])]
                _replace(self.path / MESSAGES, "[\n" + ",\n".join(lines) + "\n]\n")
                self._kept, self._lines = list(messages), lines
            _replace(self.path / STATUS, status + "\n")

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if self._link:
            with suppress(FileExistsError):
                (self.path / WORKSPACE_FOLDER).symlink_to(Path("..", "..", WORKSPACE_FOLDER))

    def load(self) -> tuple[StrandRecord, list[Message]] | None:
        """Read both; None where nothing was saved. Raises `Unavailable` for files that no crash leaves so."""
        with disk_errors(self.path):
            for left in self.path.glob(f"*{_NEW}"):
                left.unlink(missing_ok=True)
            if not (self.path / STATUS).exists():
                return None
            try:
                record = StrandRecord.model_validate_json((self.path / STATUS).read_bytes())
                messages = [Message(**each) for each in json.loads((self.path / MESSAGES).read_bytes())]
            except (ValidationError, ValueError, TypeError) as error:
                raise Unavailable(f"{self.path} cannot be read: {error}; move it away to go on without it") from None
        self._kept, self._lines = messages, list(map(_line, messages))
        return record, messages


class TreeFolder:
    """The folder of a tree. One object at a time may have it open: raises `Conflict` if another program has."""

    def __init__(self, workspace_root: str | os.PathLike[str], main_session_id: str) -> None:
        self.workspace_root = Path(workspace_root).expanduser().absolute()
        self.path = self.workspace_root / main_session_id
        self.workspace = self.path / WORKSPACE_FOLDER
        with disk_errors(self.path):
            self.workspace.mkdir(parents=True, exist_ok=True)
            (self.path / SUB_SESSIONS).mkdir(exist_ok=True)
            self._unlock = self._lock()

    def _lock(self) -> "weakref.finalize[[int], TreeFolder]":
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        unlock = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            unlock()
            raise Conflict(f"another agent is at work in {self.path}") from None
        except OSError:  # a disk without locks lets everybody in
            pass
        return unlock

    def close(self) -> None:
        """Let others have the tree; happens by itself when the process ends, however it does."""
        self._unlock()

    def main(self) -> SessionFolder:
        """Return the root's folder."""
        return SessionFolder(self.path, link=False)

    def sub(self, agent_id: str) -> SessionFolder:
        """Return the folder of a sub-agent, which is made when something is saved."""
        return SessionFolder(self.path / SUB_SESSIONS / agent_id, link=True)

    def subs(self) -> list[str]:
        """Name the sub-agents that have a folder."""
        with disk_errors(self.path):
            return sorted(entry.name for entry in (self.path / SUB_SESSIONS).iterdir() if entry.is_dir())


def _line(message: Message) -> str:
    return json.dumps(message.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + _NEW)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode("utf-8", "replace"))
    new.replace(path)
