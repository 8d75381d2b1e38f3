"""The versions of a conversation, and the way back to one of them and forward again."""

import os
from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from cfs import wire
from cfs.contract.transcript import shown
from cfs.errors import (
    Conflict,
    Forbidden,
    Gone,
    InvalidIdentifier,
    InvalidParameters,
    NotFound,
    PreconditionFailed,
    StorageFull,
    Unsupported,
)
from cfs_filesystem.versions import Entry
from cfs_server.domain.ids import WORKSPACES
from cfs_server.domain.past import Version, read_moment
from cfs_server.http.bodies import json_body
from cfs_server.http.caller import Caller, IfMatch, Me, Sessions
from cfs_server.http.etags import require_match
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json
from cfs_server.http.session_paths import SessionId
from cfs_server.sessions.rewinding import Numbered, RewindPlan, RewindStep
from cfs_server.sessions.session import Session
from cfs_server.workspaces.rewinding import CallersFileRewind, FilePlan

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

_NOT_ALLOWED = "Files stay as they are: you may not read, write and delete all of the workspace."
_TEXT_CHARACTERS = 200
_REFUSALS = (InvalidIdentifier, InvalidParameters, NotFound, Gone)
_REWIND = (*_REFUSALS, Conflict, PreconditionFailed, StorageFull, Unsupported)


@router.get(
    "/{id:session}/versions",
    responses={200: answer("A page", json=wire.SessionVersions), **problems(*_REFUSALS)},
)
async def list_versions(
    id: SessionId,  # noqa: A002 - the name in the path
    sessions: Sessions,
    before: Annotated[int | None, Query(ge=0, description="Only versions before this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List the versions of a session, oldest first: the newest ones, or those before a version."""
    session, past = await sessions.past(id)
    older = [version for version in past.versions if before is None or version.number < before]
    page = older[-limit:]
    return as_json(
        wire.SessionVersions(
            session=session.id,
            versions=tuple(map(_shown, page)),
            before=page[0].number if len(older) > limit else None,
        )
    )


@router.post(
    "/{id:session}/rewind",
    responses={200: answer("Rewound", json=wire.Rewound), **problems(*_REWIND)},
    openapi_extra=body(json=wire.RewindRequest),
)
async def rewind(
    id: SessionId,  # noqa: A002
    how: Annotated[wire.RewindRequest, Depends(json_body(wire.RewindRequest))],
    me: Me,
    if_match: IfMatch = None,
) -> Response:
    """Take a session, and the files of its agent, back to an earlier version. Turns are cancelled. `redo` undoes it."""
    if not (how.messages or how.files):
        raise InvalidParameters("nothing goes back without `messages` and without `files`")

    def check(session: Session) -> None:
        require_match(if_match, session, me.sessions)

    to = how.to if isinstance(how.to, int) else read_moment(how.to)
    plan = await me.sessions.plan_rewind(id, to, sub_sessions=how.sub_sessions, messages=how.messages, check=check)
    files = me.file_rewind(plan, how.others) if how.files else None
    if files is None and not how.messages:
        if me.keeps_versions:
            raise Forbidden(_NOT_ALLOWED)
        raise Unsupported(me.no_versions)
    lasting = (_NOT_ALLOWED,) if files is None and how.files and me.keeps_versions else ()
    return await _carried_out(me, plan, files, check, dry_run=how.dry_run, lasting=lasting)


@router.post(
    "/{id:session}/redo",
    responses={200: answer("Redone", json=wire.Rewound), **problems(*_REWIND)},
    openapi_extra=body(required=False, json=wire.RedoRequest),
)
async def redo(
    id: SessionId,  # noqa: A002
    how: Annotated[wire.RedoRequest, Depends(json_body(wire.RedoRequest))],
    me: Me,
    if_match: IfMatch = None,
) -> Response:
    """Undo the last rewind of a session, in all sessions that it changed, and of files."""

    def check(session: Session) -> None:
        require_match(if_match, session, me.sessions)

    plan = await me.sessions.plan_redo(id, check=check)
    files = me.file_rewind(plan, how.others)
    has_files = plan.undone is not None and plan.undone.files is not None
    if files is None and has_files and not plan.messages:
        raise Forbidden(_NOT_ALLOWED)
    lasting = (_NOT_ALLOWED,) if files is None and has_files else ()
    return await _carried_out(me, plan, files, check, dry_run=how.dry_run, lasting=lasting)


async def _carried_out(
    me: Caller,
    plan: RewindPlan,
    files: CallersFileRewind | None,
    check: Callable[[Session], None],
    *,
    dry_run: bool,
    lasting: tuple[str, ...],
) -> Response:
    if files is not None:
        await files.plan()  # before anything is cancelled
    if not dry_run:
        await me.sessions.carry_out(plan, files, check=check)
    first, *others = plan.steps
    steps = [first, *[step for step in others if step.changes_something]]
    planned = files.planned if files is not None else None
    return as_json(
        wire.Rewound(
            dry_run=dry_run,
            sessions=tuple(map(_step, steps)),
            files=() if planned is None else tuple(starmap(partial(_file, planned), planned.entries.items())),
            left=() if planned is None else tuple(map(partial(_logical, planned), planned.left)),
            lasting=(
                *lasting,
                *(() if planned is None else planned.lasting),
                *plan.lasting(with_files=planned is not None and bool(planned.entries)),
            ),
        )
    )


def _file(plan: FilePlan, path: str, entry: Entry | None) -> wire.RewoundFile:
    return wire.RewoundFile(path=_logical(plan, path), change="removed" if entry is None else "restored")


def _logical(plan: FilePlan, path: str) -> str:
    return os.fsencode(f"{WORKSPACES}{plan.workspace}/{path}").decode(errors="backslashreplace")


def _shown(version: Version) -> wire.SessionVersion:
    author = version.author
    message = version.message
    return wire.SessionVersion(
        number=version.number,
        at=version.at,
        kind=_kind(version),
        messages=version.count,
        role=message and message.role,
        text=_beginning(shown(message)) if message else "",
        author=author and wire.VersionAuthor(principal=author.principal, agent=author.agent, call=author.call),
        to=version.rewind and version.rewind.to,
    )


def _kind(version: Version) -> wire.VersionKind:
    if version.message is not None:
        return "message"
    if version.rewind is not None:
        return "redone" if version.rewind.redo else "rewound"
    return "replaced" if version.number else "created"


def _step(step: RewindStep) -> wire.RewoundSession:
    return wire.RewoundSession(
        session=step.session.id,
        version=step.session.history.version,
        to=step.to,
        removed=_messages(step.removed),
        restored=_messages(step.restored),
        cancelled=tuple(map(_beginning, step.cancelled)),
        questions=tuple(map(_beginning, step.questions)),
        answers=step.answers,
    )


def _messages(messages: Numbered) -> tuple[wire.RewoundMessage, ...]:
    return tuple(
        wire.RewoundMessage(index=index, role=message.role, text=_beginning(shown(message)))
        for index, message in messages
    )


def _beginning(text: str) -> str:
    line = " ".join(text[: 4 * _TEXT_CHARACTERS].split())
    return line if len(line) <= _TEXT_CHARACTERS else f"{line[: _TEXT_CHARACTERS - 1]}…"
