"""`cfs files blame`: the change that brought each line of a file, and the message that its agent was answering."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from cfs import api
from cfs.cli.actions.files import WorkspacePath, author_of, changes_of, place_of, time_text
from cfs.cli.base.output import show, visible
from cfs.contract.errors import Forbidden, InvalidRequest, NotFound, Unsupported
from cfs.contract.wire import FileChange, FileVersion, SessionVersion
from cfs.transports.http import Client
from cfs.versions.blame import blame, is_binary
from cfs.versions.prompts import prompt_at

_PAGE = 1000
_SOURCES = 10
"""How many removed files are compared with a new one, to find out where it came from."""

_HIDDEN = (NotFound, Forbidden, Unsupported, InvalidRequest)


@dataclass(frozen=True, slots=True)
class _Older:
    """What was there before the oldest change that is kept: its author is not known any more."""

    number: int
    at: float
    kind: str = "older"
    principal: str | None = None
    agent: str | None = None
    tool_call: str | None = None


_Origin = FileChange | _Older


def blame_file(client: Client, text: str, *, as_json: bool) -> None:
    """Print the lines of a file, each with the change that brought it."""
    place = place_of(text)
    if not place.path:
        raise InvalidRequest(f"{text!r} is a workspace: name a file in it, as in {place.workspace}/PATH")
    newest = client.call(api.file_changes(place.logical, limit=1)).last  # records what programs changed
    at = str(newest) if place.at is None else place.at
    content = client.call(api.read_file(place.logical, at=at)).content
    if is_binary(content):
        raise InvalidRequest(f"{place} is a binary file, which has no lines")
    lines = blame(_versions(client, place, at))
    prompts = _prompts(client, {origin.number: origin for origin, _ in lines})
    shown = [(origin, line.decode(errors="replace")) for origin, line in lines]
    if as_json:
        for number, (origin, line) in enumerate(shown, 1):
            show(json.dumps(_record(origin, number, line, prompts.get(origin.number)), ensure_ascii=False) + "\n")
        return
    digits = len(str(len(lines)))
    authors = [author_of(origin.principal, origin.agent, origin.tool_call) for origin, _ in shown]
    width = max(map(len, authors), default=0)
    for number, ((origin, line), author) in enumerate(zip(shown, authors, strict=True), 1):
        name = f"{'^' if origin.kind == 'older' else ''}{origin.number}"
        left = f"{name:>6}  {time_text(origin.at)}  {author:<{width}}  {number:>{digits}}  "
        show(visible(left + line.removesuffix("\n")) + "\n")
    for position, (number, prompt) in enumerate(sorted(prompts.items())):
        show(("" if position else "\n") + visible(f"{number:>6}  answers: {prompt}") + "\n")


def _record(origin: _Origin, number: int, line: str, prompt: str | None) -> dict[str, object]:
    return {
        "line": number,
        "text": line.removesuffix("\n"),
        "number": origin.number,
        "at": origin.at,
        "kind": origin.kind,
        "principal": origin.principal,
        "agent": origin.agent,
        "tool_call": origin.tool_call,
        "prompt": prompt,
    }


def _versions(client: Client, place: WorkspacePath, at: str) -> Iterator[tuple[_Origin, bytes]]:
    """Yield the contents of a file up to a version, the newest first, also those that it had under other names."""
    path, before = place.logical, int(at) + 1 if at.isdigit() else None
    until = None if at.isdigit() else _seconds(at)
    while True:
        first: tuple[FileChange, bytes] | None = None
        digest, content = "", b""
        for change in changes_of(client, path, before):
            if until is not None and change.at > until:
                continue
            version = _version(change, path)
            if version is None:
                continue
            if version.type != "file":
                break
            if version.sha256 != digest:
                digest, content = version.sha256 or "", client.call(api.read_file(path, at=change.number)).content
            first = change, content
            yield first
        else:
            oldest = client.call(api.file_changes(path, limit=1)).oldest
            if (older := _older(client, path, oldest, first)) is not None:
                yield older
                return
        source = None if first is None else _source(client, path, *first)
        if first is None or source is None:
            return
        path, before, until = source, first[0].number, None


def _older(
    client: Client, path: str, oldest: int, first: tuple[FileChange, bytes] | None
) -> tuple[_Older, bytes] | None:
    """Return the content before the first change that is kept, or None if there was no file."""
    if not oldest or (first is not None and first[0].number <= oldest):
        return None
    try:
        content = client.call(api.read_file(path, at=oldest)).content
        return _Older(oldest, client.call(api.file(path, at=oldest)).updated_at), content
    except NotFound:
        return None


def _source(client: Client, path: str, change: FileChange, content: bytes) -> str | None:
    """Return the path that a new file had before a change, or None if it has no other."""
    whole = client.call(api.file_changes("/".join(path.split("/")[:3]), change.number + 1, 1)).changes
    removed = [file.path for file in whole[0].files if file.type == "removed"] if whole else []
    removed.sort(key=lambda old: (-_shared(old, path), len(old)))
    for old in removed[:_SOURCES]:
        try:
            if client.call(api.read_file(old, at=change.number - 1)).content == content:
                return old
        except _HIDDEN:
            continue
    return None


def _shared(one: str, other: str) -> int:
    """Return the number of components that two paths share at their ends."""
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), 0)


def _version(change: FileChange, path: str) -> FileVersion | None:
    return next((file for file in change.files if file.path == path), None)


def _prompts(client: Client, origins: dict[int, _Origin]) -> dict[int, str]:
    """Return the message that the agent of each change was answering, where the caller may read its session."""
    sessions: dict[str, list[SessionVersion]] = {}
    texts: dict[tuple[str, int], str | None] = {}
    prompts = {}
    for number, origin in origins.items():
        agent = origin.agent
        if not agent:
            continue
        if agent not in sessions:
            sessions[agent] = _session(client, agent)
        version = prompt_at(sessions[agent], origin.at)
        if version is None:
            continue
        if (agent, version) not in texts:
            texts[agent, version] = _first_line(client, agent, version)
        text = texts[agent, version]
        if text is not None:
            prompts[number] = text
    return prompts


def _first_line(client: Client, session: str, version: int) -> str | None:
    """Return the first line of the last message of a version that is not empty."""
    try:
        history = client.call(api.read_at(session, version)).history
    except _HIDDEN:
        return None
    lines = history[-1].content.splitlines() if history else ()
    return next((line.strip() for line in lines if line.strip()), "")


def _session(client: Client, session: str) -> list[SessionVersion]:
    versions: list[SessionVersion] = []
    before = None
    try:
        while True:
            page = client.call(api.versions(session, before, _PAGE))
            versions[:0] = page.versions
            if page.before is None:
                return versions
            before = page.before
    except _HIDDEN:
        return []


def _seconds(time: str) -> float:
    moment = datetime.fromisoformat(time)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
