"""Finds out which sessions a request is about, from its path, its headers or its body. Pure: no I/O.

Nothing is validated here: the application that answers a request refuses what is not valid.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from cfs.api import KEY, SESSION
from cfs.contract.ids import VERSIONS, id_of_file_name

_SPLIT_DAV = frozenset({"sessions", "sub_sessions", "workspaces"})
_RESPONSE = re.compile(r"resp_([0-9a-f]{32})")
_ITEM = re.compile(r"[a-z]{2,3}_([0-9a-f]{32})_\d+_\d+$")
_MOVING = frozenset({"COPY", "MOVE"})
_TWO_NAMES = frozenset({"rename", "fork"})


class TargetKind(Enum):
    """Where a request is answered."""

    ANYWHERE = "by any replica: it is about no session"
    SESSION = "by the owner of the session's family"
    SLOT = "by the owner of the slot that an id contains"
    NEW = "where the new session will be"
    BODY = "where its body says"
    ALL = "by all slots together"
    EACH = "by the slot that knows the id, of which nothing is known here"


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """What a request is about. `root` names a family, `key` a session's key, and `new` the root of a second name.

    `below` says that the second name is that of a sub-session.
    """

    kind: TargetKind
    root: str = ""
    key: str = ""
    new: str = ""
    below: bool = False


ANYWHERE = RequestTarget(TargetKind.ANYWHERE)
NEW = RequestTarget(TargetKind.NEW)
ALL = RequestTarget(TargetKind.ALL)
BODY = RequestTarget(TargetKind.BODY)


def target_of(method: str, raw_path: bytes, query: bytes, headers: Mapping[bytes, bytes]) -> RequestTarget:
    """Return what a request is about, as far as its head says."""
    parts = _parts(raw_path)
    if parts is None:
        return ANYWHERE
    match parts:
        case ["v1", "sessions"] | ["v1", "sessions", ""]:
            return BODY if method == "POST" else ALL
        case ["v1", "sessions", root, *rest]:
            return RequestTarget(TargetKind.BODY if rest and rest[-1] in _TWO_NAMES else TargetKind.SESSION, root)
        case ["v1", "conversations", root, *_] if root:
            return RequestTarget(TargetKind.SESSION, root)
        case ["v1", "conversations"]:
            return _recorded(headers, NEW)
        case ["v1", "responses"]:
            return _recorded(headers, BODY)
        case ["v1", "responses", name, *_]:
            return _of_response(name)
        case ["v1", "shares"]:
            return BODY if method == "POST" else RequestTarget(TargetKind.SESSION, _first(query, "session"))
        case ["v1", "shares", _]:
            return RequestTarget(TargetKind.EACH)
        case ["v1", "events" | "search" | "files" | "costs"]:
            return ALL
        case ["v1", "files", "sessions", root, *_] if root:
            return RequestTarget(TargetKind.SESSION, root)
        case ["v1", "files" | "versions", "workspaces", root, *_] if root:
            return RequestTarget(TargetKind.SESSION, root)
        case ["v1", "past", *rest]:
            return _of_past(rest)
        case ["dav", *rest]:
            return _in_dav(method, rest, headers)
        case _:
            return _recorded(headers, ANYWHERE)


def target_in_body(raw_path: bytes, body: bytes, target: RequestTarget) -> RequestTarget:
    """Return what a request is about whose body says so. A body that is not valid is refused by any application."""
    try:
        content = json.loads(body or b"{}")
    except ValueError:
        content = {}
    if not isinstance(content, dict):
        content = {}
    parts = _parts(raw_path) or []
    if parts[:2] == ["v1", "sessions"] and target.root:  # a rename or a fork
        new = content.get("id")
        return replace(target, kind=TargetKind.SESSION, new=_root(new), below=isinstance(new, str) and "/" in new)
    if parts[:2] == ["v1", "responses"]:
        previous, conversation = content.get("previous_response_id"), content.get("conversation")
        if isinstance(previous, str):
            return _of_response(previous)
        if isinstance(conversation, dict):
            conversation = conversation.get("id")
        return (
            RequestTarget(TargetKind.SESSION, _root(conversation))
            if _root(conversation)
            else _of_items(content.get("input"))
        )
    named = _root(content.get("session" if parts[1:] == ["shares"] else "id"))
    return RequestTarget(TargetKind.SESSION, named) if named else NEW


def idempotency_key(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the key of a write, which is repeated at the same slot."""
    value = headers.get(KEY.lower().encode())
    return None if value is None else value.decode("latin-1").strip()


def _parts(raw_path: bytes) -> list[str] | None:
    try:
        return unquote_to_bytes(raw_path).decode().removeprefix("/").split("/")
    except UnicodeDecodeError:
        return None


def _of_past(parts: list[str]) -> RequestTarget:
    match parts:
        case ["sessions", name, *_] if name:
            return RequestTarget(TargetKind.SESSION, _root(id_of_file_name(name)))
        case ["workspaces", root, *_] if root:
            return RequestTarget(TargetKind.SESSION, root)
        case _:
            return ANYWHERE


def _in_dav(method: str, parts: list[str], headers: Mapping[bytes, bytes]) -> RequestTarget:
    match parts:
        case ["sessions", past, *rest] if past == VERSIONS and len(rest) > 1:
            return _of_past(rest)
        case ["sessions", past, *_] if past == VERSIONS:
            return ALL if method in ("GET", "PROPFIND") else ANYWHERE
        case [mount, root, *_] if mount in _SPLIT_DAV and root:
            new, below = _destination(headers) if method in _MOVING and mount != "workspaces" else ("", False)
            return RequestTarget(TargetKind.SESSION, root, new=new, below=below)
        case ["questions", name, *_] if name:
            return RequestTarget(TargetKind.SESSION, _root(id_of_file_name(name)))
        case ["sessions" | "sub_sessions" | "questions", *_] if method in ("GET", "PROPFIND"):
            return ALL
        case _:
            return ANYWHERE


def _destination(headers: Mapping[bytes, bytes]) -> tuple[str, bool]:
    parts = _parts(urlsplit(headers.get(b"destination", b"").decode("latin-1")).path.encode("latin-1"))
    match parts:
        case ["dav", "sessions" | "sub_sessions", root, *below]:
            return root, any(below)
        case _:
            return "", False


def _recorded(headers: Mapping[bytes, bytes], otherwise: RequestTarget) -> RequestTarget:
    name = headers.get(SESSION.lower().encode())
    if not name:
        return otherwise
    try:
        return RequestTarget(TargetKind.SESSION, _root(unquote_to_bytes(name).decode()))
    except UnicodeDecodeError:
        return ANYWHERE


def _of_response(name: str) -> RequestTarget:
    match = _RESPONSE.match(name)
    return RequestTarget(TargetKind.SLOT, key=match[1]) if match else ANYWHERE


def _of_items(items: Any) -> RequestTarget:
    """Return the slot of the newest stored item among some."""
    ids = (item.get("id") for item in reversed(items) if isinstance(item, dict)) if isinstance(items, list) else ()
    match = next(filter(None, (_ITEM.match(name) for name in ids if isinstance(name, str))), None)
    return RequestTarget(TargetKind.SLOT, key=match[1]) if match else NEW


def _root(name: Any) -> str:
    return name.partition("/")[0] if isinstance(name, str) else ""


def _first(query: bytes, name: str) -> str:
    try:
        return _root(parse_qs(query.decode("ascii")).get(name, [""])[0])
    except ValueError:
        return ""
