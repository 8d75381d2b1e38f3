"""The agent's side of the protocol: answers the requests of an editor, and turns errors into those of JSON-RPC."""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from acp import PROTOCOL_VERSION, RequestError
from acp.interfaces import Client as Editor
from acp.schema import (
    AgentCapabilities,
    CloseSessionResponse,
    ForkSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionForkCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionMode,
    SessionModeState,
    SessionResumeCapabilities,
    SetSessionModeResponse,
)

from cfs import api
from cfs.errors import CfsError, Conflict, InvalidRequest, NotFound, Unauthorized
from cfs.transports.async_http import AsyncClient
from cfs.wire import SessionDetail, SettingsPatch
from cfs_acp import records
from cfs_acp.servers import servers_of
from cfs_acp.session import AgentOptions, EditorSession
from cfs_acp.updates import Block, prompt_text
from cfs_acp.workbench import Workbench
from cfs_agents.base.threads import in_thread
from cfs_agents.tools import CommandMode, sandbox_trouble

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)
_PAGE = 100
_MODES = {
    CommandMode.NONE: ("No commands", "Work with files only."),
    CommandMode.ASK: ("Ask", "Ask before each command, which then runs as your user."),
    CommandMode.BWRAP: ("Sandbox", "Run commands without asking, in a sandbox without network."),
    CommandMode.HOST: ("Allow", "Run commands without asking, as your user."),
}
_INVALID_PARAMS, _INTERNAL, _AUTH_REQUIRED, _NOT_FOUND = -32602, -32603, -32000, -32002
_CODES: tuple[tuple[type[CfsError], int], ...] = (
    (NotFound, _NOT_FOUND),
    (Unauthorized, _AUTH_REQUIRED),
    (InvalidRequest, _INVALID_PARAMS),
)


def protocol_error(error: CfsError) -> RequestError:
    """Return the JSON-RPC error that an error of CFS is."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), _INTERNAL)
    return RequestError(code, error.detail, {"type": type(error).__name__})


def _answers(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Turn the errors of a method into those of JSON-RPC."""

    @wraps(method)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except CfsError as error:
            raise protocol_error(error) from None
        except OSError as error:
            raise RequestError(_INTERNAL, str(error), {"type": "OSError"}) from None

    return answer


class EditorAgent:
    """Answers one editor. Its sessions are those of the server behind `client`; `close` ends what runs."""

    def __init__(self, client: AsyncClient, options: AgentOptions) -> None:
        self._client = client
        self._options = options
        self._sessions: dict[str, EditorSession] = {}
        self._editor: Editor
        modes = [mode for mode in CommandMode if mode is not CommandMode.BWRAP or sandbox_trouble() is None]
        self._modes = [SessionMode(id=mode, name=_MODES[mode][0], description=_MODES[mode][1]) for mode in modes]

    def on_connect(self, conn: Editor) -> None:
        """Take the connection to the editor."""
        self._editor = conn

    async def close(self) -> None:
        """Cancel all prompts and end all processes."""
        while self._sessions:
            await self._sessions.popitem()[1].close()

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:  # noqa: ARG002
        """Say what this agent can do. There is one version of the protocol."""
        sessions = SessionCapabilities(
            list=SessionListCapabilities(),
            fork=SessionForkCapabilities(),
            resume=SessionResumeCapabilities(),
            close=SessionCloseCapabilities(),
        )
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(embedded_context=True),
                mcp_capabilities=McpCapabilities(http=True, sse=False),
                session_capabilities=sessions,
            ),
            agent_info=Implementation(name="cfs", title="CFS", version=version("cfs-local-acp")),
            auth_methods=[],
        )

    @_answers
    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> NewSessionResponse:
        """Create a session on the server for a folder."""
        folder = _folder(cwd)
        name = records.new_name(folder)
        await self._client.call(api.create(name, SettingsPatch(driver="agent")))
        session = await self._open(name, folder, mcp_servers)
        return NewSessionResponse(session_id=name, modes=self._modes_of(session))

    @_answers
    async def load_session(self, cwd: str, session_id: str, mcp_servers: Any = None, **_: Any) -> LoadSessionResponse:
        """Open a session again, and send what was said in it."""
        session, detail = await self._reopen(session_id, cwd, mcp_servers)
        await session.replay(detail)
        return LoadSessionResponse(modes=self._modes_of(session))

    @_answers
    async def resume_session(
        self, cwd: str, session_id: str, mcp_servers: Any = None, **_: Any
    ) -> ResumeSessionResponse:
        """Open a session again, without sending what was said in it."""
        session, _detail = await self._reopen(session_id, cwd, mcp_servers)
        return ResumeSessionResponse(modes=self._modes_of(session))

    @_answers
    async def fork_session(self, cwd: str, session_id: str, mcp_servers: Any = None, **_: Any) -> ForkSessionResponse:
        """Copy a session, of an agent or not. The copy of one that is at work ends before the running turn."""
        folder = _folder(cwd)
        copy = records.new_name(folder)
        await self._client.call(api.fork(session_id, copy))
        await self._client.call(api.configure(copy, SettingsPatch(driver="agent")))
        session = await self._open(copy, folder, mcp_servers)
        return ForkSessionResponse(session_id=copy, modes=self._modes_of(session))

    @_answers
    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> ListSessionsResponse:
        """List the sessions of editors on this machine, a page at a time, maybe of one folder only."""
        sessions: list[SessionInfo] = []
        after: str | None = cursor or ""
        while after is not None and not sessions:
            page = await self._client.call(api.list_sessions(records.PREFIX, after, _PAGE))
            for info in page.sessions:
                folder = records.cwd_of(info.id)
                if folder is None or (cwd is not None and Path(cwd) != Path(folder)):
                    continue
                changed = datetime.fromtimestamp(info.updated_at, UTC).isoformat()
                sessions.append(SessionInfo(session_id=info.id, cwd=folder, title=info.title, updated_at=changed))
            after = page.next
        return ListSessionsResponse(sessions=sessions, next_cursor=after)

    @_answers
    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        """Cancel what runs in a session and end its processes. The session stays on the server."""
        session = self._session(session_id)
        del self._sessions[session_id]
        await session.close()
        return CloseSessionResponse()

    @_answers
    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> SetSessionModeResponse:
        """Set whether commands run, and how."""
        session = self._session(session_id)
        if mode_id not in [mode.id for mode in self._modes]:
            raise InvalidRequest(f"there is no mode {mode_id!r}")
        session.mode = CommandMode(mode_id)
        return SetSessionModeResponse()

    @_answers
    async def prompt(self, session_id: str, prompt: list[Block], **_: Any) -> PromptResponse:
        """Answer a prompt."""
        session = self._session(session_id)
        return await session.prompt(prompt_text(prompt, session.paths))

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Cancel the running prompt of a session; a notification gets no answer, so an unknown id is ignored."""
        if (session := self._sessions.get(session_id)) is not None:
            session.cancel()

    def _session(self, session_id: str) -> EditorSession:
        if session_id not in self._sessions:
            raise NotFound(f"no session {session_id!r} is open: create or load it first")
        return self._sessions[session_id]

    def _modes_of(self, session: EditorSession) -> SessionModeState:
        return SessionModeState(current_mode_id=session.mode, available_modes=self._modes)

    async def _reopen(self, session_id: str, cwd: str, mcp_servers: Any) -> tuple[EditorSession, SessionDetail]:
        """Open a session that agents answer. Raises `Conflict` for one that the model itself answers."""
        folder = _folder(cwd)
        detail = await self._client.call(api.read(session_id))
        if detail.settings.driver != "agent":
            raise Conflict(f"the model itself answers {session_id!r}, not an agent: fork it to work on its copy")
        if records.is_abandoned(session_id):  # else its prompt would begin again, once the lease of the turn ends
            await self._client.call(api.cancel(session_id, queued=True))
            detail = await self._client.call(api.read(session_id))
        return await self._open(session_id, folder, mcp_servers), detail

    async def _open(self, session_id: str, cwd: Path, mcp_servers: Any) -> EditorSession:
        before = self._sessions.get(session_id)
        if before is not None and before.busy:
            raise Conflict(f"a prompt is being answered in {session_id!r}: cancel it, or wait for its end")
        if before is not None:
            del self._sessions[session_id]
            await before.close()
        records.keep(session_id, cwd)
        root, variables = records.folder_of(session_id), self._options.keep_variables
        bench = await in_thread(lambda: Workbench(cwd, root, variables))  # it looks through the folder
        session = self._sessions[session_id] = EditorSession(
            session_id, bench, self._editor, self._client, self._options, servers_of(mcp_servers)
        )
        return session


def _folder(cwd: str) -> Path:
    """Return the folder that an editor names. Raises `InvalidRequest` if it is none."""
    path = Path(cwd)
    if not path.is_absolute() or not path.is_dir():
        raise InvalidRequest(f"cwd is the absolute path of a directory, not {cwd!r}")
    return path
