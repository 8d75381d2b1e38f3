"""What the paths of WebDAV name, and whether the grants of a caller allow a PUT there (W3, G9)."""

from contextlib import suppress
from dataclasses import dataclass

from starlette.types import Scope

from cfs.contract.ids import check_id, id_below, is_scratch
from cfs.errors import InvalidIdentifier, InvalidRequest, NotFound
from cfs_filesystem import FileSystemError
from cfs_server.dav import ROOT
from cfs_server.domain.ids import WORKSPACES, path_of
from cfs_server.sessions.authorization import Authorization
from cfs_server.workspaces.file_service import problem_of

SESSIONS = f"{ROOT}/sessions"
SUB_SESSIONS = f"{ROOT}/sub_sessions"
QUESTIONS = f"{ROOT}/questions"
WORKSPACES_MOUNT = f"{ROOT}/workspaces"
MOUNTS = (SESSIONS, SUB_SESSIONS, QUESTIONS, WORKSPACES_MOUNT, ROOT)


@dataclass(frozen=True, slots=True)
class _Shown:
    """Replaces the route in the metrics."""

    path_format: str


def split_path(scope: Scope) -> tuple[str, str]:
    """Return the mount of a request and the path below it. Raises `InvalidRequest` or `NotFound`."""
    path: str = scope["path"]
    require_plain_parts(path)
    mount = next((mount for mount in MOUNTS if path == mount or path.startswith(mount + "/")), None)
    if mount is None:
        raise NotFound(f"there is nothing at {path}")
    scope["route"] = _Shown(mount)
    return mount, path.removeprefix(mount).rstrip("/") or "/"


def require_plain_parts(path: str) -> None:
    """Raise `InvalidRequest` for empty, `.` and `..` components, which programs interpret differently."""
    parts = path.removeprefix("/").removesuffix("/").split("/")
    if path != "/" and any(part in ("", ".", "..") for part in parts):
        raise InvalidRequest("the path must not have empty components, '.' or '..'")


def require_granted(scope: Scope) -> None:
    """Raise the error of a PUT below `/dav` that the grants of its caller refuse.

    What else must be known of a session or a question for this is asked before the body is received.
    """
    mount, below = split_path(scope)
    authorization: Authorization = scope["cfs.principal"].authorization
    if mount == WORKSPACES_MOUNT and below != "/":
        path = WORKSPACES + below[1:]
        try:
            authorization.require("write", path, f"file {path!r}")
        except FileSystemError as error:
            raise problem_of(authorization, error) from None
    elif mount in (SESSIONS, SUB_SESSIONS):
        target = in_sessions(below) if mount == SESSIONS else in_sub_sessions(below)
        if isinstance(target, SessionPath):
            authorization.require("write", path_of(target.id), f"session {target.id!r}")


@dataclass(frozen=True, slots=True)
class Root:
    """The mount itself."""


@dataclass(frozen=True, slots=True)
class Family:
    """The collection of everything below a root session."""

    root: str


@dataclass(frozen=True, slots=True)
class SessionPath:
    """The transcript of a session. The id is not validated yet."""

    id: str


@dataclass(frozen=True, slots=True)
class ScratchPath:
    """A scratch file of a program."""

    path: str


MountPath = Root | Family | SessionPath | ScratchPath


def in_sessions(path: str) -> MountPath | None:
    """Parse a path of `/dav/sessions`, where each root session has its id. None if nothing can exist there."""
    match path.strip("/").split("/"):
        case [""]:
            return Root()
        case [name]:
            return ScratchPath(path) if is_scratch(name) else SessionPath(name)
    return None


def in_sub_sessions(path: str) -> MountPath | None:
    """Parse a path of `/dav/sub_sessions`, a flat collection for each root. None if nothing can exist there.

    `4913` or `a.swp` can be ids of sub-sessions, so they are sub-sessions here. Only a name that cannot be an id is a
    scratch file.
    """
    match path.strip("/").split("/"):
        case [""]:
            return Root()
        case [name]:
            return ScratchPath(path) if is_scratch(name) else Family(name)
        case [root, name]:
            session_id = id_below(root, name)
            return ScratchPath(path) if is_scratch(name) and not is_legal(session_id) else SessionPath(session_id)
    return None


def is_legal(session_id: str) -> bool:
    """Return whether a session may have this id."""
    with suppress(InvalidIdentifier):
        return bool(check_id(session_id))
    return False
