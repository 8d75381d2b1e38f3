"""Turns that an agent claims, updates and finishes."""

from urllib.parse import quote

from cfs.api._calls import Call, json_request, parse_model, path_of
from cfs.contract import wire


def claim(session: str, lease: float = wire.LEASE_SECONDS, wait: float = 0.0) -> Call[wire.Claim | None]:
    """`POST /v1/sessions/{id}/claim`: the next message that waits; None after `wait` seconds without (S10)."""
    request = json_request(
        "POST", path_of(session, "claim"), wire.ClaimRequest(lease=lease, wait=wait), wait_seconds=wait
    )
    return Call(request, lambda answer: None if answer.status == 204 else wire.Claim.model_validate_json(answer.body))


def update(session: str, turn: str, news: wire.AgentUpdate) -> Call[wire.Claim]:
    """`POST /v1/sessions/{id}/turns/{turn}/update`: text or messages of a claimed turn; renews the lease (S10)."""
    return Call(
        json_request("POST", path_of(session, f"turns/{quote(turn, safe='')}/update"), news), parse_model(wire.Claim)
    )


def finish(session: str, turn: str, end: wire.AgentFinish) -> Call[wire.Reply]:
    """`POST /v1/sessions/{id}/turns/{turn}/finish`: the end of a claimed turn (S10)."""
    return Call(
        json_request("POST", path_of(session, f"turns/{quote(turn, safe='')}/finish"), end), parse_model(wire.Reply)
    )
