"""`cfs export`: write sessions to a tar file."""

import io
import json
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cfs import api
from cfs.cli.base.complete_file import complete_file
from cfs.cli.base.output import note
from cfs.cli.base.progress import progress
from cfs.contract.errors import (
    NotFound,
)
from cfs.contract.transcript import render
from cfs.contract.wire import (
    SessionInfo,
)
from cfs.conversations.archive import FORMAT, INDEX, ROOT, ExportedNode, ExportedSession, ExportIndex, counted
from cfs.transports.http import Client

_PAGE = 500

_README = """\
These are sessions of CFS, exported by `cfs export`. The text is UTF-8.

index.json                           what is here: the sessions as a tree, with their times
sessions/NAME/transcript.txt         the conversation as text
sessions/NAME/session.json           the same with all details, as docs/export-format.md describes them:
    id                               name of the session
    settings                         as docs/sessions.md describes them
    history                          the messages: role, content, tool_calls, tool_call_id, name, thinking
    times                            when each message was added
    queue                            messages that waited for their turn
    partial                          the part of a reply that was being generated
    tokens, cost                     what the model has read and written, and its price in US dollars
    created_at, updated_at           seconds since 1970 (UTC)
sessions/NAME/SUB/...                the sub-session NAME/SUB, in the same way

`cfs import FILE` creates the sessions on a server. The files of workspaces are not here.
"""


def export_sessions(client: Client, file: Path, sessions: Iterable[str] | None, *, force: bool) -> None:
    """Write sessions with their sub-sessions to a tar file, compressed if its name ends in `gz`. None means all."""
    listed = every_session(client) if sessions is None else [client.call(api.read(name)) for name in sessions]
    count = 0
    with (
        complete_file(file, force=force) as target,
        tarfile.open(mode=_mode(file), fileobj=target) as archive,
        progress("exporting") as advance,
    ):
        _add(archive, f"{ROOT}/README.txt", _README)
        tree = []
        for info in listed:
            node = _export(client, archive, info, advance)
            if node is not None:
                tree.append(node)
                count += _count(node)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        index = ExportIndex(format=FORMAT, exported_at=now, cfs=version("cfs-local"), sessions=tuple(tree))
        _add(archive, INDEX, _json(index))
    note(f"cfs: {counted(count)} in {file}")


def _export(
    client: Client, archive: tarfile.TarFile, info: SessionInfo, advance: Callable[[int], object]
) -> ExportedNode | None:
    """Add a session and those below it; None if it has been deleted since it was listed."""
    try:
        session = client.call(api.read(info.id))
    except NotFound:
        return None
    advance(1)
    folder = f"{ROOT}/sessions/{session.id}"
    _add(archive, f"{folder}/transcript.txt", render(session.history), session.updated_at)
    exported = ExportedSession.model_validate({"format": FORMAT} | dict(session))
    _add(archive, f"{folder}/session.json", _json(exported), session.updated_at)
    below = every_session(client, f"{session.id}/") if session.sub_sessions else ()
    nodes = (_export(client, archive, child, advance) for child in below)
    return ExportedNode(
        id=session.id,
        messages=session.messages,
        created_at=session.created_at,
        updated_at=session.updated_at,
        sub_sessions=tuple(node for node in nodes if node is not None),
    )


def _count(node: ExportedNode) -> int:
    return 1 + sum(map(_count, node.sub_sessions))


def _json(part: BaseModel) -> str:
    return json.dumps(part.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"


def every_session(client: Client, prefix: str = "") -> Iterator[SessionInfo]:
    """Yield the sessions directly below a prefix, page by page."""
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
