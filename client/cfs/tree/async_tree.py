"""Trees of agents as Python objects: follow what they do, read their files, wait for their outcome.

There is an async and a sync version; tools/unasync.py generates the sync one.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Self

from cfs import api
from cfs.contract.errors import NotFound, Timeout
from cfs.contract.ids import check_id
from cfs.contract.wire import NewMessage, SessionTree, SettingsPatch
from cfs.state.event_types import SessionEvent
from cfs.state.stream import StreamEvent
from cfs.state.tree_state import TreeAgent, TreeFile, TreeOutcome, agent_of
from cfs.transports.async_http import LONG_POLL_SECONDS, AsyncClient
from cfs.transports.deadlines import Deadline

_LATE = "agents of the tree still work; the work goes on"
_PAGE = 1000


class AsyncTree:
    """The agents that answer a session and the sessions below it, by the name of the root's session.

    `url` and `token` default to `CFS_URL` and `CFS_TOKEN`. The object starts no agents and stores nothing: each call
    reads the present state. Close it, or use it as a context manager, to close its connections. Errors are those of
    `cfs.errors`; if there is no such session, calls raise `NotFound`.
    """

    def __init__(self, session: str = "main", *, url: str | None = None, token: str | None = None) -> None:
        self._id = check_id(session)
        self._client = AsyncClient(url, token)

    @property
    def session(self) -> str:
        """Id of the root's session."""
        return self._id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id!r})"

    async def send(self, task: str) -> str:
        """Give the root a task, without waiting, and return the id of its turn.

        Over HTTP: `POST /v1/sessions/{id}/messages`.
        """
        return (await self._client.call(api.post(self._id, NewMessage(content=task)))).turn or ""

    async def watch(self, task: str | None = None, *, after: str | None = None) -> AsyncGenerator[SessionEvent]:
        """Yield the events of all sessions of the tree in one order, those of later children included.

        The stream begins now, or after the event with the id `after` (`"0"`: with the oldest that is kept). With a
        `task`, it is given to the root once nothing can be missed, and the stream ends with its turn. Otherwise it
        ends when the root's session is deleted or renamed.

        After a lost connection it goes on where it was. If events were missed that the server no longer keeps, one
        event of the type `stale` says so: read the present state again. Raises `Unreachable` if the server stays away.
        Use `contextlib.aclosing` to close the connection at once when you leave the stream. Over HTTP:
        `GET /v1/events`.
        """
        below = f"{self._id}/"
        turn: str | None = None
        missed = False
        if task is None:
            await self._client.call(api.settings(self._id))
        stream = replace(api.events(after=after), announce=True)
        async with aclosing(self._client.events(stream)) as events:
            async for event in events:
                is_root = event.session == self._id
                if event.type == "connected":
                    turn = await self.send(task) if task is not None and turn is None else turn
                elif event.type == "stale":
                    yield event
                    missed = turn is not None  # the end of the turn may be among what was missed
                    if missed and (await self._client.call(api.sub_sessions(self._id))).state == "idle":
                        return
                elif is_root or event.session.startswith(below):
                    yield event
                    if is_root and _is_last(event, turn, missed=missed):
                        return

    async def agents(self) -> tuple[TreeAgent, ...]:
        """Return the agents, each before those below it: what each does now, and what it took.

        Over HTTP: `GET /v1/sessions/{id}/sub_sessions`, and `GET /v1/sessions/{id}` for each.
        """
        return await read_agents(self._client, await self._client.call(api.sub_sessions(self._id)))

    async def files(self) -> tuple[TreeFile, ...]:
        """Return the files in the workspace of the tree, ordered by path; agents publish them while they work.

        Over HTTP: `GET /v1/files`.
        """
        files: list[TreeFile] = []
        prefix, after = self._place(""), ""
        while True:
            page = await self._client.call(api.files(prefix, after, _PAGE))
            for info in page.files:
                path = info.path.removeprefix(prefix)
                files.append(TreeFile(path, info.size, info.version or "", info.updated_at))
            if page.next is None:
                return tuple(files)
            after = page.next

    async def read_file(self, path: str) -> bytes:
        """Return the content of a file in the workspace; raises `NotFound` if there is none.

        Over HTTP: `GET /v1/files/{path}`.
        """
        return (await self._client.call(api.read_file(self._place(path)))).content

    async def write_file(self, path: str, content: bytes, *, version: str | None = None) -> TreeFile:
        """Write a file in the workspace, where the agents find it.

        With a `version` only over that version; raises `PreconditionFailed` if the file has changed since. Over HTTP:
        `PUT /v1/files/{path}`.
        """
        etag = None if version is None else f'"{version}"'
        info = (await self._client.call(api.write_file(self._place(path), content, etag=etag))).info
        return TreeFile(path, info.size, info.version or "", info.updated_at)

    async def outcome(self, timeout: float | None = None) -> TreeOutcome:
        """Wait until no agent of the tree works, and return how the last task ended.

        Raises `Timeout` after so many seconds (None: no limit), and `NotFound` if the root has had no task. Over HTTP:
        `GET /v1/sessions/{id}/wait`.
        """
        deadline = Deadline(timeout)
        while True:
            try:
                await self._client.call(api.wait(self._id, min(deadline.left, LONG_POLL_SECONDS)))
            except Timeout:
                deadline.check(_LATE)
                continue
            agents = await self.agents()
            if all(agent.state == "idle" for agent in agents):
                break
        ended = agents[0].outcome
        if ended is None:
            raise NotFound(f"session {self._id!r} has had no task: send() gives it one")
        return TreeOutcome(ended.status, ended.text, agents)

    async def pause(self, *, paused: bool = True) -> None:
        """Pause all agents, each before its next step; with `paused=False` let them go on.

        Over HTTP: `PATCH /v1/sessions/{id}/settings`.
        """
        await self._client.call(api.configure(self._id, SettingsPatch(paused=paused)))

    async def cancel(self) -> None:
        """Cancel the tasks of all agents. They accept new ones afterwards.

        Over HTTP: `POST /v1/sessions/{id}/cancel`.
        """
        await self._client.call(api.cancel(self._id, queued=True, cascade=True))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _place(self, path: str) -> str:
        return f"/workspaces/{self._id}/{path}"


async def read_agents(client: AsyncClient, tree: SessionTree) -> tuple[TreeAgent, ...]:
    """Read the sessions of a tree and describe their agents, each before those below it."""
    agents: list[TreeAgent] = []
    ahead = [(tree, False)]
    while ahead:
        node, paused = ahead.pop()
        try:
            detail = await client.call(api.read(node.id))
        except NotFound:  # deleted since it was listed
            if node is tree:
                raise
            continue
        agent = agent_of(detail, paused=paused, now=time.time())
        agents.append(agent)
        ahead += [(child, agent.paused) for child in reversed(node.children)]
    return tuple(agents)


def _is_last(event: StreamEvent, turn: str | None, *, missed: bool) -> bool:
    if event.type in ("turn.finished", "turn.failed"):
        return turn is not None and event.turn == turn
    if missed and event.type == "state.changed":
        return bool(event.data["state"] == "idle")
    return event.type == "session.deleted"
