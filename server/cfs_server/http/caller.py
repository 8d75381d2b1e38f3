"""Dependencies of routes: the caller with its authorized interfaces, and shared parameters."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, cast

from anyio import to_thread
from fastapi import Depends, Header, Query, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from cfs.api import LIFE
from cfs.completions import ModelCard
from cfs.errors import AlreadyExists, Forbidden, InvalidParameters, NotFound, Unsupported
from cfs.wire import AT_PATTERN, CostRow, ForeignChanges
from cfs_filesystem import NotFoundError, Path
from cfs_server.access.auth import Principal, Principals
from cfs_server.access.shares import Shares
from cfs_server.completions.run import AuthorizedCompletions, EphemeralCompletions
from cfs_server.completions.stored import StoredResponses, UnnamedSessions
from cfs_server.config.settings import ServerSettings
from cfs_server.connect.manager import ModelConnections
from cfs_server.domain.authors import author
from cfs_server.domain.ids import WORKSPACES, family_of, has_workspace
from cfs_server.domain.questions import Question
from cfs_server.domain.rights import Right
from cfs_server.domain.words import Criteria
from cfs_server.engine.contract.interface import Engine, HasModels, ModelInfo
from cfs_server.http.errors import invalid
from cfs_server.http.event_streams import EventStream, Frames, Streams
from cfs_server.http.idempotency import Requests
from cfs_server.http.markup import Renderer
from cfs_server.http.metrics import Metrics
from cfs_server.http.middleware import CONTEXT
from cfs_server.journal.journal import Journal
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.rewinding import RewindPlan
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore
from cfs_server.workspaces.file_index import FileMatch
from cfs_server.workspaces.file_service import Files
from cfs_server.workspaces.forking import FileForks
from cfs_server.workspaces.history import MergedWorkspace
from cfs_server.workspaces.merging import FileMerges
from cfs_server.workspaces.rewinding import CallersFileRewind, FileRewinds
from cfs_server.workspaces.workspaces import Workspaces

CURSOR_PATTERN = r"^([0-9a-f]{8}(\.[0-9a-f]{8})?-)?[0-9]{1,18}$"


@dataclass(frozen=True, slots=True)
class Context:
    """What answers requests for one store of sessions. Most routes get a `Caller`; this is for those of operators."""

    settings: ServerSettings
    engine: Engine
    model: ModelInfo | None
    store: SessionStore
    sessions: SessionStore
    """The sessions that callers see: those of `store`, or of all stores of the process."""
    workspaces: Workspaces
    principals: Principals
    metrics: Metrics
    streams: Streams
    completions: EphemeralCompletions
    requests: Requests
    renderer: Renderer
    shares: Shares
    connections: ModelConnections
    dav: ASGIApp
    rewinds: FileRewinds | None = None
    """The rewinds of files; None if no versions of them are kept."""
    forks: FileForks | None = None
    """The copies of workspaces; None as well."""
    merges: FileMerges | None = None
    """The merges of workspaces; None as well."""
    started_at: float = field(default_factory=time.time)
    unnamed: UnnamedSessions = field(default_factory=UnnamedSessions)

    @property
    def journal(self) -> Journal | None:
        """The journal of `store`."""
        return self.store.journal

    @property
    def models(self) -> tuple[ModelInfo, ...]:
        """All models as they are now, the default first."""
        if isinstance(self.engine, HasModels):
            return self.engine.infos()
        return () if self.model is None else (self.model,)

    @property
    def model_cards(self) -> tuple[ModelCard, ...]:
        """The models as completions show them, the default first."""
        return tuple(self._card(model) for model in self.models) or (
            ModelCard(id="unknown", created=int(self.started_at)),
        )

    def _card(self, model: ModelInfo) -> ModelCard:
        return ModelCard(
            id=model.name,
            created=int(self.started_at),
            max_model_len=model.context_tokens or None,
            parameters=model.parameters or None,
            embedded=model.embedded,
            has_chat_template=model.has_chat_template if model.loaded else None,
            notes=model.notes,
            loaded=model.loaded,
            price=model.price,
            capabilities=model.capabilities,
        )


def _missing(source: Session, copy: Session, children: int, files: str | None) -> tuple[str, ...]:
    """Say what a copy does not have: the agent of the original, files, and sub-sessions."""
    warnings = []
    if source.settings.driver == "agent":
        attach = f"`cfs agent serve --session {copy.id}` attaches one to {copy.id}"
        warnings.append(
            f"the agent of {source.id} answers there only, and the driver is {copy.settings.driver}: {attach}"
        )
    if files:
        warnings.append(f"files are not copied: {files}")
    if children:
        warnings.append(f"sub-sessions are not copied: {source.id} has {children}")
    return tuple(warnings)


class Caller:
    """The principal of one request, and the interfaces it may use."""

    __slots__ = ("_parts", "principal", "sessions")

    def __init__(self, principal: Principal, parts: Context, query: Mapping[str, str]) -> None:
        """Authorize a request. Raises `InvalidParameters` if its query has another `look_alike` than `allow`."""
        self.principal = principal
        look_alike = query.get("look_alike")
        if look_alike not in (None, "allow"):
            raise invalid([{"loc": ("query", "look_alike"), "msg": "the only value is 'allow'"}])
        self.sessions = AuthorizedSessions(
            parts.sessions, principal.authorization, principal.account, look_alikes=look_alike is not None
        )
        self._parts = parts

    @property
    def files(self) -> Files:
        """The files that the principal may use."""
        me = self.principal
        return Files(me.authorization, me.usage, me.limits.bytes, me.searches, self.sessions)

    async def search_files(self, criteria: Criteria, prefix: str, within: str, limit: int) -> list[FileMatch]:
        """Return the best matches in text files of workspaces that the principal may read."""
        index, handle = self._parts.workspaces.index, self.principal.authorization.handle
        if index is None or "/" in within:  # sub-sessions share the workspace of their root
            return []

        def may_read(path: Path) -> bool:
            if not path.startswith(f"{WORKSPACES}{prefix}"):
                return False
            if path.endswith("/"):
                return bool(handle.scopes("read_binary", path))
            return handle.allows("read_binary", path)

        return await index.search(criteria, may_read, within, limit)

    @property
    def no_versions(self) -> str:
        """Say that versions of files are not kept, and why."""
        return f"versions of files are not kept here: {self._parts.workspaces.versions_absent} (docs/versions.md)"

    @property
    def keeps_versions(self) -> bool:
        """Whether versions of files are kept."""
        return self._parts.rewinds is not None

    def file_rewind(self, plan: RewindPlan, others: ForeignChanges) -> CallersFileRewind | None:
        """Return what lets the files of a workspace follow a rewind of sessions.

        None if no versions are kept, or if the principal may not change the workspace.
        """
        workspace, rewinds = family_of(plan.steps[0].session.id), self._parts.rewinds
        if rewinds is None or not self.files.may_rewind(workspace):
            return None
        return CallersFileRewind(rewinds, plan, workspace, others)

    async def merge_files(self, target: str, source: str, *, dry_run: bool) -> MergedWorkspace:
        """Merge the files of a workspace into another one, which is a copy of it or its original.

        Needs the rights to read all of the source, and to read, write and delete all of the target.
        """
        files = self.files
        files.require_merge(target, source)
        if "/" in target or "/" in source or target == source:
            raise InvalidParameters(f"name two workspaces: {WORKSPACES}TARGET, and the other one as `source`")
        if self._parts.merges is None:
            raise Unsupported(self.no_versions)
        try:
            merged = await self._parts.merges.merge(target, source, files.room, dry_run=dry_run)
        except NotFoundError as error:
            raise NotFound(error.detail) from None
        if merged.number is not None:
            self._parts.store.recall_agents(target)
        return merged

    async def fork(
        self, session_id: str, new: str | None = None, messages: int | None = None, *, files: bool = True
    ) -> tuple[Session, tuple[str, ...]]:
        """Copy a session and, with `files`, its workspace. Returns the copy, and sentences that say what it lacks."""
        taken: set[str] = set()
        async with self.sessions.loaded(session_id):
            while True:
                name = self.sessions.name_of_copy(session_id, new, taken)
                if new is None and files and await self._has_files(name):
                    taken.add(name)
                    continue
                try:
                    return await self._fork(session_id, name, messages, files=files)
                except AlreadyExists:
                    if new is not None:
                        raise
                    taken.add(name)  # another copy got it meanwhile

    async def _fork(
        self, session_id: str, name: str, messages: int | None, *, files: bool
    ) -> tuple[Session, tuple[str, ...]]:
        sessions = self.sessions
        source = sessions.get(session_id, "read_binary")
        missing: str | None = ""
        if files and (missing := self._files_refused(source, name)) is None:
            missing = await self._no_files(source.id)
        if missing is not None or self._parts.forks is None:
            copy = sessions.fork(session_id, name, messages)
        else:
            at = None
            if messages is not None and messages < len(source.history):
                at = (await sessions.past(session_id))[1].of_first(messages).moment
            vacant, room = self._parts.sessions.find(name) is None, self.files.room
            async with self._parts.forks.forked(source.id, name, at, room, vacant=vacant) as missing:
                copy = sessions.fork(session_id, name, messages)
        return copy, _missing(source, copy, len(sessions.children(source)), missing)

    async def _has_files(self, copy: str) -> bool:
        """Return whether the workspace of a copy would be there already, for a caller who may write it."""
        if self._parts.forks is None or not has_workspace(copy) or not self.files.may_use_all(copy, "write"):
            return False
        return await to_thread.run_sync(self._parts.workspaces.exists, copy)

    def _files_refused(self, source: Session, copy: str) -> str | None:
        """Return why a copy of a session may have no files: an empty text if this is not to be said; None if it may."""
        root = family_of(source.id)
        if root == family_of(copy) or not has_workspace(root):
            return ""  # they share a workspace, or there can be none
        if not (source.settings.driver == "agent" or self.files.may_see_some(root)):
            return ""  # the caller must not learn whether there is one
        if not has_workspace(family_of(copy)):
            return f"{family_of(copy)!r} is no name for files"
        if not self.files.may_use_all(root, "read_binary"):
            return f"that takes the right to read all of {WORKSPACES}{root}"
        if not self.files.may_use_all(family_of(copy), "write"):
            return f"that takes the right to write all of {WORKSPACES}{family_of(copy)}"
        if source.id != root or copy != family_of(copy):
            return f"{WORKSPACES}{root} stays with {root}: only a root session has a workspace"
        return None

    async def _no_files(self, workspace: str) -> str | None:
        """Return why a workspace cannot be copied: an empty text if there is none; None if it can be."""
        if not await to_thread.run_sync(self._parts.workspaces.exists, workspace):
            return ""
        return None if self._parts.forks is not None else self.no_versions

    @property
    def completions(self) -> AuthorizedCompletions:
        """The completions that the principal may request."""
        parts, account = self._parts, self.principal.account
        return AuthorizedCompletions(parts.model_cards, parts.engine, parts.completions, self.sessions, account)

    @property
    def costs(self) -> list[CostRow]:
        """What the principal has spent on models; with the right to list everything, what all have spent."""
        rows, me = self._parts.sessions.costs(), self.principal
        if not me.is_share and "/" in me.handle.scopes("list"):
            return rows
        return [row for row in rows if row.principal == me.name]

    @property
    def responses(self) -> StoredResponses:
        """The stored responses that the principal may use."""
        return StoredResponses(self.sessions, self._parts.unnamed)

    @property
    def has_token(self) -> bool:
        """Whether the server requires tokens, so that it can tell callers apart."""
        return self._parts.principals.closed

    def question_to_answer(self, session_id: str, question_id: str) -> Question:
        """Return a question that the caller may answer as a person.

        Raises `NotFound`, or `Forbidden` without the right, for the bearer of a share, and for an agent that would
        answer itself, as far as the server can know.
        """
        question = self.sessions.get_for(Right.STEER, session_id).question(question_id)
        acting = author.get()
        if acting is not None and acting.agent is not None:
            raise Forbidden("an agent does not answer questions: a person does")
        if self.has_token and question.asker == self.principal.account.owner:
            raise Forbidden(
                f"this question was asked with the same token, {question.asker!r}: answer it with another token, or at"
                " the agent's terminal"
            )
        return question

    def answer_question(self, session_id: str, question_id: str, answer: str) -> Question:
        """Answer a question as a person. Raises as `question_to_answer` and `Session.answer_question` do."""
        self.question_to_answer(session_id, question_id)
        session = self.sessions.get_for(Right.STEER, session_id)
        return session.answer_question(question_id, answer, self.principal.name)

    def wait_limit(self, seconds: float | None) -> float:
        """Limit a wait to the maximum of one request."""
        max_seconds = self._parts.settings.max_wait
        return max_seconds if seconds is None else min(seconds, max_seconds)

    def stream(
        self,
        frames: Frames,
        close: Callable[[], Awaitable[None]] | None = None,
        left: Callable[[], None] | None = None,
        *,
        lines: bool = False,
    ) -> EventStream:
        """Return a stream of events, or of lines of JSON, that counts for the principal.

        `close` ends its source. `left` is called if the client disconnects before the end.
        """
        return self._parts.streams.response(frames, self.principal, close, left, lines=lines)


# All dependencies are coroutines, because FastAPI runs plain functions in threads.


def context_of(scope: Scope) -> Context:
    """Return the context of a request."""
    return cast("Context", scope[CONTEXT])


def scope_in(context: Context, scope: Scope) -> Scope:
    """Return a copy of a request for the sessions of a context."""
    return {**scope, CONTEXT: context}


class DavRoute:
    """ASGI application: passes requests on to the WebDAV application of their context."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Raises `CfsError`."""
        await context_of(scope).dav(scope, receive, send)


async def _context(request: Request) -> Context:
    return context_of(request.scope)


def settings_of(request: Request) -> ServerSettings:
    """Return the server's settings."""
    return context_of(request.scope).settings


async def _caller(request: Request) -> Caller:
    return Caller(request.scope["cfs.principal"], context_of(request.scope), request.query_params)


async def _sessions(request: Request) -> AuthorizedSessions:
    return (await _caller(request)).sessions


Life = Annotated[
    str | None,
    Header(
        alias=LIFE,
        include_in_schema=False,  # every route can return 410; docs/api.md describes it once
    ),
]
AppContext = Annotated[Context, Depends(_context)]
Me = Annotated[Caller, Depends(_caller)]
Sessions = Annotated[AuthorizedSessions, Depends(_sessions)]
Seconds = Annotated[float, Query(ge=0, le=86_400, allow_inf_nan=False)]
Delay = Annotated[
    float,
    Query(
        ge=0,
        le=10,
        description="Seconds until a turn that this starts begins, unless somebody waits for it: time to delete the"
        " session again.",
    ),
]
At = Annotated[
    str | None,
    Query(
        json_schema_extra={"pattern": AT_PATTERN},
        description="Return it as it was: the number of a version, or a time, such as `2027-01-31T12:00:00Z`.",
    ),
]
Accept = Annotated[str | None, Header(include_in_schema=False)]
IfMatch = Annotated[
    str | None,
    Header(
        description="Go on only if one of these ETags names the present version.",  # H3
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(description="Answer 304 if one of these ETags names the present version.")  # H3
]
