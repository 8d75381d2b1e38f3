"""Imports of many sessions."""

from typing import Annotated, Literal

from pydantic import Field

from cfs.contract.wire.base import NewId, WireModel
from cfs.contract.wire.sessions import NewSession


class NamedSession(NewSession):
    """A session of an import. It needs a name."""

    id: Annotated[str, NewId]


class Import(WireModel):
    """Body of `POST /v1/imports`: named sessions, parents first. With `check` nothing is created."""

    sessions: Annotated[tuple[NamedSession, ...], Field(max_length=1_000)]
    check: bool = False


class Imported(WireModel):
    """What became of one session of an import.

    `created`; with `check` `absent`, as it can be created; `same`, as it exists and begins with the same messages;
    `other`, as another conversation has the name; `elsewhere`, as another replica has to create it, by
    `POST /v1/sessions`; `refused`, for the reason in `error`.
    """

    id: str
    outcome: Literal["created", "absent", "same", "other", "elsewhere", "refused"]
    error: str | None = None


class ImportResult(WireModel):
    """What became of each session of an import, in their order."""

    results: tuple[Imported, ...]
