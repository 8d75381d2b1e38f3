"""Links that share a session (G9)."""

from typing import Annotated, Literal

from pydantic import (
    Field,
)

from cfs.contract.wire.base import NewId, WireModel


class NewShare(WireModel):
    """Body of `POST /v1/shares`: the session, what the link allows, and the seconds until it ends (null: never)."""

    session: Annotated[str, NewId]
    access: Literal["read", "write"] = "read"
    expires: Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)] | None = None


class ShareInfo(WireModel):
    """A share of a session. `expires` is a time in seconds since the epoch."""

    id: str
    session: str
    access: Literal["read", "write"]
    created_at: float
    expires: float | None = None


class NewlyShared(WireModel):
    """A new share: the path of the page that opens it, and its token, which is never shown again.

    On a server without tokens there is nothing to allow: `id` and `token` are null, and the path opens the session.
    """

    id: str | None
    token: str | None
    path: str


class ShareList(WireModel):
    """The caller's shares of a session, oldest first."""

    shares: tuple[ShareInfo, ...]
