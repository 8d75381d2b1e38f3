"""What this machine keeps of a session besides the server: its folder, and files that hold long results."""

import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

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
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / "cfs/acp" / quote(session, safe="")


def keep(session: str, cwd: Path) -> None:
    """Store in which folder a session works. Raises `OSError`."""
    folder = folder_of(session)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = folder / f"{_FILE}.{secrets.token_hex(4)}"
    new.write_text(json.dumps({"cwd": str(cwd)}), encoding="utf-8")
    new.replace(folder / _FILE)


def cwd_of(session: str) -> str | None:
    """Return the folder in which a session works; None if it has no record here."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((folder_of(session) / _FILE).read_text(encoding="utf-8"))["cwd"])
    return None
