"""Errors as responses (RFC 9457)."""

from pydantic import (
    BaseModel,
)


class Problem(BaseModel):
    """An error, in the one shape that every route uses (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    retry_after: float | None = None
