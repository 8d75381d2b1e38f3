"""`cfs questions` and `cfs answer`: list and answer the open questions of agents (A5)."""

import sys
from collections.abc import Iterable
from contextlib import suppress

from cfs import api
from cfs.cli.base.output import is_terminal, note, show
from cfs.contract.errors import Conflict, Forbidden, InvalidRequest, NotFound
from cfs.contract.invisible import shapely
from cfs.contract.wire import Question, SessionTree
from cfs.state.question_text import subject_of, wish_of
from cfs.transports.http import Client


def list_questions(client: Client, session: str | None, *, as_json: bool) -> None:
    """Print the open questions of a session and of those below it, or of all sessions."""
    names = _asking(client, session)
    questions = [(name, question) for name in names for question in client.call(api.questions(name))]
    if as_json:
        lines = (f'{{"session":{_text(name)},"question":{entry.model_dump_json()}}}' for name, entry in questions)
        show("[" + ",\n".join(lines) + "]\n")
        return
    if not questions:
        note("No question is open.")
    for name, question in questions:
        show(f"{as_lines(name, question)}  {', '.join(question.choices)}\n")


def answer_each(client: Client, session: str | None) -> None:
    """Ask the user each open question at the terminal, and send the answers. An empty line leaves one open."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise InvalidRequest("--answer needs a terminal: list the questions, and answer one by `cfs answer`")
    questions = [(name, question) for name in _asking(client, session) for question in client.call(api.questions(name))]
    if not questions:
        note("No question is open.")
    for name, question in questions:
        discard_typed()
        note(as_lines(name, question).rstrip("\n"))
        while True:
            sys.stderr.write(f"{', '.join(question.choices)} (empty: later)? ")
            sys.stderr.flush()
            line = sys.stdin.readline()
            if not line:
                note("")
                return
            if not line.strip():
                break
            if (choice := match_choice(line.strip(), question)) is not None:
                try:
                    client.call(api.answer(name, question.id, choice))
                except (Conflict, Forbidden, NotFound) as error:
                    note(f"[{error.detail}]")
                break


def discard_typed() -> None:
    """Drop what was typed before a question: it is no answer to it."""
    import termios

    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def match_choice(word: str, question: Question) -> str | None:
    """Return the choice that a word is, or is the only one to begin with it."""
    choices = [word] if word in question.choices else [choice for choice in question.choices if choice.startswith(word)]
    return choices[0] if word and len(choices) == 1 else None


def answer_question(client: Client, session: str, words: list[str]) -> None:
    """Answer a question of a session: the words are its answer, behind an id if several are open."""
    *ids, answer = words
    if len(ids) > 1:
        raise InvalidRequest("give the session, the id of a question if several are open, and the answer")
    questions = client.call(api.questions(session))
    if not questions:
        raise NotFound(f"no question is open in session {session!r}")
    chosen = [candidate for candidate in questions if not ids or candidate.id.startswith(ids[0])]
    if len(chosen) != 1:
        names = ", ".join(candidate.id[:8] for candidate in questions)
        raise (Conflict if chosen else NotFound)(f"say which question by the beginning of its id: {names}")
    (question,) = chosen
    if answer not in question.choices:
        raise InvalidRequest(f"the answer is one of {', '.join(question.choices)}")
    client.call(api.answer(session, question.id, answer))


def _asking(client: Client, session: str | None) -> Iterable[str]:
    """Yield the sessions with open questions."""
    if session is not None:
        yield from sessions_with_questions(client, session)
        return
    after = ""
    while True:
        page = client.call(api.list_sessions(after=after, active=True))
        yield from (info.id for info in page.sessions if info.open_questions)
        if page.next is None:
            return
        after = page.next


def sessions_with_questions(client: Client, session: str) -> Iterable[str]:
    """Yield the sessions with open questions, among a session and those below it."""
    return _below(client.call(api.sub_sessions(session)))


def _below(tree: SessionTree) -> Iterable[str]:
    if tree.open_questions:
        yield tree.id
    for child in tree.children:
        yield from _below(child)


def as_lines(session: str, question: Question) -> str:
    """Return a question with all of its command visible."""
    return f"{shapely(session)} {question.id[:8]}: {wish_of(question)}?\n{subject_of(question)}"


def _text(name: str) -> str:
    import json

    return json.dumps(name)
