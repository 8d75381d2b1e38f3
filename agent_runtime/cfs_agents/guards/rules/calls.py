"""Calls as rules see them: what a tool is asked to do, the digest of its arguments, and where its paths lead (A11)."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cfs_agents.tools.commands import COMMAND
from cfs_agents.tools.files import EDIT_FILE, LIST_DIRECTORY, READ_FILE, SEARCH_FILES, WRITE_FILE
from cfs_agents.tools.paths import WORKSPACE

MCP = "mcp"
SPAWN = "spawn_agent"
_NAMES = {"sys_spawn_agent": SPAWN}
"""Tools whose names in rules differ from those that models call."""
_PLAIN_PATH = re.compile(r"[^/.][^/]*(?:/[^/.][^/]*)*")
"""Relative paths without empty names and names that begin with a dot: nothing is left out when they are joined."""


class CallKind(StrEnum):
    """What a rule's pattern is compared with."""

    COMMAND = "command"
    WRITE = "write"
    READ = "read"
    MCP = "mcp"
    SPAWN = "spawn"
    OTHER = "other"


_KINDS = {
    COMMAND: CallKind.COMMAND,
    WRITE_FILE: CallKind.WRITE,
    EDIT_FILE: CallKind.WRITE,
    "delete_file": CallKind.WRITE,
    READ_FILE: CallKind.READ,
    LIST_DIRECTORY: CallKind.READ,
    SEARCH_FILES: CallKind.READ,
    MCP: CallKind.MCP,
    SPAWN: CallKind.SPAWN,
}
FAMILIES = {WRITE_FILE: CallKind.WRITE, READ_FILE: CallKind.READ}
"""Names that stand for every tool of their kind: a rule for `write_file` also holds for edits and redirections."""


def kind_of(tool: str) -> CallKind:
    """Return the kind of a tool, by its name in rules."""
    return _KINDS.get(tool, CallKind.OTHER)


@dataclass(frozen=True, slots=True)
class GatedCall:
    """A call of a tool. `subject` is what patterns are compared with: a command, a path, `server/tool`, or a name.

    `arguments` are all arguments, which the digest covers.
    """

    tool: str
    subject: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, tool: str, arguments: Mapping[str, Any]) -> "GatedCall":
        """Return the call of one of the agent's own tools, named as models name it."""
        name = _NAMES.get(tool, tool)
        key = {CallKind.COMMAND: "command", CallKind.WRITE: "path", CallKind.READ: "path"}.get(kind_of(name))
        keys = (key,) if key is not None else ("agent_id", "name", "role", "path")
        subject = next((value for key in keys if isinstance(value := arguments.get(key), str)), "")
        return cls(name, subject, arguments)

    @classmethod
    def of_mcp(cls, server: str, tool: str, arguments: Mapping[str, Any]) -> "GatedCall":
        """Return the call of a tool of an MCP server."""
        return cls(MCP, f"{server}/{tool}", arguments)

    @property
    def kind(self) -> CallKind:
        """What kind of tool it calls."""
        return kind_of(self.tool)

    @property
    def text(self) -> str:
        """The call as a rule would name it."""
        return f"{self.tool}({self.subject})"

    def digest(self, directory: str = "") -> str:
        """Return the digest of the exact call; `directory` is where a command would run."""
        content = [self.tool, self.subject, directory, self.arguments]
        data = json.dumps(content, sort_keys=True, ensure_ascii=True, default=repr).encode()
        return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass(frozen=True, slots=True)
class FileTarget:
    """A file of a call: its path as written and where links lead, relative to the workspace if it is inside."""

    written: str
    real: str
    inside: bool

    @property
    def names(self) -> frozenset[str]:
        """Both paths."""
        return frozenset((self.written, self.real))


class Links:
    """Where links lead, for one decision: what is known of a folder is not read again for each of its files."""

    def __init__(self) -> None:
        self._directories: dict[str, str] = {}

    def directory(self, path: str) -> str:
        """Return the real path of a folder. Raises `OSError` and `ValueError`."""
        if (real := self._directories.get(path)) is None:
            real = self._directories[path] = os.path.realpath(path)
        return real

    def real(self, path: Path | str) -> str:
        """Return the real path of a file. Raises `OSError` and `ValueError`."""
        folder, _, name = str(path).rpartition("/")  # the parts of a `Path` take five times as long
        if not folder or name == "..":
            return os.path.realpath(path)
        entry = f"{self.directory(folder).rstrip('/')}/{name}"
        return os.path.realpath(entry) if os.path.islink(entry) else entry  # noqa: PTH114


@dataclass(frozen=True, slots=True)
class Scope:
    """Where calls take place.

    - `workspace` is the directory of this machine that the agent works in.
    - `root` is the directory that is the agent's `/` for its file tools. Without it, `/` is that of this machine.
    - `directory` is the shell's working directory (default: the workspace).
    """

    workspace: Path
    root: Path | None = None
    directory: Path | None = None

    def file(self, path: str) -> FileTarget:
        """Return the file that a path of the file tools names. Reads links."""
        if path == WORKSPACE or path.startswith(f"{WORKSPACE}/"):
            return self._target(self.workspace / path[len(WORKSPACE) + 1 :], self.root)
        if self.root is not None and path.startswith("/"):
            return self._target(self.root / path[1:], self.root)
        return self._target(self.workspace / path, self.root)

    def command_file(self, path: str, directory: Path | None = None, links: "Links | None" = None) -> FileTarget:
        """Return the file that a path of a command names. Reads links."""
        base = directory or self.directory or self.workspace
        if base.is_absolute() and base.name and _PLAIN_PATH.fullmatch(path) is not None:
            return self._target(f"{base}/{path}", None, links)  # a `Path` takes longer than all the rest
        return self._target(base / path, None, links)

    def _target(self, path: Path | str, root: Path | None, links: "Links | None" = None) -> FileTarget:
        links = links or Links()
        try:
            real = links.real(path)
            bases = [links.directory(str(base)) for base in (self.workspace, *([root] if root is not None else []))]
        except (OSError, ValueError):  # NUL, or a name that is too long
            return FileTarget(str(path), str(path), inside=False)
        written = os.path.normpath(path)
        workspace = os.path.normpath(self.workspace)
        named, name = _below(written, workspace), _below(real, bases[0])
        inside = name is not None or any(_below(real, base) is not None for base in bases[1:])
        return FileTarget(written if named is None else named, real if name is None else name, inside)


def _below(path: str, base: str) -> str | None:
    """Return a path relative to a directory; None if it is not in it."""
    if path == base:
        return "."
    start = base if base.endswith("/") else f"{base}/"
    return path[len(start) :] if path.startswith(start) else None
