"""What this machine keeps of a session besides the server: its folder, and files that hold long results."""

import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cfs.contract.user_folders import state_folder

PREFIX = "acp-"
"""Begins the names of all sessions that editors start."""

_FILE = "session.json"
_LONGEST_NAME = 40


def new_name(cwd: Path) -> str:
    """Return a name for a new session in a folder."""
    word = re.sub(r"[^a-z0-9]+", "-", cwd.name.lower())[:_LONGEST_NAME].strip("-")
    return f"{PREFIX}{f'{word}-' if word else ''}{secrets.token_hex(4)}"


def folder_of(session: str) -> Path:
    """Return the folder with the records of a session, in the user's state directory."""
    return state_folder() / "acp" / quote(session, safe="")


def keep(session: str, cwd: Path, *, answering: bool = False) -> None:
    """Store in which folder a session works, and whether this process answers a prompt in it. Raises `OSError`."""
    folder = folder_of(session)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = folder / f"{_FILE}.{secrets.token_hex(4)}"
    record = {"cwd": str(cwd), "answering": os.getpid() if answering else None}
    new.write_text(json.dumps(record), encoding="utf-8")
    new.replace(folder / _FILE)


def cwd_of(session: str) -> str | None:
    """Return the folder in which a session works; None if it has no record here."""
    folder = _record(session).get("cwd")
    return folder if isinstance(folder, str) else None


def is_abandoned(session: str) -> bool:
    """Return whether a process was killed while it answered a prompt in a session."""
    answering = _record(session).get("answering")
    if not isinstance(answering, int):
        return False
    try:
        os.kill(answering, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _record(session: str) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        record = json.loads((folder_of(session) / _FILE).read_text(encoding="utf-8"))
        return record if isinstance(record, dict) else {}
    return {}
