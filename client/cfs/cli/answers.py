"""Sending a message and showing its turn as it runs (S4, S5, S11)."""

import json
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from cfs import api
from cfs.stream import StreamEvent, TurnReader
from cfs.transcript import Turn
from cfs.wire import NewMessage, Reply, Usage

if TYPE_CHECKING:
    from cfs.transports.http import Client

_LONGEST_CALL = 200


def answer(
    client: "Client",
    session: str,
    message: NewMessage,
    show: Callable[[str], None],
    watch: Callable[[StreamEvent], None] = lambda _: None,
    life: api.Life | None = None,
) -> Reply:
    """Send a message and follow its turn: `show` gets the text as it comes, `watch` every event.

    The message is for the `life` of the session that was seen, which is noted with the first event. Raises what the
    server refuses, `Gone` when the session is deleted, `Unreachable` when the server is lost.
    """
    reader = TurnReader(session, Turn(message.role, message.content))
    last = StreamEvent("", {})
    turn = None
    life = life or api.Life()
    with closing(client.events(life.stream(api.converse(session, message)))) as events:
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
    """Say what an event means to somebody who waits for a reply; None for what needs no words."""
    match event.type:
        case "state.changed" if event.data["state"] == "waiting_for_agent":
            return f"[{event.data.get('detail') or 'waiting for an agent'}]"
        case "message.added":
            return "\n".join(_call(call) for call in event.data["message"].get("tool_calls", ())) or None
        case "stale":
            return "[events were lost; the reply goes on]"
    return None


def _call(call: dict[str, object]) -> str:
    arguments = json.dumps(call.get("arguments"), ensure_ascii=False)
    shortened = arguments if len(arguments) <= _LONGEST_CALL else arguments[:_LONGEST_CALL] + "..."
    return f"[{call.get('name')} {shortened}]"
