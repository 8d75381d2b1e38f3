"""Finds and reads the session files of other programs, as `cfs import --from` does."""

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cfs.cli.base.options import ProgramName
from cfs.contract.errors import InvalidRequest
from cfs.conversations import claude_code, codex, opencode, pi
from cfs.conversations.conversation import Damage, ImportedConversation, loads


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or a session in a database, and the conversations in it."""

    path: str
    conversations: tuple[ImportedConversation, ...] = ()
    damage: tuple[Damage, ...] = ()


Reader = Callable[[], Source]


def default_folder(program: ProgramName) -> Path:
    """Return the folder where a program stores its sessions."""
    home = Path.home()
    match program:
        case "claude-code":
            return Path(os.environ.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "projects"
        case "codex":
            return Path(os.environ.get("CODEX_HOME") or home / ".codex")
        case "opencode":
            return Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share") / "opencode"
        case "pi":
            folder = Path(os.environ.get("PI_CODING_AGENT_DIR") or home / ".pi/agent") / "sessions"
            return Path(os.environ.get("PI_CODING_AGENT_SESSION_DIR") or folder)


def sources(program: ProgramName, folder: Path) -> list[Reader]:
    """Return a reader for each file below a folder, or for one file. Raises `InvalidRequest` if there are none."""
    if not folder.exists():
        raise InvalidRequest(f"{folder} does not exist; name the folder with the sessions of {program}")
    try:
        readers = list(_READERS[program](folder))
    except OSError as error:
        raise InvalidRequest(f"{folder}: {error.strerror or error}") from None
    if not readers:
        raise InvalidRequest(f"{folder} has no sessions of {program}; name the folder that has them")
    return readers


def _inside(folder: Path, *names: str) -> Path:
    """Return the first of some folders in a folder that exists, or else the folder itself."""
    return next((folder / name for name in names if (folder / name).is_dir()), folder)


def _files(folder: Path, pattern: str) -> list[Path]:
    return [folder] if folder.is_file() else sorted(path for path in folder.rglob(pattern) if path.is_file())


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def _read(read: Callable[[Path, str], tuple[ImportedConversation, ...]], path: Path) -> Source:
    try:
        conversations = read(path, _text(path))
    except OSError as error:
        return Source(str(path), damage=(Damage(0, error.strerror or str(error)),))
    return Source(
        str(path), conversations, tuple(damage for conversation in conversations for damage in conversation.damage)
    )


def _claude_code(folder: Path) -> Iterator[Reader]:
    for path in _files(_inside(folder, "projects"), "*.jsonl"):
        yield partial(_read, _claude_code_conversations, path)


def _claude_code_conversations(path: Path, text: str) -> tuple[ImportedConversation, ...]:
    parent = path.parent.parent.name if path.parent.name == "subagents" else None
    return claude_code.read(text, path.stem, parent, _description(path.with_suffix(".meta.json")))


def _description(path: Path) -> str | None:
    """Return what a sub-agent was started for."""
    try:
        description = loads(_text(path)).get("description")
    except (OSError, ValueError, AttributeError):
        return None
    return description if isinstance(description, str) else None


def _codex(folder: Path) -> Iterator[Reader]:
    titles = _codex_titles(folder)

    def read(path: Path, text: str) -> tuple[ImportedConversation, ...]:
        name = path.stem[-36:]
        return (codex.read(text, name, titles.get(name)),)

    for path in _files(folder, "rollout-*.jsonl*"):
        yield partial(_compressed, path) if path.suffix == ".zst" else partial(_read, read, path)


def _compressed(path: Path) -> Source:
    return Source(str(path), damage=(Damage(0, "is compressed; expand it with unzstd first"),))


def _codex_titles(folder: Path) -> Mapping[str, str]:
    """Return the names that a user has given to sessions."""
    titles = {}
    for path in (folder / "session_index.jsonl", folder.parent / "session_index.jsonl"):
        for line in _text(path).splitlines() if path.is_file() else ():
            try:
                entry = loads(line)
                titles[str(entry["id"])] = str(entry["thread_name"])
            except (ValueError, KeyError, TypeError):
                continue  # a title is no reason to stop
    return titles


def _pi(folder: Path) -> Iterator[Reader]:
    for path in _files(_inside(folder, "sessions", "agent/sessions"), "*.jsonl"):
        yield partial(_read, _pi_conversations, path)


def _pi_conversations(path: Path, text: str) -> tuple[ImportedConversation, ...]:
    return (pi.read(text, path.stem.rpartition("_")[2]),)


def _opencode(folder: Path) -> Iterator[Reader]:
    """Yield the sessions of the database, then those of earlier versions that it does not have, or of an export."""
    if folder.is_file() and folder.suffix == ".json":
        yield partial(_opencode_source, str(folder), partial(_exported, folder))
        return
    stored = set()
    for database in _files(folder, "opencode*.db"):
        for name in _database_sessions(database):
            stored.add(name)
            yield partial(_opencode_source, f"{database}: {name}", partial(_stored, database, name))
    for path in _files(folder, "ses_*.json") if folder.is_dir() else ():
        if path.stem not in stored and path.parent.parent.name == "session":
            yield partial(_opencode_source, str(path), partial(_in_files, path))


_Stored = tuple[dict[str, Any], list[tuple[dict[str, Any], list[dict[str, Any]]]]]


def _opencode_source(path: str, load: Callable[[], _Stored]) -> Source:
    try:
        conversation = opencode.read(*load())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, sqlite3.Error) as error:
        reason = "is no session of opencode" if isinstance(error, (ValidationError, KeyError)) else str(error)
        return Source(path, damage=(Damage(0, reason),))
    return Source(path, (conversation,), conversation.damage)


def _exported(path: Path) -> _Stored:
    value = loads(_text(path))
    return value["info"], [(message["info"], message["parts"]) for message in value["messages"]]


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _database_sessions(path: Path) -> list[str]:
    try:
        with closing(_connect(path)) as database:
            return [row[0] for row in database.execute("SELECT id FROM session ORDER BY id")]
    except sqlite3.Error as error:
        raise InvalidRequest(f"{path} is no database of opencode: {error}") from None


def _stored(path: Path, name: str) -> _Stored:
    with closing(_connect(path)) as database:
        database.row_factory = sqlite3.Row
        row = dict(database.execute("SELECT * FROM session WHERE id = ?", (name,)).fetchone())
        info = row | {"parentID": row["parent_id"], "revert": loads(row.get("revert") or "null")}
        parts: dict[str, list[dict[str, Any]]] = {}
        for message, data in database.execute(
            "SELECT message_id, data FROM part WHERE session_id = ? ORDER BY message_id, id", (name,)
        ):
            parts.setdefault(message, []).append(loads(data))
        rows = database.execute("SELECT id, data FROM message WHERE session_id = ? ORDER BY id", (name,))
        return info, [({"id": message} | loads(data), parts.get(message, [])) for message, data in rows]


def _in_files(path: Path) -> _Stored:
    """Read a session of the versions that had a file for each part."""
    storage = path.parent.parent.parent
    messages = []
    for message in sorted((storage / "message" / path.stem).glob("*.json")):
        parts = sorted((storage / "part" / message.stem).glob("*.json"))
        messages.append((_object(message), [_object(part) for part in parts]))
    return loads(_text(path)), messages


def _object(path: Path) -> dict[str, Any]:
    """Return the object in a file. One that cannot be read has no type, and is reported for that."""
    try:
        value = loads(_text(path))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


_READERS: Mapping[ProgramName, Callable[[Path], Iterator[Reader]]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "opencode": _opencode,
    "pi": _pi,
}
