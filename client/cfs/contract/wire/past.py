"""The versions of a conversation, and the way back to one of them."""

from typing import Annotated, Literal

from pydantic import Field

from cfs.contract.wire.base import Integral, WireModel
from cfs.contract.wire.messages import Role

VersionKind = Literal["created", "message", "replaced", "rewound", "redone"]

AT_PATTERN = r"^[0-9]{1,9}$"
"""A version as parameters name it: its number. A time (ISO 8601) is taken as well, which no pattern says."""


class VersionAuthor(WireModel):
    """Who made a version: a principal, and the agent and its call of a tool if one acted for it."""

    principal: str
    agent: str | None = None
    call: str | None = None


class SessionVersion(WireModel):
    """A change of a history: what it was, and the beginning of the message that it added."""

    number: int
    at: float
    kind: VersionKind
    messages: int = Field(description="Number of messages of the history at this version.")
    role: Role | None = None
    text: str = ""
    author: VersionAuthor | None = Field(None, description="Null for a reply of the model.")
    to: int | None = Field(None, description="Of a rewind: the version whose messages the history has then.")


class SessionVersions(WireModel):
    """Versions of a session, oldest first; `before` is the parameter of the page with older ones."""

    session: str
    versions: tuple[SessionVersion, ...]
    before: int | None = None


ForeignChanges = Literal["refuse", "theirs", "ours"]


class RewindRequest(WireModel):
    """Body of `POST .../rewind`: the version to go back to, by its number or the time at which it was current.

    `messages` and `files` are what goes back: the history, and what the agents of the sessions have changed in the
    workspace. If others have changed such a file since, `others` says what becomes of it: the rewind is refused, their
    file stays, or it goes back as well. With `sub_sessions`, those go back to the same time. `dry_run` changes nothing,
    and says what would be.
    """

    to: Annotated[int, Field(ge=0), Integral] | Annotated[str, Field(json_schema_extra={"pattern": AT_PATTERN})]
    messages: bool = True
    files: bool = True
    others: ForeignChanges = "refuse"
    sub_sessions: bool = False
    dry_run: bool = False


class RedoRequest(WireModel):
    """Body of `POST .../redo`, which undoes the last rewind, in all sessions that it changed, and its files."""

    others: ForeignChanges = "refuse"
    dry_run: bool = False


class RewoundMessage(WireModel):
    """The beginning of a message that a rewind removes from a history, or brings back to it."""

    index: int
    role: Role
    text: str


class RewoundSession(WireModel):
    """What a rewind does to one session.

    `version` is the newest one, after the rewind if it was carried out. `to` is null for a session that did not exist
    at that time: it is empty then.
    """

    session: str
    version: int
    to: int | None
    removed: tuple[RewoundMessage, ...] = ()
    restored: tuple[RewoundMessage, ...] = ()
    cancelled: tuple[str, ...] = Field((), description="Messages whose turns run or wait, which are cancelled.")
    questions: tuple[str, ...] = Field((), description="Open questions of the agent, which are withdrawn.")
    answers: bool = Field(False, description="Whether the last message is answered again.")


class RewoundFile(WireModel):
    """A file, folder or link of a workspace that a rewind puts back, or removes. `path` is the logical path."""

    path: str
    change: Literal["restored", "removed"]


class Rewound(WireModel):
    """What a rewind does, or would do. The session of the request is the first one; unchanged ones are left out.

    `left` are the logical paths of files that stay, because others have changed them since. `lasting` are sentences
    that say what it does not undo.
    """

    dry_run: bool
    sessions: tuple[RewoundSession, ...]
    files: tuple[RewoundFile, ...] = ()
    left: tuple[str, ...] = ()
    lasting: tuple[str, ...] = ()
