"""`cfs export` and `cfs import`: sessions as a tar file that can be read without CFS.

The file has a folder for each session with its transcript and everything else as JSON. Both commands use the REST
interface, so they work with any server, and with the rights of the caller.
"""

import io
import json
import os
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from cfs import api
from cfs.cli.app import note
from cfs.errors import AlreadyExists, InvalidRequest, NotFound, TooLarge
from cfs.ids import check_id
from cfs.transcript import render
from cfs.transports.http import Client
from cfs.wire import Message, NewMessage, SessionDetail, SessionInfo, Settings, SettingsPatch

FORMAT = 1
_ROOT = "cfs-export"
_INDEX = f"{_ROOT}/index.json"
_PAGE = 500
_README = """\
These are sessions of CFS, exported by `cfs export`. The text is UTF-8.

index.json                           what is here: the sessions as a tree, with their times
sessions/NAME/transcript.txt         the conversation as text
sessions/NAME/session.json           the same with all details:
    id                               name of the session
    settings                         as docs/sessions.md describes them
    history                          the messages: role, content, tool_calls, tool_call_id, name, thinking
    queue                            messages that waited for their turn
    partial                          the part of a reply that was being generated
    created_at, updated_at           seconds since 1970 (UTC)
sessions/NAME/SUB/...                the sub-session NAME/SUB, in the same way

`cfs import FILE` creates the sessions on a server. The files of workspaces are not here.
"""


class _Exported(BaseModel):
    """What an import needs of a `session.json`. Fields of later versions are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    settings: Settings
    history: tuple[Message, ...] = ()
    queue: tuple[Message, ...] = ()

    @property
    def root(self) -> str:
        """The first part of the name."""
        return self.id.partition("/")[0]


# -- export -----------------------------------------------------------------------------------------------------------


def export_sessions(client: Client, file: Path, sessions: Iterable[str] | None, *, force: bool) -> None:
    """Write sessions with their sub-sessions to a tar file, compressed if its name ends in `gz`. None means all."""
    found = _all(client) if sessions is None else [client.call(api.read(name)) for name in sessions]
    count = 0
    with complete_file(file, force=force) as target, tarfile.open(mode=_mode(file), fileobj=target) as archive:
        _add(archive, f"{_ROOT}/README.txt", _README)
        tree = []
        for info in found:
            node = _export(client, archive, info)
            if node is not None:
                tree.append(node)
                count += _count(node)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        index = {"format": FORMAT, "exported_at": now, "cfs": version("cfs-local"), "sessions": tree}
        _add(archive, _INDEX, json.dumps(index, ensure_ascii=False, indent=1) + "\n")
    note(f"cfs: {_sessions(count)} in {file}")


def _export(client: Client, archive: tarfile.TarFile, info: SessionInfo) -> dict[str, Any] | None:
    """Add a session and those below it; None if it has been deleted since it was listed."""
    try:
        found = client.call(api.read(info.id))
    except NotFound:
        return None
    folder = f"{_ROOT}/sessions/{found.id}"
    _add(archive, f"{folder}/transcript.txt", render(found.history), found.updated_at)
    detail = {"format": FORMAT, **found.model_dump(mode="json")}
    _add(archive, f"{folder}/session.json", json.dumps(detail, ensure_ascii=False, indent=1) + "\n", found.updated_at)
    below = _all(client, f"{found.id}/") if found.sub_sessions else ()
    return {
        "id": found.id,
        "messages": found.messages,
        "created_at": found.created_at,
        "updated_at": found.updated_at,
        "sub_sessions": [node for child in below if (node := _export(client, archive, child)) is not None],
    }


def _count(node: dict[str, Any]) -> int:
    return 1 + sum(map(_count, node["sub_sessions"]))


def _all(client: Client, prefix: str = "") -> Iterator[SessionInfo]:
    after: str | None = ""
    while after is not None:
        page = client.call(api.list_sessions(prefix, after, _PAGE))
        yield from page.sessions
        after = page.next


def _add(archive: tarfile.TarFile, name: str, text: str, at: float | None = None) -> None:
    data = text.encode(errors="surrogatepass")
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, int(at or time.time())
    archive.addfile(member, io.BytesIO(data))


def _mode(file: Path) -> Any:
    return "w:gz" if file.name.endswith("gz") else "w"


@contextmanager
def complete_file(file: Path, *, force: bool) -> Iterator[io.BufferedWriter]:
    """Open a file that others cannot read, and that gets its name when it is complete."""
    if file.exists() and not force:
        raise InvalidRequest(f"{file} exists; choose another name, or overwrite it with --force")
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        part.replace(file)
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


# -- import -----------------------------------------------------------------------------------------------------------


def import_sessions(client: Client, file: Path, *, rename: bool) -> None:
    """Create the sessions of an export on a server.

    A session that is there already with the same messages, or with more of them, is left as it is. If another
    conversation has the name, nothing is imported, or with `rename` the session gets a new name.
    """
    families = _families(_read(file))
    names: dict[str, str] = {}
    taken = []
    for root, family in families.items():
        if _fits(client, family, root):
            names[root] = root
        elif rename:
            names[root] = _free_name(client, family, root)
        else:
            taken.append(root)
    if taken:
        shown = ", ".join(repr(name) for name in taken[:3]) + (f" and {len(taken) - 3} more" if len(taken) > 3 else "")
        raise AlreadyExists(
            f"nothing was imported: the server has other conversations in {shown}; delete or rename them, or"
            " import under new names with --rename"
        )
    made = sum(_create(client, session, names[root]) for root, family in families.items() for session in family)
    for root, name in names.items():
        if name != root:
            note(f"cfs: {root!r} is {name!r} here")
    there = sum(map(len, families.values())) - made
    note(f"cfs: {_sessions(made)} imported" + (f"; {there} of {made + there} were there already" if there else ""))


def _sessions(count: int) -> str:
    return f"{count} session" if count == 1 else f"{count} sessions"


def _read(file: Path) -> Iterator[_Exported]:
    """Yield the sessions of an export; raises `InvalidRequest` for any other file."""
    try:
        with tarfile.open(file) as archive:
            known = False
            for member in archive:
                data = archive.extractfile(member) if member.isfile() else None
                if data is None:
                    continue
                if member.name == _INDEX:
                    known = True
                elif member.name.endswith("/session.json"):
                    yield _parsed(data.read(), file, member.name)
            if not known:
                raise InvalidRequest(f"{file} is not complete, or no export of CFS: it has no {_INDEX}")
    except tarfile.ReadError:
        raise InvalidRequest(f"{file} is damaged, or no tar file") from None
    except (OSError, EOFError) as error:
        raise InvalidRequest(f"{file}: {getattr(error, 'strerror', None) or error}") from None


def _parsed(data: bytes, file: Path, name: str) -> _Exported:
    try:
        if json.loads(data)["format"] > FORMAT:
            raise InvalidRequest(f"{file} was written by a newer CFS; import it with that version")
        session = _Exported.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{file}: {name}: {place}: {first['msg'].lower()}") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest(f"{file}: {name} is no session of CFS") from None
    check_id(session.id)
    return session


def _families(sessions: Iterable[_Exported]) -> dict[str, list[_Exported]]:
    """Return the sessions by their root, parents first."""
    families: dict[str, list[_Exported]] = {}
    for session in sessions:
        families.setdefault(session.root, []).append(session)
    for family in families.values():
        family.sort(key=lambda session: session.id.count("/"))
    return families


def _fits(client: Client, family: Iterable[_Exported], root: str) -> bool:
    """Return whether each session is absent on the server, or the same conversation."""
    return all(_is_same(_find(client, _name(session, root)), session) for session in family)


def _find(client: Client, name: str) -> SessionDetail | None:
    try:
        return client.call(api.read(name))
    except NotFound:
        return None


def _is_same(found: SessionDetail | None, session: _Exported) -> bool:
    """Return whether there is no such session, or one that begins with the same messages."""
    return found is None or found.history[: len(session.history)] == session.history


def _free_name(client: Client, family: Iterable[_Exported], root: str) -> str:
    number = 2
    while not _fits(client, family, check_id(f"{root}-{number}")):
        number += 1
    return f"{root}-{number}"


def _name(session: _Exported, root: str) -> str:
    """Return the name of a session whose root is renamed."""
    return root + session.id.removeprefix(session.root)


def _create(client: Client, session: _Exported, root: str) -> bool:
    """Create a session with its messages; return False if it exists."""
    name, defaults = _name(session, root), Settings()
    changed = {key: value for key, value in session.settings if value != getattr(defaults, key)}
    try:
        client.call(api.create(name, SettingsPatch(**changed), messages=session.history))
    except AlreadyExists:
        return False
    except TooLarge as error:
        raise TooLarge(
            f"{name!r} is too large for this server: {error.detail}; its settings max_body_bytes and max_messages"
            " must be larger for the import. The sessions before it are imported"
        ) from None
    for message in session.queue:
        waiting = NewMessage(content=message.content, role=message.role, tool_call_id=message.tool_call_id)
        client.call(api.post(name, waiting))
    return True
