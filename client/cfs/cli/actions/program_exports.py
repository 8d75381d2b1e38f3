"""`cfs export --as`: write sessions as session files of other programs."""

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cfs import api
from cfs.cli.actions.exports import every_session
from cfs.cli.base.complete_file import complete_file
from cfs.cli.base.options import ProgramName
from cfs.cli.base.output import note, show
from cfs.cli.base.progress import progress
from cfs.contract.errors import InvalidRequest, NotFound
from cfs.contract.wire import SessionDetail, SessionInfo, Settings
from cfs.conversations import claude_code, codex, opencode, pi
from cfs.conversations.archive import counted
from cfs.conversations.conversation import ImportedConversation
from cfs.transports.http import Client


@dataclass(frozen=True, slots=True)
class _Program:
    """How a program stores its sessions, and how it continues one. `loses` names what its format cannot have."""

    write: Callable[[ImportedConversation, str], str]
    file_name: Callable[[ImportedConversation, str], str]
    resume: str
    loses: tuple[str, ...]


_PROGRAMS: Mapping[ProgramName, _Program] = {
    "claude-code": _Program(
        claude_code.write, claude_code.file_name, "claude --resume {id}", ("thoughts", "system messages as such")
    ),
    "codex": _Program(codex.write, codex.file_name, "codex resume {id}", ("thoughts", "titles")),
    "opencode": _Program(opencode.write, opencode.file_name, "opencode import {file}", ("system messages as such",)),
    "pi": _Program(pi.write, pi.file_name, "pi --session {file}", ("system messages as such", "sub-sessions as such")),
}


def export_program(
    client: Client,
    program: ProgramName,
    target: Path,
    sessions: Iterable[str] | None,
    *,
    folder: Path | None,
    force: bool,
) -> None:
    """Write sessions with their sub-sessions below a folder, as a program has them in its own. None means all.

    Prints the command that continues each session. `folder` is the working folder that the program has for them.
    """
    form = _PROGRAMS[program]
    workplace = os.path.abspath(folder or Path.cwd())  # noqa: PTH100 - links stay as the user has named them
    listed = every_session(client) if sessions is None else [client.call(api.read(name)) for name in sessions]
    details: list[SessionDetail] = []
    with progress("exporting") as advance:
        for info in listed:
            for detail in _tree(client, info):
                details.append(detail)
                advance(1)
    names = {detail.id: _identifier(program, detail.id) for detail in details}
    files = {}
    for detail in details:
        conversation = _conversation(detail, names)
        files[detail.id] = target / form.file_name(conversation, workplace), form.write(conversation, workplace)
    if not force:
        for path, _ in files.values():
            if path.exists():
                raise InvalidRequest(f"{path} exists; overwrite it with --force")
    for path, text in files.values():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"{path.parent}: {error.strerror or error}") from None
        with complete_file(path, force=force) as file:
            file.write(text.encode("utf-8", "replace"))
    for name, (path, _) in files.items():
        if "/" not in name or program == "opencode":
            show(form.resume.format(id=names[name], file=path) + "\n")
    note(f"cfs: {counted(len(files))} in {target}")
    losses = list(_losses(form, details))
    if losses:
        note(f"cfs: not exported, as {program} has no place for it: {', '.join(losses)}")


def _tree(client: Client, info: SessionInfo) -> Iterator[SessionDetail]:
    try:
        detail = client.call(api.read(info.id))
    except NotFound:  # it has been deleted since it was listed
        return
    yield detail
    for child in every_session(client, f"{detail.id}/") if detail.sub_sessions else ():
        yield from _tree(client, child)


def _identifier(program: ProgramName, name: str) -> str:
    """Return the id of a session in the program: the same one each time."""
    value = uuid.uuid5(uuid.NAMESPACE_URL, f"cfs:{name}")
    return f"ses_{value.hex[:26]}" if program == "opencode" else str(value)


def _conversation(detail: SessionDetail, names: Mapping[str, str]) -> ImportedConversation:
    times = (*detail.times, *[detail.updated_at] * len(detail.history))[: len(detail.history)]
    return ImportedConversation(
        names[detail.id],
        detail.history,
        times,
        title=detail.title,
        parent=names.get(detail.id.rpartition("/")[0]),
        system=detail.settings.system,
    )


def _losses(form: _Program, details: Iterable[SessionDetail]) -> Iterator[str]:
    messages = [message for detail in details for message in detail.history]
    counts = {
        "thoughts": sum(message.thinking is not None for message in messages),
        "titles": sum(detail.settings.title is not None for detail in details),
        "system messages as such": sum(message.role == "system" for message in messages),
        "sub-sessions as such": sum("/" in detail.id for detail in details),
    }
    yield from (f"{counts[name]} {name}" for name in form.loses if counts[name])
    if waiting := sum(len(detail.queue) for detail in details):
        yield f"{waiting} messages that wait"
    defaults = Settings(system=None)
    names = {name for detail in details for name, value in detail.settings if value != getattr(defaults, name)} - {
        "title"
    }
    if form.write is codex.write:
        names.discard("system")
    if names:
        yield f"settings ({', '.join(sorted(names))})"
    if any(detail.tokens for detail in details):
        yield "counts of tokens"
