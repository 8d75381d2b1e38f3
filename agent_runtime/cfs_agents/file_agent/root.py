"""The directory in which an agent lives: all of its state, and nothing of it elsewhere (A1).

    agent_root/
        guideline.md              rules of conduct
        context_window_main.md    the context window: what the agent has in mind
        journal.jsonl             the running conversation, until the next sync
    ledger.jsonl              the files as they were when the task began, and what was found to have changed since
        workspace/                work
        storage/                  documents/ few_shots/ history/ (old windows) offloaded/ (long results)
        logs/                     operations_*.jsonl

What is missing is made from defaults, so an empty directory is an agent. One that was moved is the same agent.
"""

import fcntl
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from cfs.errors import Conflict, Unavailable
from cfs_agents.file_agent.disk import disk_errors
from cfs_agents.sentences import Language
from cfs_agents.tools.paths import CONTEXT_WINDOW, GUIDELINE, STORAGE, WORKSPACE
from cfs_filesystem import OPERATIONS, ConflictError, DiskFileSystem, FsHandle, Grant, NotFoundError

HISTORY = f"{STORAGE}/history"
OFFLOADED = f"{STORAGE}/offloaded"
LEDGER = "ledger.jsonl"
_FOLDERS = (WORKSPACE, f"{STORAGE}/documents", f"{STORAGE}/few_shots", HISTORY, OFFLOADED, "/logs")
_MOST_BYTES = 4 << 20


class AgentRoot:
    """An agent's directory. One object at a time may have it open; any number of threads.

    Raises `Conflict` if another program has it open, `Unavailable` or `StorageFull` if the disk does not let us.
    """

    def __init__(self, path: str | os.PathLike[str], language: Language = "en") -> None:
        self.path = Path(path).expanduser().resolve()
        self.language: Language = language
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._unlock = self._lock()
            try:
                self._disk = DiskFileSystem(self.path, durable=True)
                everything = Grant(prefix="/", ops=OPERATIONS)
                self._handle: FsHandle = self._disk.create_handle([everything])
                self._complete()
            except BaseException:
                self._unlock()
                raise

    def close(self) -> None:
        """Let others have the directory; happens by itself when the process ends, however it does."""
        self._disk.close()
        self._unlock()

    def _lock(self) -> "weakref.finalize[[int], AgentRoot]":
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

    def _complete(self) -> None:
        for folder in _FOLDERS:
            (self.path / folder[1:]).mkdir(parents=True, exist_ok=True)
        for name in (GUIDELINE, CONTEXT_WINDOW):
            with suppress(ConflictError):  # it is there
                self._handle.write(name, default(name, self.language), overwrite=False)

    def handle(self, grants: Iterable[Grant]) -> FsHandle:
        """Open the files for somebody who may do this with them; what is written is on the disk."""
        return self._disk.create_handle(list(grants))

    # -- what the agent goes by -----------------------------------------------------------------------------------

    def guideline(self) -> str:
        """Read the rules of conduct."""
        return self._text(GUIDELINE)

    def window(self) -> str:
        """Read the context window."""
        return self._text(CONTEXT_WINDOW)

    def _text(self, path: str) -> str:
        """Read one of the two; one that somebody removed meanwhile is its default again."""
        with disk_errors(self.path / path[1:]):
            try:
                size = self._handle.file(path)["size"]
                if size > _MOST_BYTES:
                    raise Unavailable(f"{path} of {self.path} has {size:,} bytes, which no model can have in mind")
                return self._handle.read_binary(path).decode("utf-8", "replace")
            except NotFoundError:
                return default(path, self.language)

    # -- the change of windows (A4) -------------------------------------------------------------------------------

    def archive_window(self, archive: str) -> None:
        """Copy the window to a path below the history, byte for byte, unless it is there already."""
        with disk_errors(self.path / archive[1:]), suppress(ConflictError):
            try:
                window: str | bytes = self._handle.read_binary(CONTEXT_WINDOW)
            except NotFoundError:
                window = default(CONTEXT_WINDOW, self.language)
            self._handle.write(archive, window, overwrite=False)

    def write_window(self, window: str) -> None:
        """Put a text in the place of the window, byte for byte; all of it or nothing."""
        with disk_errors(self.path / CONTEXT_WINDOW[1:]):
            self._handle.write(CONTEXT_WINDOW, window.encode())


def default(path: str, language: Language) -> str:
    """Return what the guideline or the window is at first."""
    source = files("cfs_agents.file_agent").joinpath("defaults", language, path[1:])
    return source.read_text(encoding="utf-8")
