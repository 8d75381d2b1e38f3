"""`cfs log`, `show`, `diff`, `rewind` and `redo`: the versions of a session, and the way back to one of them."""

import re
from collections.abc import Iterable
from datetime import datetime
from difflib import unified_diff

import typer

from cfs import api
from cfs.cli.base.output import note, show
from cfs.contract.ids import check_id
from cfs.contract.invisible import shapely
from cfs.contract.transcript import render
from cfs.contract.wire import RedoRequest, RewindRequest, Rewound, RewoundSession, SessionDetail, SessionVersion
from cfs.transports.http import Client

_NAMED = re.compile(r"(?P<session>.+)@(?P<version>[0-9]{1,9}|[0-9]{4}-[0-9]{2}-[0-9]{2}\S*)", re.DOTALL)
_DIFFERENT = 1
_PREVIEW = 60
_LISTED = 10


def list_versions(client: Client, session: str, limit: int, *, as_json: bool) -> None:
    """Print the newest versions of a session."""
    page = client.call(api.versions(session, limit=limit))
    if as_json:
        show(page.model_dump_json() + "\n")
        return
    show("".join(f"{_line(version)}\n" for version in page.versions))
    if page.before is not None:
        note(f"There are {page.before} older versions: --limit shows more of them.")


def show_version(client: Client, named: str, *, as_json: bool) -> None:
    """Print the transcript of a version."""
    detail = _read(client, named)
    show(detail.model_dump_json() + "\n" if as_json else render(detail.history))


def compare_versions(client: Client, old: str, new: str | None) -> None:
    """Print a unified diff of two transcripts; exits with 1 if they differ."""
    session, _ = _parts(old)
    names = old, new or session
    before, after = (render(_read(client, name).history).splitlines(keepends=True) for name in names)
    lines = list(unified_diff(before, after, *names))
    show("".join(lines))
    if lines:
        raise typer.Exit(_DIFFERENT)


def rewind_session(client: Client, session: str, to: str, how: RewindRequest, *, as_json: bool) -> None:
    """Take a session back, or say what that would do."""
    rewound = client.call(api.rewind(session, how.model_copy(update={"to": _moment(to)})))
    _report(rewound, f"`cfs redo {session}` undoes this.", as_json=as_json)


def redo_session(client: Client, session: str, how: RedoRequest, *, as_json: bool) -> None:
    """Undo the last rewind, or say what that would do."""
    _report(client.call(api.redo(session, how)), "", as_json=as_json)


def _report(rewound: Rewound, undo: str, *, as_json: bool) -> None:
    if as_json:
        show(rewound.model_dump_json() + "\n")
        return
    for step in rewound.sessions:
        show("".join(f"{line}\n" for line in _step(step, rewound.dry_run)))
    for file in rewound.files:
        show(f"  {'-' if file.change == 'removed' else '+'} {shapely(file.path)}\n")
    for path in rewound.left:
        show(f"  {shapely(path)} stays: others have changed it since\n")
    show("".join(f"{shapely(sentence)}\n" for sentence in rewound.lasting))
    if rewound.dry_run:
        note("Nothing has been changed.")
    elif undo:
        note(undo)


def _step(step: RewoundSession, dry_run: bool) -> Iterable[str]:
    if not (step.removed or step.restored or step.cancelled):
        yield f"{step.session}: its messages stay"
        return
    where = "its beginning" if step.to is None else f"version {step.to}"
    yield f"{step.session}: {'would go' if dry_run else 'went'} to {where}"
    for sign, messages in (("-", step.removed), ("+", step.restored)):
        for message in messages[:_LISTED]:
            yield f"  {sign} {message.role}: {_short(message.text)}"
        if len(messages) > _LISTED:
            yield f"  {sign} and {len(messages) - _LISTED} more messages"
    for text in step.cancelled:
        yield f"  cancelled: {_short(text)}"
    for text in step.questions:
        yield f"  question withdrawn: {_short(text)}"
    if step.answers:
        yield "  the last message is answered again"


def _line(version: SessionVersion) -> str:
    author = version.author
    agent = author and author.agent
    who = agent or ("model" if version.role == "assistant" or author is None else author.principal)
    what = {
        "created": f"created with {version.messages} messages" if version.messages else "created",
        "replaced": f"edited: {version.messages} messages",
        "rewound": "went back to its beginning" if version.to is None else f"went back to {version.to}",
        "redone": f"undid a rewind: as {version.to}",
    }.get(version.kind) or f"{version.role}: {_short(version.text)}"
    time = datetime.fromtimestamp(version.at).astimezone().isoformat(" ", "seconds")[:19]
    return f"{version.number:>6}  {time}  {shapely(who):<12}  {what}"


def _short(text: str) -> str:
    return shapely(text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 1]}…")


def _parts(named: str) -> tuple[str, int | str | None]:
    match = _NAMED.fullmatch(named)
    return (check_id(match["session"]), _moment(match["version"])) if match else (check_id(named), None)


def _moment(text: str) -> int | str:
    """Return a version's number, or a time with its zone: without one it is that of this machine."""
    if text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text  # the server refuses it with its reason
    return (time if time.tzinfo else time.astimezone()).isoformat()


def _read(client: Client, named: str) -> SessionDetail:
    session, version = _parts(named)
    return client.call(api.read(session) if version is None else api.read_at(session, version))
