"""`cfs import`: create the sessions of an exported file on a server."""

import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import typer
from pydantic import ValidationError

from cfs import api
from cfs.cli.actions.batches import outcomes
from cfs.cli.base.exit_codes import REFUSED
from cfs.cli.base.output import note, print_error
from cfs.cli.base.progress import progress
from cfs.contract.errors import (
    AlreadyExists,
    InvalidRequest,
)
from cfs.contract.ids import check_id
from cfs.contract.wire import NamedSession, NewMessage, Settings, SettingsPatch
from cfs.conversations.archive import FORMAT, INDEX, ExportedSession, counted
from cfs.transports.http import Client


def import_sessions(client: Client, file: Path, *, rename: bool) -> None:
    """Create the sessions of an export on a server.

    A session that is there already with the same messages, or with more of them, is left as it is. If another
    conversation has the name, nothing is imported, or with `rename` the session gets a new name. Exits with `REFUSED`
    if some sessions could not be created; each is reported, and the others are imported.
    """
    families = _families(_read(file))
    everything = [session for family in families.values() for session in family]
    with progress("checking", len(everything)) as advance:
        checked = dict(outcomes(client, [_new(session, session.root) for session in everything], advance, check=True))
    names: dict[str, str] = {}
    taken = []
    for root, family in families.items():
        if all(checked[session.id].outcome in ("absent", "same", "refused") for session in family):
            names[root] = root
        elif rename:
            names[root] = _free_name(client, family, root)
        else:
            taken.append(root)
    if taken:
        others = f" and {len(taken) - 3} more" if len(taken) > 3 else ""
        conflicts = ", ".join(map(repr, taken[:3])) + others
        raise AlreadyExists(
            f"nothing was imported: the server has other conversations in {conflicts}; delete or rename them, or"
            " import under new names with --rename"
        )
    same = {name for name, result in checked.items() if result.outcome == "same"}
    todo = [session for session in everything if session.id not in same or names[session.root] != session.root]
    with progress("importing", len(todo)) as advance:
        results = dict(outcomes(client, [_new(session, names[session.root]) for session in todo], advance))
    created = {name for name, result in results.items() if result.outcome == "created"}
    for session in everything:
        if (name := _name(session, names[session.root])) in created:
            for message in session.queue:
                waiting = NewMessage(content=message.content, role=message.role, tool_call_id=message.tool_call_id)
                client.call(api.post(name, waiting))
    for root, name in names.items():
        if name != root:
            note(f"cfs: {root!r} was imported as {name!r}")
    failures = [result for result in results.values() if result.outcome not in ("created", "same")]
    for failure in failures:
        print_error(f"{failure.id!r} was not imported: {failure.error or 'another conversation has the name'}")
    existing = len(everything) - len(created) - len(failures)
    note(
        f"cfs: {counted(len(created))} imported"
        + (f"; {existing} of {len(everything)} were there already" if existing else "")
        + (f"; {len(failures)} not imported" if failures else "")
    )
    if failures:
        raise typer.Exit(REFUSED)


def _new(session: ExportedSession, root: str) -> NamedSession:
    """Return a session as it is created, with a root that may be renamed."""
    defaults = Settings()
    changed = {key: value for key, value in session.settings if value != getattr(defaults, key)}
    figures = {"tokens": session.tokens, "cost": session.cost, "times": session.times}
    return NamedSession(
        id=_name(session, root),
        settings=SettingsPatch(**changed),
        messages=session.history,
        **{key: value for key, value in figures.items() if value},  # servers of before do not know them
    )


def _read(file: Path) -> Iterator[ExportedSession]:
    """Yield the sessions of an export; raises `InvalidRequest` for any other file."""
    try:
        with tarfile.open(file) as archive:
            has_index = False
            for member in archive:
                data = archive.extractfile(member) if member.isfile() else None
                if data is None:
                    continue
                if member.name == INDEX:
                    has_index = True
                elif member.name.endswith("/session.json"):
                    yield _parsed(data.read(), file, member.name)
            if not has_index:
                raise InvalidRequest(f"{file} is not complete, or no export of CFS: it has no {INDEX}")
    except tarfile.ReadError:
        raise InvalidRequest(f"{file} is damaged, or no tar file") from None
    except (OSError, EOFError) as error:
        raise InvalidRequest(f"{file}: {getattr(error, 'strerror', None) or error}") from None


def _parsed(data: bytes, file: Path, name: str) -> ExportedSession:
    try:
        if json.loads(data)["format"] > FORMAT:
            raise InvalidRequest(f"{file} was written by a newer CFS; import it with that version")
        unknown: list[str] = []
        session = ExportedSession.model_validate_json(data, context=unknown)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{file}: {name}: {location}: {first['msg'].lower()}") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest(f"{file}: {name} is no session of CFS") from None
    if unknown:
        note(f"cfs: {session.id!r}: this version has no setting {', '.join(unknown)}; it was left out")
    check_id(session.id)
    return session


def _families(sessions: Iterable[ExportedSession]) -> dict[str, list[ExportedSession]]:
    """Return the sessions by their root, parents first."""
    families: dict[str, list[ExportedSession]] = {}
    for session in sessions:
        families.setdefault(session.root, []).append(session)
    for family in families.values():
        family.sort(key=lambda session: session.id.count("/"))
    return families


def _fits(client: Client, family: Iterable[ExportedSession], root: str) -> bool:
    """Return whether each session is absent on the server, or the same conversation."""
    checked = outcomes(client, [_new(session, root) for session in family], lambda _: None, check=True)
    return all(result.outcome in ("absent", "same", "refused") for _, result in checked)


def _free_name(client: Client, family: Iterable[ExportedSession], root: str) -> str:
    number = 2
    while not _fits(client, family, check_id(f"{root}-{number}")):
        number += 1
    return f"{root}-{number}"


def _name(session: ExportedSession, root: str) -> str:
    """Return the name of a session whose root is renamed."""
    return root + session.id.removeprefix(session.root)
