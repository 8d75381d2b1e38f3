"""`cfs send`: send a message and show its turn as it runs (S4, S5, S11)."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import typer

from cfs import api
from cfs.cli.actions.terminal_questions import TerminalQuestions, UnansweredQuestion
from cfs.cli.base.exit_codes import INTERRUPTED, REFUSED, UNANSWERED, UNVERIFIED
from cfs.cli.base.output import is_terminal, note, print_error, show
from cfs.cli.base.settings import read_settings
from cfs.contract.errors import CfsError, InvalidSettings
from cfs.contract.invisible import shapely
from cfs.contract.transcript import TranscriptMessage
from cfs.contract.wire import Message, NewMessage, Reply, TurnSettings, Usage
from cfs.state import TurnReader
from cfs.state.stream import StreamEvent
from cfs.state.tree_state import outcome_of
from cfs.transports.http import Client

_LONGEST_CALL = 200
_FIRST_MESSAGE = 2
"""Number of the event with the first message of a new session; the session's creation is 1."""


def run(
    client: Client,
    session: str,
    message: NewMessage,
    *,
    wait: bool,
    as_json: bool,
    idempotency_key: str | None = None,
) -> None:
    """Send a message and print the reply.

    Exits with `REFUSED` if the turn failed or was cancelled, with `UNVERIFIED` if an agent's answer is not true, and
    with `UNANSWERED` if an agent asks something and there is no terminal.
    """
    streaming = is_terminal(sys.stdout) and not as_json
    first: list[int] = []

    def watch(event: StreamEvent) -> None:
        first.append(event.number)
        questions.watch(event)
        if streaming and (text := remark(event)):
            note(text)

    if not wait:
        accepted = client.call(api.post(session, message), idempotency_key=idempotency_key)
        show(accepted.model_dump_json() + "\n" if as_json else "")
        return
    questions = TerminalQuestions(client, session)
    write = show if streaming else lambda _: None
    try:
        with questions:
            reply = answer(client, session, message, write, watch, idempotency_key=idempotency_key)
    except UnansweredQuestion as question:
        print_error(f"{question}; then: cfs cat {session}")
        raise typer.Exit(UNANSWERED) from None
    except KeyboardInterrupt:
        note(f"\ncfs: interrupted; the turn continues: cfs cat {session}")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        show(reply.model_dump_json() + "\n")
    elif streaming or reply.error is None:
        show("\n" if streaming else reply.reply + "\n")
    if streaming and first and first[0] <= _FIRST_MESSAGE:
        note_model(client)
    if reply.error is not None:
        print_error(f"the turn failed: {reply.error}")
        raise typer.Exit(REFUSED)
    if reply.finish_reason == "cancelled":
        print_error("the turn was cancelled")
        raise typer.Exit(REFUSED)
    outcome = outcome_of("idle", [Message(role="assistant", content=reply.reply)])
    if outcome is not None and outcome.status == "unverified":
        raise typer.Exit(UNVERIFIED)


def note_model(client: Client) -> None:
    """Say what a user should know about a model that is a toy, or was not trained to talk. No transcript has it."""
    try:
        cards = client.call(api.models()).data
    except CfsError:
        return
    for card in cards:
        if card.embedded or card.has_chat_template is False:
            for text in card.notes:
                note(f"[{text}]")


def read_message(words: list[str], assignments: list[str]) -> NewMessage:
    """Make a message of the arguments and of the settings for its turn; raises `typer.BadParameter`."""
    try:
        settings = read_settings(assignments, TurnSettings)
    except InvalidSettings as error:
        raise typer.BadParameter(error.detail, param_hint="--set") from None
    return NewMessage(content=_text(words), settings=settings)


def _text(words: list[str]) -> str:
    """Return the message from the arguments or standard input, by the same rules as a write to a file (S3)."""
    text = " ".join(words) if words and words != ["-"] else _standard_input()
    text = text.removesuffix("\n").removeprefix("User: ")
    if not text.strip():
        raise typer.BadParameter("the message is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("the message is not UTF-8") from None
    return text


def _standard_input() -> str:
    if is_terminal(sys.stdin):
        note("Type the message; Ctrl-D on a line of its own sends it.")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"the message is not UTF-8: {error.reason} at byte {error.start}") from None


def answer(
    client: Client,
    session: str,
    message: NewMessage,
    show: Callable[[str], None],
    watch: Callable[[StreamEvent], None] = lambda _: None,
    life: api.Life | None = None,
    idempotency_key: str | None = None,
) -> Reply:
    """Send a message and follow its turn: `show` gets the text as it comes, `watch` every event.

    The message is for the `life` of the session, which the first event sets. Raises errors of the server, `Gone` if the
    session is deleted, and `Unreachable` if the connection is lost.
    """
    reader = TurnReader(session, TranscriptMessage(message.role, message.content))
    last = StreamEvent("connected", {})
    turn = None
    life = life or api.Life()
    stream = life.stream(api.converse(session, message))
    with closing(client.events(stream, idempotency_key=idempotency_key)) as events:
        for last in events:
            life.saw(last.id)
            turn = turn or last.turn
            watch(last)
            if text := reader.feed(last):
                show(text)
            if reader.caught_up:
                break
    came = reader.outcome(())
    return Reply(
        session=session,
        turn=turn or "",
        event=last.number,
        reply=came.reply,
        finish_reason=came.finish_reason or "stop",
        error=came.error,
        usage=came.usage or Usage(),
    )


def remark(event: StreamEvent) -> str | None:
    """Describe an event for a user who waits for a reply; None for events that need no remark."""
    match event.type:
        case "state.changed" if event.data["state"] == "waiting_for_agent":
            return f"[{event.data['detail']}]" if "detail" in event.data else None
        case "message.added":
            return "\n".join(_call(call) for call in event.data["message"].get("tool_calls", ())) or None
        case "call.decided":
            return f"[{decided(event.data)}]"
        case "stale":
            return "[events were lost; the reply goes on]"
        case "turn.interrupted":
            return "[the server was restarted; the reply begins again]"
    return None


def decided(data: Mapping[str, Any]) -> str:
    """Describe in one line what was decided about a call of an agent, and by what: a rule, or a person."""
    subject = " ".join(shapely(data["subject"]).split())
    subject = subject if len(subject) <= _LONGEST_CALL else subject[:_LONGEST_CALL] + "..."
    who = f"by {shapely(data['by'])}" if data["by"] else "at the agent's terminal"
    rule = f"rule {data['rule']} ({data['source']})" if data["rule"] else data["source"]
    reason = who if data["asked"] else shapely(rule or "no person can be asked")
    return f"{data['verdict']}: {shapely(data['tool'])}({subject}), {reason}"


def _call(call: dict[str, object]) -> str:
    arguments = json.dumps(call.get("arguments"), ensure_ascii=False)
    shortened = arguments if len(arguments) <= _LONGEST_CALL else arguments[:_LONGEST_CALL] + "..."
    return f"[{call.get('name')} {shortened}]"
