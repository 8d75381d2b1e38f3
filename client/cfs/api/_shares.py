"""Links that share a session."""

from typing import Literal
from urllib.parse import quote

from cfs.api._calls import Call, Request, json_request, parse_model, parse_nothing
from cfs.contract import wire
from cfs.contract.ids import check_id


def share(session: str, access: Literal["read", "write"], expires: float | None = None) -> Call[wire.NewlyShared]:
    """`POST /v1/shares`: make a link to a session and all below it, which ends after some seconds (G9)."""
    new = wire.NewShare(session=check_id(session), access=access, expires=expires)
    return Call(json_request("POST", "/v1/shares", new), parse_model(wire.NewlyShared))


def shares(session: str) -> Call[wire.ShareList]:
    """`GET /v1/shares`: the caller's own shares of a session (G9)."""
    return Call(Request("GET", "/v1/shares", {"session": check_id(session)}), parse_model(wire.ShareList))


def revoke_share(share: str) -> Call[None]:
    """`DELETE /v1/shares/{id}`: its token is refused at once, and its connections end (G9)."""
    return Call(Request("DELETE", f"/v1/shares/{quote(share, safe='')}"), parse_nothing)
