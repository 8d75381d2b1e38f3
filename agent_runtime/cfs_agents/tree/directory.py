"""The directory of an agent, with all of its state (A1).

    agent_root/
        guideline.md              rules of conduct
        context_window_main.md    the context window: what the agent has in mind
        journal.jsonl             the run log: the running conversation, until the next sync
        ledger.jsonl              the files as they were when the task began, and what has changed since
        workspace/                work, unless it has a workspace elsewhere
        workspace.json            where that is
        storage/                  documents/ few_shots/ history/ (old windows) offloaded/ (long results)
        logs/                     operations_*.jsonl

Missing files are created from defaults, so an empty directory is an agent. A directory can be moved.
"""

import hashlib
import os
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from cfs.errors import Unavailable
from cfs_agents.base.disk import disk_errors, replace_file
from cfs_agents.base.folders import open_own_folder
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import LANGUAGES, Language
from cfs_agents.base.repairs import Warn, usable_file, without_damage
from cfs_agents.tools.paths import CONTEXT_WINDOW, GUIDELINE, STORAGE, WORKSPACE
from cfs_agents.tree.locked_folder import LockedFolder
from cfs_filesystem import (
    OPERATIONS,
    ConflictError,
    FileSystemBase,
    FsHandle,
    Grant,
    NotFoundError,
    RouterFileSystem,
)

_log = get_logger(__name__)

HISTORY = f"{STORAGE}/history"
OFFLOADED = f"{STORAGE}/offloaded"
COMMANDS = f"{STORAGE}/commands"
"""The long outputs of commands, unless they are in the workspace."""
SKILLS = f"{STORAGE}/skills"
"""Copies of the user's skills, unless they are in the workspace."""
_FULL_GUIDELINE = "/guideline_full.md"
"""The file of the package with the default guideline for models whose context is not small."""
_FOLDERS = (f"{STORAGE}/documents", f"{STORAGE}/few_shots", HISTORY, OFFLOADED, "/logs")
_FORMER_GUIDELINES = {
    "6c69f758558e4f4007cec630da474a248bd6a4f3af3d067db38f0d71d18379cb": "en",
    "e814424b7e74804251bc01730591a1f09225044a979983e4cafcf1d78b8cef1c": "zh",
}
"""Digests of whole default guidelines of earlier versions, with their languages."""
_MOST_BYTES = 4 << 20
_LOST_BLOCK = bytes(16)
"""NUL bytes that no text has: they are in the place of what a disk has lost."""


class AgentRoot(LockedFolder):
    """The directory of an agent that works alone.

    `context_file` is the name of the file that holds the context window, and `workspace` a folder elsewhere that the
    agent works on. `warn` gets a sentence for each repair; a missing guideline or window is one if `begun` says that
    the agent has worked before.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        language: Language = "en",
        context_file: str = CONTEXT_WINDOW[1:],
        *,
        workspace: Path | None = None,
        warn: Warn = _log.warning,
        begun: bool = False,
    ) -> None:
        self.language: Language = language
        self._begun = begun
        self.context_window = f"/{context_file}"
        """Logical path of the context window."""
        super().__init__(Path(path).expanduser().resolve(), warn, WORKSPACE[1:], workspace)

    def _open_files(self) -> FileSystemBase:
        disk = self._open_disk(self.path)
        self._handle: FsHandle = disk.create_handle([Grant(prefix="/", ops=OPERATIONS)])
        self.complete()
        if self.has_own_workspace:
            return disk
        prefix = f"{WORKSPACE}/"
        return RouterFileSystem({"/": disk, prefix: self._open_disk(self.workspace, prefix)})

    @property
    def folders(self) -> dict[str, Path]:
        """The directories of this machine that the agent may change, by its own names."""
        return {WORKSPACE: self.workspace, STORAGE: self.path / STORAGE[1:]}

    @property
    def command_records(self) -> Path | None:
        """Where the long outputs of commands go; None for the workspace."""
        return None if self.has_own_workspace else self.path / COMMANDS[1:]

    def complete(self) -> None:
        """Make what is missing, and put aside what cannot be used. Raises `OSError`."""
        for folder in (*((WORKSPACE,) if self.has_own_workspace else ()), *_FOLDERS):
            os.close(open_own_folder(self.path, folder[1:].split("/"), warn=self.warn))
        self._complete_text(GUIDELINE, default(GUIDELINE, self.language), write=False)
        window = self._complete_text(self.context_window, default(CONTEXT_WINDOW, self.language), write=True)
        self.context_window = f"/{window.name}"
        self._begun = True

    def _complete_text(self, logical: str, text: str, *, write: bool) -> Path:
        """Write the default in place of a text that is missing, empty, or no text; return its path."""
        repairs: list[str] = []
        path = usable_file(self.path / logical[1:], repairs.append, write=write)
        if not path.exists():
            replace_file(path, text.encode())
            if self._begun and not repairs:
                repairs.append(f"{path.name} in {self.path} is missing: the default is used in its place")
        elif not (size := path.stat().st_size) or (size <= _MOST_BYTES and _LOST_BLOCK in path.read_bytes()):
            problem = "holds NUL bytes" if size else "is empty"
            path = without_damage(path, text.encode(), f"{problem}: the default is used in its place", repairs.append)
        for sentence in repairs:
            self.warn(sentence)
        return path

    def guideline(self) -> str:
        """Read the rules of conduct."""
        return self._text(GUIDELINE)

    def window(self) -> str:
        """Read the context window."""
        return self._text(self.context_window)

    def fit_guideline(self, *, small: bool) -> None:
        """Write the default guideline for a model with a small context, or for any other, unless it was edited."""
        text = self._text(GUIDELINE)
        language = _default_language(text)
        if language is not None and text != (fitting := guideline(language, small=small)):
            with disk_errors(self.path / GUIDELINE[1:]):
                self._handle.write(GUIDELINE, fitting)

    def _text(self, path: str) -> str:
        """Read one of the two; if it was removed meanwhile, return its default."""
        with disk_errors(self.path / path[1:]):
            try:
                size = self._handle.file(path)["size"]
                if size > _MOST_BYTES:
                    raise Unavailable(f"{path} of {self.path} has {size:,} bytes, more than any model can read")
                return self._handle.read_binary(path).decode("utf-8", "replace")
            except NotFoundError:
                return default(GUIDELINE if path == GUIDELINE else CONTEXT_WINDOW, self.language)

    def archive_window(self, archive: str) -> None:
        """Copy the window to a path below the history, unless the copy exists."""
        with disk_errors(self.path / archive[1:]), suppress(ConflictError):
            try:
                window: str | bytes = self._handle.read_binary(self.context_window)
            except NotFoundError:
                window = default(CONTEXT_WINDOW, self.language)
            self._handle.write(archive, window, overwrite=False)

    def write_window(self, window: str) -> None:
        """Replace the window, byte for byte, in one step."""
        with disk_errors(self.path / self.context_window[1:]):
            self._handle.write(self.context_window, window.encode())


def default(path: str, language: Language) -> str:
    """Return the default context window, or the default guideline for a model with a small context."""
    source = files("cfs_agents.tree").joinpath("defaults", language, path[1:])
    return source.read_text(encoding="utf-8")


def _default_language(text: str) -> Language | None:
    """Return the language of a default guideline, also of an earlier version; None if the text was edited."""
    former = _FORMER_GUIDELINES.get(hashlib.sha256(text.encode()).hexdigest())
    for language in LANGUAGES:
        if language == former or text in (guideline(language, small=True), guideline(language, small=False)):
            return language
    return None


def guideline(language: Language, *, small: bool) -> str:
    """Return the default guideline: whole, or short for a model with a small context.

    The embedded model was trained on the words of the short one.
    """
    return default(GUIDELINE if small else _FULL_GUIDELINE, language)
