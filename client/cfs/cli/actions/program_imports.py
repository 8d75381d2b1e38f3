"""`cfs import --from`: create sessions from the session files of other programs."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer

from cfs import api
from cfs.cli.actions.batches import outcomes
from cfs.cli.actions.program_files import Source, default_folder, sources
from cfs.cli.base.exit_codes import REFUSED
from cfs.cli.base.options import ProgramName
from cfs.cli.base.output import note, print_error
from cfs.cli.base.progress import progress
from cfs.contract.errors import AlreadyExists, CfsError, InvalidRequest, Unreachable
from cfs.contract.ids import check_id
from cfs.contract.wire import Message, NamedSession, NewMessage, SettingsPatch
from cfs.conversations.archive import counted
from cfs.conversations.conversation import ImportedConversation
from cfs.transports.http import Client

_MAX_DEPTH = 15
"""Sub-sessions of sub-sessions; deeper ones are put here."""

_MAX_SYSTEM = 262_144
"""Characters of the setting `system`."""

_DAMAGES = 20
"""Damaged lines that are named; the others are counted."""


def import_program(client: Client, program: ProgramName, folder: Path | None) -> None:
    """Create a session for each conversation of a program; sub-agents become sub-sessions.

    A session that exists gets the messages that are new in the file. If it has gone on otherwise here, it is left as it
    is and reported. Nothing is answered. Exits with `REFUSED` if something could not be read or imported; the rest is
    imported.
    """
    folder = folder or default_folder(program)
    readers = sources(program, folder)
    with progress("reading", len(readers)) as advance:
        files = []
        for read in readers:
            files.append(read())
            advance(1)
    conversations = [conversation for file in files for conversation in file.conversations if conversation.messages]
    failures = _report_damage(files)
    sessions = _sessions(program, conversations)
    if not sessions and not failures:
        raise InvalidRequest(f"{folder} has no conversations of {program}; name the folder that has them")
    with progress("checking", len(sessions)) as advance:
        checked = dict(outcomes(client, list(sessions.values()), advance, check=True))
    new = [session for name, session in sessions.items() if checked[name].outcome == "absent"]
    with progress("importing", len(new)) as advance:
        imported = dict(outcomes(client, [_answered(session) for session in new], advance))
    results = checked | imported
    extended = 0
    for name, session in sessions.items():
        result = results[name]
        try:
            if result.outcome == "created":
                _post(client, session, len(_answered(session).messages))
            elif result.outcome == "other":
                _post(client, session, _common(client, session))
                extended += 1
            elif result.outcome == "refused":
                raise CfsError(result.error or "")
        except Unreachable:
            raise
        except CfsError as error:
            print_error(f"{name!r} was not imported: {error.detail}")
            failures += 1
    created = sum(result.outcome == "created" for result in results.values())
    _summarize(conversations, len(sessions), created, extended)
    if failures:
        raise typer.Exit(REFUSED)


def _report_damage(files: Iterable[Source]) -> int:
    """Name the lines that could not be read, and return their number."""
    damages = [(file.path, damage) for file in files for damage in file.damage]
    for path, damage in damages[:_DAMAGES]:
        line = f", line {damage.line}" if damage.line else ""
        print_error(f"{path}{line}: {damage.reason}; the rest is imported")
    if len(damages) > _DAMAGES:
        print_error(f"{len(damages) - _DAMAGES} more lines could not be read")
    return len(damages)


def _sessions(program: ProgramName, conversations: Iterable[ImportedConversation]) -> dict[str, NamedSession]:
    """Return the sessions by their names, parents first. The name comes from the program's id, so it stays the same."""
    by_id = {conversation.id: conversation for conversation in conversations}
    names = {name: _name(program, conversation, by_id) for name, conversation in by_id.items()}
    sessions = {}
    for conversation in sorted(by_id.values(), key=lambda item: names[item.id].count("/")):
        name = names[conversation.id]
        title = re.sub(r"[\x00-\x1f\x7f]+", " ", conversation.title or "").strip()[:200]
        settings = {"title": title} if title else {}
        prompt = conversation.system or ""
        if len(prompt) > _MAX_SYSTEM:
            note(f"cfs: {name!r}: the system prompt is longer than {_MAX_SYSTEM} characters, and was left out")
        system = {"system": prompt} if 0 < len(prompt) <= _MAX_SYSTEM else {}
        sessions[name] = NamedSession(
            id=name,
            settings=SettingsPatch.model_validate(settings | system),
            messages=conversation.messages,
            times=conversation.times if any(conversation.times) else (),
            tokens=conversation.tokens,
        )
    return sessions


def _name(program: ProgramName, conversation: ImportedConversation, by_id: Mapping[str, ImportedConversation]) -> str:
    parts = []
    ids = {conversation.id}
    while (parent := by_id.get(conversation.parent or "")) is not None and parent.id not in ids:
        parts.append(_component(conversation.id))
        ids.add(parent.id)
        conversation = parent
    root = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{program}-{conversation.id}")[:200]
    return check_id("/".join([root, *reversed(parts[-_MAX_DEPTH:])]))


def _component(text: str) -> str:
    """Return the name of a sub-agent: not a word of the API's routes."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", text)
    return (name if "-" in name or "_" in name else f"agent-{name}")[-64:]


def _answered(session: NamedSession) -> NamedSession:
    """Return a session without the user's messages at its end: the server would answer them."""
    count = len(session.messages)
    while count and session.messages[count - 1].role == "user":
        count -= 1
    return session.model_copy(update={"messages": session.messages[:count], "times": session.times[:count]})


def _common(client: Client, session: NamedSession) -> int:
    """Return how many messages of a conversation its session has. Raises `AlreadyExists` if it has others."""
    history = client.call(api.read(session.id)).history
    if history != session.messages[: len(history)]:
        raise AlreadyExists("the session has other messages, or has gone on here; rename or delete it to import again")
    return len(history)


def _post(client: Client, session: NamedSession, begin: int) -> None:
    for message in session.messages[begin:]:
        client.call(api.post(session.id, _new(message)))


def _new(message: Message) -> NewMessage:
    values = {name: getattr(message, name) for name in Message.model_fields}
    return NewMessage(**values, generate=False)


def _summarize(conversations: Iterable[ImportedConversation], total: int, created: int, extended: int) -> None:
    """Say what was done, and what of the files has no place in CFS."""
    lost: Counter[str] = Counter()
    models: set[str] = set()
    for conversation in conversations:
        lost.update(conversation.lost)
        models.update(conversation.models)
    note(
        f"cfs: {counted(created)} imported"
        + (f"; {extended} continued" if extended else "")
        + (f"; {total - created - extended} of {total} were left as they are" if total > created + extended else "")
    )
    losses = [f"{count} {name}" for name, count in sorted(lost.items()) if count]
    if losses:
        note(f"cfs: not imported, as sessions have no place for it: {', '.join(losses)}")
    if models:
        note(f"cfs: the setting `model` was not changed; the replies are by {', '.join(sorted(models))}")
