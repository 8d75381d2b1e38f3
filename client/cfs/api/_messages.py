"""Messages and events of sessions."""

from cfs.api._calls import EVENTS, JSON, TEXT, Call, Request, Stream, json_request, parse_model, path_of, seconds_text
from cfs.contract import wire


def append(session: str, content: bytes, delay: float = 0.0) -> Call[wire.Accepted]:
    """`POST /v1/sessions/{id}/messages` with plain text: one message, as if it were written to a file (S3, S4).

    Its turn begins after `delay` seconds, or as soon as a client waits for the reply.
    """
    headers = {"Content-Type": TEXT, "Accept": JSON}
    request = Request("POST", path_of(session, "messages"), delay_params(delay), headers, content)
    return Call(request, parse_model(wire.Accepted))


def post(session: str, message: wire.NewMessage) -> Call[wire.Accepted]:
    """`POST /v1/sessions/{id}/messages`: a structured message, accepted at once (S4)."""
    return Call(json_request("POST", path_of(session, "messages"), message), parse_model(wire.Accepted))


def say(session: str, message: wire.NewMessage, wait: float) -> Call[wire.Reply]:
    """`POST /v1/sessions/{id}/messages?wait=&transcript=true`: the finished reply, and the transcript up to it.

    `Timeout`, which names the `turn`, when it is not there after `wait` seconds; then the turn goes on.
    """
    params = {"wait": seconds_text(wait), "transcript": "true"}
    return Call(
        json_request("POST", path_of(session, "messages"), message, params=params, wait_seconds=wait),
        parse_model(wire.Reply),
    )


def converse(session: str, message: wire.NewMessage) -> Stream:
    """`POST /v1/sessions/{id}/messages` as a stream: the message's own turn, event by event."""
    request = json_request("POST", path_of(session, "messages"), message, accept=EVENTS)
    return Stream(request, session, one_turn=True)


def turn_events(session: str, turn: str) -> Stream:
    """`GET /v1/sessions/{id}/events`: those of one turn, from its beginning to its end."""
    return Stream(events(session, after="0").request, session, one_turn=True, turn=turn)


def events(session: str | None = None, after: str | None = None) -> Stream:
    """`GET /v1/sessions/{id}/events`, or of all sessions: what happens from now on, or after an event (S11)."""
    path = "/v1/events" if session is None else path_of(session, "events")
    params = {} if after is None else {"after": after}
    return Stream(Request("GET", path, params, {"Accept": EVENTS}), session)


def delay_params(seconds: float) -> dict[str, str]:
    """Return the query that delays a turn; empty without a delay."""
    return {"delay": seconds_text(seconds)} if seconds else {}
