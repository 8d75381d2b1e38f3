"""`cfs import`: create the sessions of an exported file on a server."""

import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from cfs import api
from cfs.cli.actions.archive import FORMAT, INDEX, counted
from cfs.cli.base.exit_codes import REFUSED
from cfs.cli.base.output import note, print_error
from cfs.cli.base.progress import progress
from cfs.contract.errors import (
    AlreadyExists,
    CfsError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    Unreachable,
)
from cfs.contract.ids import check_id
from cfs.contract.wire import Imported, Message, NamedSession, NewMessage, SessionDetail, Settings, SettingsPatch
from cfs.transports.http import Client

_BATCH = 500
"""Maximum number of sessions that one request imports."""

_BATCH_CHARACTERS = 1 << 20

_OVERHEAD = 200
"""Estimated characters of a session or a message besides its content."""


class _Exported(BaseModel):
    """What an import needs of a `session.json`. Fields of later versions are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    settings: Settings
    history: tuple[Message, ...] = ()
    queue: tuple[Message, ...] = ()
    tokens: int = 0

    @property
    def root(self) -> str:
        """The first part of the name."""
        return self.id.partition("/")[0]


def import_sessions(client: Client, file: Path, *, rename: bool) -> None:
    """Create the sessions of an export on a server.

    A session that is there already with the same messages, or with more of them, is left as it is. If another
    conversation has the name, nothing is imported, or with `rename` the session gets a new name. Exits with `REFUSED`
    if some sessions could not be created; each is reported, and the others are imported.
    """
    families = _families(_read(file))
    everything = [session for family in families.values() for session in family]
    with progress("checking", len(everything)) as advance:
        outcomes = dict(_outcomes(client, [_new(session, session.root) for session in everything], advance, check=True))
    names: dict[str, str] = {}
    taken = []
    for root, family in families.items():
        if all(outcomes[session.id].outcome in ("absent", "same", "refused") for session in family):
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
    same = {name for name, result in outcomes.items() if result.outcome == "same"}
    todo = [session for session in everything if session.id not in same or names[session.root] != session.root]
    with progress("importing", len(todo)) as advance:
        made = dict(_outcomes(client, [_new(session, names[session.root]) for session in todo], advance))
    created = {name for name, result in made.items() if result.outcome == "created"}
    for session in everything:
        if (name := _name(session, names[session.root])) in created:
            for message in session.queue:
                waiting = NewMessage(content=message.content, role=message.role, tool_call_id=message.tool_call_id)
                client.call(api.post(name, waiting))
    for root, name in names.items():
        if name != root:
            note(f"cfs: {root!r} was imported as {name!r}")
    failures = [result for result in made.values() if result.outcome not in ("created", "same")]
    for failure in failures:
        print_error(f"{failure.id!r} was not imported: {failure.error or 'another conversation has the name'}")
    there = len(everything) - len(created) - len(failures)
    note(
        f"cfs: {counted(len(created))} imported"
        + (f"; {there} of {len(everything)} were there already" if there else "")
        + (f"; {len(failures)} not imported" if failures else "")
    )
    if failures:
        raise typer.Exit(REFUSED)


def _new(session: _Exported, root: str) -> NamedSession:
    """Return a session as it is created, with a root that may be renamed."""
    defaults = Settings()
    changed = {key: value for key, value in session.settings if value != getattr(defaults, key)}
    tokens = {"tokens": session.tokens} if session.tokens else {}  # servers of before do not know it
    return NamedSession(id=_name(session, root), settings=SettingsPatch(**changed), messages=session.history, **tokens)


def _outcomes(
    client: Client, sessions: Sequence[NamedSession], advance: Callable[[int], object], *, check: bool = False
) -> Iterator[tuple[str, Imported]]:
    """Create sessions in batches, or only check them, and yield what became of each by its name."""
    for batch in _batches(sessions):
        for result in _batch(client, batch, check=check):
            yield result.id, result
        advance(len(batch))


def _batches(sessions: Sequence[NamedSession]) -> Iterator[list[NamedSession]]:
    batch: list[NamedSession] = []
    size = 0
    for session in sessions:
        length = sum(len(message.content) for message in session.messages) + _OVERHEAD * (len(session.messages) + 1)
        if batch and (len(batch) == _BATCH or size + length > _BATCH_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(session)
        size += length
    if batch:
        yield batch


def _batch(client: Client, batch: list[NamedSession], *, check: bool) -> Iterator[Imported]:
    try:
        results = client.call(api.import_sessions(batch, check=check)).results
    except TooLarge:  # the limit of this server is smaller
        if len(batch) > 1:
            half = len(batch) // 2
            yield from _batch(client, batch[:half], check=check)
            yield from _batch(client, batch[half:], check=check)
            return
        results = (Imported(id=batch[0].id or "", outcome="elsewhere"),)
    except (NotFound, MethodNotAllowed):  # a server of before
        results = tuple(Imported(id=session.id or "", outcome="elsewhere") for session in batch)
    for session, result in zip(batch, results, strict=True):
        yield _single(client, session, check=check) if result.outcome == "elsewhere" else result


def _single(client: Client, session: NamedSession, *, check: bool) -> Imported:
    """Create or check one session by requests of its own."""
    name = session.id or ""
    existing = _find(client, name)
    if existing is not None:
        same = existing.history[: len(session.messages)] == session.messages
        return Imported(id=name, outcome="same" if same else "other")
    if check:
        return Imported(id=name, outcome="absent")
    try:
        client.call(api.create(name, session.settings, messages=session.messages, tokens=session.tokens))
    except Unreachable:
        raise
    except TooLarge as error:
        advice = "the settings max_body_bytes and max_messages of this server must be larger for the import"
        return Imported(id=name, outcome="refused", error=f"{error.detail}; {advice}")
    except CfsError as error:
        return Imported(id=name, outcome="refused", error=error.detail)
    return Imported(id=name, outcome="created")


def _read(file: Path) -> Iterator[_Exported]:
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


def _parsed(data: bytes, file: Path, name: str) -> _Exported:
    try:
        if json.loads(data)["format"] > FORMAT:
            raise InvalidRequest(f"{file} was written by a newer CFS; import it with that version")
        session = _Exported.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{file}: {name}: {location}: {first['msg'].lower()}") from None
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
    checked = _outcomes(client, [_new(session, root) for session in family], lambda _: None, check=True)
    return all(result.outcome in ("absent", "same", "refused") for _, result in checked)


def _find(client: Client, name: str) -> SessionDetail | None:
    try:
        return client.call(api.read(name))
    except NotFound:
        return None


def _free_name(client: Client, family: Iterable[_Exported], root: str) -> str:
    number = 2
    while not _fits(client, family, check_id(f"{root}-{number}")):
        number += 1
    return f"{root}-{number}"


def _name(session: _Exported, root: str) -> str:
    """Return the name of a session whose root is renamed."""
    return root + session.id.removeprefix(session.root)
