"""The folder that agents work on: one of their own state, or one that a user gives them.

The own folder has a record of the given one, so a task can be resumed without giving it again. Functions block.
"""

import json
from pathlib import Path

from cfs.errors import InvalidRequest, NotFound
from cfs_agents.base.disk import replace_file
from cfs_agents.tools.paths import escaped_name

RECORD = "workspace.json"
"""The file, in the folder of an agent or of a tree, that names the given folder."""


def workspace_of(folder: Path, given: Path | None, own: Path) -> Path:
    """Return the folder that the agents of `folder` work on: the given one, that of the last time, or their `own`.

    Raises `NotFound` if it does not exist, `InvalidRequest` if it contains the agents' state or is a part of it, or if
    the record is damaged, and `OSError`.
    """
    if given is None:
        return _last(folder / RECORD) or own
    workspace = given.expanduser().resolve()
    if workspace == folder.resolve() / own.name:
        return own
    if not workspace.is_dir():
        raise NotFound(f"there is no folder {workspace} for the agent to work on")
    _require_apart(workspace, folder.resolve())
    return workspace


def remember(folder: Path, workspace: Path, own: Path) -> None:
    """Record in `folder` which folder its agents work on. Raises `OSError`."""
    record = folder / RECORD
    text = json.dumps({"path": str(workspace)}) + "\n"
    if workspace == own:
        record.unlink(missing_ok=True)
    elif not record.exists() or record.read_text(encoding="utf-8", errors="replace") != text:
        replace_file(record, text.encode())


def shown(workspace: Path) -> str:
    """Return the path of a folder for the readers of a session, who need not know where the user's home is."""
    try:
        path = Path("~") / workspace.relative_to(Path.home())
    except (ValueError, RuntimeError):  # elsewhere, or there is no home
        path = workspace
    return escaped_name(str(path))


def _last(record: Path) -> Path | None:
    try:
        workspace = Path(json.loads(record.read_bytes())["path"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest(f"{record} is damaged: give the folder that the agent works on by --workspace") from None
    if not workspace.is_dir():
        raise NotFound(f"the folder that this agent works on, {workspace}, is missing: give one by --workspace")
    return workspace


def _require_apart(workspace: Path, folder: Path) -> None:
    """Agents must not change their own state with the tools for files."""
    if folder.is_relative_to(workspace):
        raise InvalidRequest(
            f"the agent's state in {folder} must not be in the folder that it works on, {workspace}:"
            " give a --root elsewhere, or leave --root out"
        )
    if workspace.is_relative_to(folder):
        raise InvalidRequest(f"{workspace} is in the folder with the agent's state, {folder}: give another --workspace")
