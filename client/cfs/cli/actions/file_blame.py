"""`cfs files blame`: the change that brought each line of a file, and the message that its agent was answering."""

import json
from collections.abc import Mapping

from cfs import api
from cfs.cli.actions.file_lineage import HIDDEN, FileLineage, LineOrigin
from cfs.cli.actions.files import author_of, place_of, time_text
from cfs.cli.base.output import show, visible
from cfs.contract.errors import InvalidRequest
from cfs.contract.wire import SessionVersion
from cfs.transports.http import Client
from cfs.versions.blame import is_binary
from cfs.versions.prompts import prompt_at

_PAGE = 1000


def blame_file(client: Client, text: str, *, as_json: bool) -> None:
    """Print the lines of a file, each with the change that brought it."""
    path = place_of(text)
    if not path.path:
        raise InvalidRequest(f"{text!r} is a workspace: name a file in it, as in {path.workspace}/PATH")
    newest = client.call(api.file_changes(path.logical, limit=1)).last  # records what programs changed
    at = str(newest) if path.at is None else path.at
    content = client.call(api.read_file(path.logical, at=at)).content
    if is_binary(content):
        raise InvalidRequest(f"{path} is a binary file, which has no lines")
    lines = [(line.version, line.text.decode(errors="replace")) for line in FileLineage(client).lines(path.logical, at)]
    prompts = _prompts(client, {_name(origin, path.workspace): origin for origin, _ in lines})
    if as_json:
        for number, (origin, line) in enumerate(lines, 1):
            prompt = prompts.get(_name(origin, path.workspace))
            show(json.dumps(_record(origin, number, line, prompt), ensure_ascii=False) + "\n")
        return
    digits = len(str(len(lines)))
    rows = [(_name(origin, path.workspace), _author(origin), origin.change.at, line) for origin, line in lines]
    name_width = max([6, *(len(name) for name, *_ in rows)])
    width = max((len(author) for _, author, *_ in rows), default=0)
    for number, (name, author, changed_at, line) in enumerate(rows, 1):
        left = f"{name:>{name_width}}  {time_text(changed_at)}  {author:<{width}}  {number:>{digits}}  "
        show(visible(left + line.removesuffix("\n")) + "\n")
    for position, (name, prompt) in enumerate(prompts.items()):
        show(("" if position else "\n") + visible(f"{name:>{name_width}}  answers: {prompt}") + "\n")


def _name(origin: LineOrigin, workspace: str) -> str:
    """Name a change: by its number, after the name of its workspace if this is another one."""
    number = f"{'^' if origin.change.kind == 'older' else ''}{origin.change.number}"
    return number if origin.workspace == workspace else f"{origin.workspace}@{number}"


def _author(origin: LineOrigin) -> str:
    return author_of(origin.change.principal, origin.change.agent, origin.change.tool_call)


def _record(origin: LineOrigin, number: int, line: str, prompt: str | None) -> dict[str, object]:
    change = origin.change
    return {
        "line": number,
        "text": line.removesuffix("\n"),
        "workspace": origin.workspace,
        "number": change.number,
        "at": change.at,
        "kind": change.kind,
        "principal": change.principal,
        "agent": change.agent,
        "tool_call": change.tool_call,
        "prompt": prompt,
    }


def _prompts(client: Client, origins: Mapping[str, LineOrigin]) -> dict[str, str]:
    """Return the message that the agent of each change was answering, where the caller may read its session."""
    sessions: dict[str, list[SessionVersion]] = {}
    texts: dict[tuple[str, int], str | None] = {}
    prompts = {}
    for name, origin in sorted(origins.items(), key=lambda item: item[1].change.number):
        agent = origin.change.agent
        if not agent:
            continue
        if agent not in sessions:
            sessions[agent] = _session(client, agent)
        version = prompt_at(sessions[agent], origin.change.at)
        if version is None:
            continue
        if (agent, version) not in texts:
            texts[agent, version] = _first_line(client, agent, version)
        text = texts[agent, version]
        if text is not None:
            prompts[name] = text
    return prompts


def _first_line(client: Client, session: str, version: int) -> str | None:
    """Return the first line of the last message of a version that is not empty."""
    try:
        history = client.call(api.read_at(session, version)).history
    except HIDDEN:
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
    except HIDDEN:
        return []
