"""The paths that agents use: logical ones, and names on disk as texts (A2).

For the agent `/` is its own directory, and relative paths start at `/workspace`. An invalid path (`..`, `//`, `*`,
control characters) is refused with the reason and never repaired.

A name on disk is bytes. The runtime holds it as the string that `os.fsdecode` returns; `escaped_name` returns text.
"""

import os
import pathlib
import re

from cfs_agents.tools.errors import ToolError
from cfs_filesystem import (
    OPERATIONS,
    Grant,
    InvalidPathError,
    Operation,
    Path,
    validate_path,
)

WORKSPACE = "/workspace"
STORAGE = "/storage"
GUIDELINE = "/guideline.md"
CONTEXT_WINDOW = "/context_window_main.md"

PASSED_OVER = frozenset({".cfs", ".git", ".venv", "__pycache__", "node_modules"})
"""Folders of programs for themselves: too large to read each time, and not claimed by agents."""

_UNSHOWABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\\\\"  # control characters, and the backslash that escapes them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, marks that turn the direction of writing
    "\ud800-\udfff]"  # bytes that are not UTF-8
)
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")

_LOOK: frozenset[Operation] = OPERATIONS - {"write", "delete"}


def agent_grants(context_window: str = CONTEXT_WINDOW) -> list[Grant]:
    """Return the grants of an agent: everything in its two folders, and reading its guideline and context window.

    `context_window` is the logical path of the context window.
    """
    return [
        Grant(prefix=WORKSPACE, ops=OPERATIONS),
        Grant(prefix=STORAGE, ops=OPERATIONS),
        Grant(prefix=GUIDELINE, ops=_LOOK),
        Grant(prefix=context_window, ops=_LOOK),
    ]


def file_path(path: str) -> Path:
    """Return the logical path of a file; raises `ToolError` with the reason for an invalid path."""
    if not path:
        raise ToolError("the path is empty")
    return _checked(path if path.startswith("/") else f"{WORKSPACE}/{_bare(path)}", path)


def directory_path(path: str) -> Path:
    """Return the logical path of a directory; `.`, `/` and a trailing slash are allowed."""
    if path in ("", "."):
        return WORKSPACE
    if path == "/":
        return path
    inner = path.removesuffix("/")
    if inner == ".":
        return WORKSPACE
    return _checked(inner if path.startswith("/") else f"{WORKSPACE}/{_bare(inner)}", path)


class RefusedPath(ToolError, ValueError):
    """A path that the tools of an agent refuse."""


class PathManager:
    """Maps the paths of an agent to paths of this machine and back.

    The agent's `/` is the `folder` of `project_root`, which is created. For the directory of a `FileSystemAgent`, which
    is its `project_root` itself, give `folder=""`. `workspace` is its `/workspace` (default: that folder of its `/`).
    """

    def __init__(
        self,
        project_root: str | os.PathLike[str],
        workspace: pathlib.Path | None = None,
        *,
        folder: str = "agent_root",
    ) -> None:
        self.agent_root = pathlib.Path(project_root).absolute() / folder
        self.agent_root.mkdir(parents=True, exist_ok=True)
        self.workspace = workspace or self.agent_root / WORKSPACE[1:]

    def resolve_agent_path(self, path: str) -> pathlib.Path:
        """Return this machine's path of an agent's path; a relative path is relative to `/workspace`.

        Raises `RefusedPath`, which is a `ValueError` and a `ToolError`, for an invalid path (`..`, control characters),
        for a path that the tools do not reach, and for one that a link leads out of the agent's directories.
        """
        try:
            logical = directory_path(path)
        except ToolError as error:
            raise RefusedPath(error.reason) from None
        if logical != "/" and not any(f"{logical}/".startswith(f"{grant['prefix']}/") for grant in agent_grants()):
            raise RefusedPath(f"{path!r} is not yours: your files are below {WORKSPACE} and {STORAGE}")
        local_path = self.place_of(logical)
        real = pathlib.Path(os.path.realpath(local_path))
        if not any(real.is_relative_to(os.path.realpath(root)) for root in (self.agent_root, self.workspace)):
            raise RefusedPath(f"{path!r} leads out of your directory")
        return local_path

    def place_of(self, logical: Path) -> pathlib.Path:
        """Return this machine's path of a logical path."""
        if logical == WORKSPACE or logical.startswith(f"{WORKSPACE}/"):
            return self.workspace / logical.removeprefix(WORKSPACE).removeprefix("/")
        return self.agent_root / logical.removeprefix("/")

    def agent_path(self, path: pathlib.Path) -> str:
        """Return the agent's path of a path of this machine; a path outside of its directories stays as it is."""
        if path.is_relative_to(self.workspace):
            return f"{WORKSPACE}/{path.relative_to(self.workspace).as_posix()}"
        return f"/{path.relative_to(self.agent_root).as_posix()}" if path.is_relative_to(self.agent_root) else str(path)


def _bare(path: str) -> str:
    """Remove each leading `./`."""
    while path.startswith("./"):
        path = path[2:]
    return path


def _checked(logical: str, requested: str) -> Path:
    try:
        return validate_path(logical)
    except InvalidPathError as error:
        hint = ": '..' is never followed, write the path from /workspace on" if ".." in requested.split("/") else ""
        raise ToolError(f"{error.detail}{hint}") from None


def escaped_name(name: str) -> str:
    """Return a file name or path as valid text on one line. Other bytes are escaped as in bash's `$'...'`: `\\xff`.

    Different names stay different, because a backslash is escaped, too. `unescaped_name` is the inverse.
    """
    return _UNSHOWABLE.sub(_escaped, name)


def unescaped_name(text: str) -> str:
    """Return the file name, in the form of `os.fsdecode`, of a text from `escaped_name`."""
    data = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), text.encode("utf-8", "surrogateescape"))
    return data.decode("utf-8", "surrogateescape")


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in match[0].encode("utf-8", "surrogateescape"))
