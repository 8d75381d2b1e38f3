"""`cfs ls`, `cfs ps`, `cfs set`, `cfs rm` and `cfs cat`: list, configure, delete and print sessions."""

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime

import typer

from cfs import api
from cfs.cli.app import REFUSED, note, print_error, show, similar_session
from cfs.cli.settings import read_settings, write_settings
from cfs.errors import CfsError, InvalidSettings, NotFound, Timeout, Unreachable
from cfs.stream import StreamEvent
from cfs.transcript import PREFIXES, render, render_one
from cfs.transports.http import Client
from cfs.wire import Message, SessionDetail, SessionInfo, SettingsPatch

# `cfs cat` (S6, S11)

_WAIT_SECONDS = 30.0
"""Maximum wait of one request in seconds; longer waits use several, so that a dead connection is noticed."""
_PREFIXES = tuple(PREFIXES.values())
_BACKSLASHES = re.compile(r"\\*")


def print_text(client: Client, session: str, *, wait: bool) -> None:
    """Print the transcript as text."""
    view = client.call(api.transcript(session, _WAIT_SECONDS if wait else None))
    while wait and not view.settled:
        view = client.call(api.transcript(session, _WAIT_SECONDS))
    show(view.text)
    if view.state != "idle":
        note(f"cfs: {session} is {view.state.replace('_', ' ')}: the transcript is not complete yet")


def print_detail(client: Client, session: str, *, wait: bool) -> None:
    """Print the session with its structured messages as JSON."""
    if wait:
        _settle(client, session)
    show(client.call(api.read(session)).model_dump_json() + "\n")


def _settle(client: Client, session: str) -> None:
    while True:
        try:
            client.call(api.wait(session, _WAIT_SECONDS))
        except Timeout:
            continue
        return


def follow_session(client: Client, session: str, *, as_json: bool) -> None:
    """Print the transcript and then its additions, or each event as a line of JSON."""
    detail = client.call(api.read(session))
    tail = Tail(session)
    if not as_json:
        show(tail.begin(detail))
    with closing(client.events(api.events(session, str(detail.event)), attempts=float("inf"))) as events:
        for event in events:
            show(as_line(event) if as_json else tail.feed(event))
            if event.type == "stale" and not as_json:
                note("cfs: events were lost; the session is printed again from its beginning")
                show(tail.begin(client.call(api.read(session))))
    sys.stdout.flush()
    note(f"cfs: {session} has been deleted")


# The text of a growing transcript: events in, text out. No I/O.


class EscapedText:
    """The content of one message that arrives in pieces, escaped as in a transcript.

    The beginning of a line that may become a role's prefix is withheld until that is known.
    """

    def __init__(self) -> None:
        self._held: str | None = None

    def feed(self, piece: str) -> str:
        """Add a piece and return the text that can be shown now."""
        at_start = self._held is not None
        first, *lines = ((self._held or "") + piece).split("\n")
        starts = [(first, at_start), *((line, True) for line in lines)]
        last, last_at_start = starts[-1]
        self._held = last if last_at_start and _may_become_prefix(last) else None
        shown = [_guarded(line) if guard else line for line, guard in starts]
        if self._held is not None:
            shown[-1] = ""
        return "\n".join(shown)

    def end(self) -> str:
        """Return the withheld text."""
        held, self._held = self._held, None
        return held or ""


class Tail:
    """Converts events of a session to additions to its transcript."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._shown: str | None = None
        self._text = EscapedText()

    def begin(self, detail: SessionDetail) -> str:
        """Return the current transcript, and continue from there."""
        self._shown = None
        return render(detail.history) + self._add(detail.partial or "")

    def feed(self, event: StreamEvent) -> str:
        """Apply the next event and return the text that it adds."""
        match event.type:
            case "token":
                return self._add(event.data["text"])
            case "message.added":
                return self._complete(Message.model_validate(event.data["message"]))
            case "history.replaced":
                return self._complete(None)
        return ""

    def _add(self, text: str) -> str:
        if not text:
            return ""
        added = ""
        if self._shown is None:
            self._shown, self._text, added = "", EscapedText(), PREFIXES["assistant"]
        added += self._text.feed(text)
        self._shown += added
        return added

    def _complete(self, message: Message | None) -> str:
        """Finish a partly shown message: with the complete message, or because another message begins."""
        shown, self._shown = self._shown, None
        whole = render_one(message) + "\n" if message else ""
        if shown is None:
            return whole
        return whole[len(shown) :] if whole.startswith(shown) else self._text.end() + "\n" + whole


def as_line(event: StreamEvent) -> str:
    """Write an event as a line of JSON."""
    return json.dumps(asdict(event), ensure_ascii=False) + "\n"


def _may_become_prefix(line: str) -> bool:
    rest = line[_end_of_backslashes(line) :]
    return any(prefix != rest and prefix.startswith(rest) for prefix in _PREFIXES)


def _guarded(line: str) -> str:
    return "\\" + line if line.startswith(_PREFIXES, _end_of_backslashes(line)) else line


def _end_of_backslashes(line: str) -> int:
    found = _BACKSLASHES.match(line)
    return found.end() if found else 0


_PAGE = 500


def list_sessions(client: Client, prefix: str, *, long: bool, as_json: bool) -> None:
    """Print the sessions whose names begin with a prefix."""
    pages = _pages(client, prefix)
    if as_json:
        _print_json(pages)
        return
    if long:
        show(f"{'STATE':<10} {'QUEUED':>6} {'MESSAGES':>8} {'BYTES':>9}  {'CHANGED':<19} {'BELOW':>5}  NAME\n")
    for page in pages:
        show("".join((_line(info) if long else info.id) + "\n" for info in page))


def print_matches(client: Client, words: str, *, prefix: str, limit: int, as_json: bool) -> None:
    """Print the messages that contain some words: session, index of the message, and the line with the first match."""
    found = client.search(words, prefix=prefix, limit=limit)
    if as_json:
        show(found.model_dump_json() + "\n")
        return
    for match in found.results:
        show(f"{match.session} #{match.index} {match.role}: {' '.join(match.text.split())}\n")
    if not found.results:
        note("No message contains these words.")
    elif found.truncated:
        note(f"There are more: --limit {min(100, limit * 5)} shows more of them.")


def list_active(client: Client, *, as_json: bool) -> None:
    """Print the sessions with running or waiting turns, at any depth."""
    pages = _pages(client, "", active=True)
    if as_json:
        _print_json(pages)
        return
    found = [info for page in pages for info in page]
    if not found:
        note("No turn is running or queued.")
        return
    now = time.time()
    rows = [f"{'STATE':<10} {'QUEUED':>6} {'MESSAGES':>8} {'TOKENS':>9} {'TIME':>7}  NAME"]
    for info in found:
        since = "" if info.turn_since is None else duration(now - info.turn_since)
        state = f"{_state(info):<10} {info.queued:>6} {info.messages:>8} {info.tokens:>9}"
        rows.append(f"{state} {since:>7}  {info.id}")
    show("".join(f"{row}\n" for row in rows))


def latest_session(client: Client) -> str:
    """Return the session that changed last. Raises `NotFound` if there is none."""
    newest = max((info for page in _pages(client, "") for info in page), key=lambda info: info.updated_at, default=None)
    if newest is None:
        raise NotFound("there is no session yet; `cfs chat` begins one")
    return newest.id


def configure_session(client: Client, session: str, assignments: Sequence[str], *, as_json: bool) -> None:
    """Change settings, or print them if there is nothing to change. Raises `typer.BadParameter`."""
    try:
        patch = read_settings(assignments, SettingsPatch)
    except InvalidSettings as error:
        raise typer.BadParameter(error.detail) from None
    settings = client.call(api.configure(session, patch) if assignments else api.settings(session))
    if as_json:
        show(settings.model_dump_json() + "\n")
    elif not assignments:
        show("".join(f"{line}\n" for line in write_settings(settings)))


def delete_sessions(client: Client, sessions: Iterable[str], *, force: bool) -> None:
    """Delete each session; exits with `REFUSED` when one could not be deleted. `force` ignores missing ones."""
    refused = False
    for session in sessions:
        try:
            client.call(api.delete(session))
        except Unreachable:
            raise
        except CfsError as error:
            if not (force and isinstance(error, NotFound)):
                print_error(error.detail + similar_session(client, error))
                refused = True
    if refused:
        raise typer.Exit(REFUSED)


def _print_json(pages: Iterable[tuple[SessionInfo, ...]]) -> None:
    show("[" + ",\n".join(info.model_dump_json() for page in pages for info in page) + "]\n")


def _pages(client: Client, prefix: str, *, active: bool = False) -> Iterator[tuple[SessionInfo, ...]]:
    after: str | None = ""
    while after is not None:
        page = client.call(api.list_sessions(prefix, after, _PAGE, active=active))
        yield page.sessions
        after = page.next


def _line(info: SessionInfo) -> str:
    changed = datetime.fromtimestamp(info.updated_at).astimezone().isoformat(" ", "seconds")[:19]
    counts = f"{info.queued:>6} {info.messages:>8} {info.size:>9}"
    return f"{_state(info):<10} {counts}  {changed} {info.sub_sessions:>5}  {info.id}"


def _state(info: SessionInfo) -> str:
    return "no agent" if info.state == "waiting_for_agent" else info.state


def duration(seconds: float) -> str:
    """Write a time as `14s`, `2m03s` or `1h02m`."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
