"""Each way in which a child can end reaches its parent once, with the true state (B5, B7, B8, S2).

`WAYS` is the table. Each way is tried with a parent that waits for the report, with one that works on and is notified,
and with one that does not run when the child ends: the runtime is stopped before the parent has read of the end, and
starts again. Where a combination is impossible, the table says why.
"""

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs.errors import EngineError, UpstreamRefused
from cfs.wire import Message
from cfs_agents.fibre.agent import FibreAgent
from cfs_agents.fibre.report import ReportStatus
from cfs_agents.model import Item, Retries
from cfs_agents.testing import Line, ManualClock, ScriptedModel, calls, raises, says
from ports import free_port
from tests.agents.fibre.trees import finish, late, messages, spawn, status, tree, wait, write
from tests.server.support import Process, ServerHarness, run_cfs, running_server, serving, until


class Parent(StrEnum):
    """What the parent does when its child ends."""

    WAITS = "waits"
    POLLS = "polls"
    AWAY = "away"


@dataclass(slots=True)
class Tree:
    """A running tree `main` with the child `a`, and its server."""

    folder: Path
    server: "Servers"
    clock: ManualClock
    agent: FibreAgent
    released: asyncio.Event
    """Set when a parent that does not wait may go on."""

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request of a user."""
        answer = await self.server.client.post(f"/v1/sessions/{path}", json=body or {})
        assert answer.is_success, answer.text
        return answer.json()

    async def delete(self, session: str) -> None:
        """Delete a session, as a user does."""
        (await self.server.client.delete(f"/v1/sessions/{session}")).raise_for_status()

    @property
    def child_ended(self) -> bool:
        """Whether the child has reported."""
        return "a" in self.agent.agents and not self.agent.agents["a"].busy


Act = Callable[[Tree], Awaitable[object]]


class Servers:
    """The server of a tree: in this loop, or, for ways that end it, a process on a port of its own."""

    def __init__(self, url: str, client: httpx.AsyncClient, harness: ServerHarness | None) -> None:
        self.url = url
        self.client = client
        self.harness = harness

    async def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the server."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start the server again, at the same address."""
        raise NotImplementedError


class ServerProcesses(Servers):
    """A server as a process, which can be ended and started again."""

    def __init__(self, folder: Path, client: httpx.AsyncClient, flags: Sequence[str], port: int) -> None:
        super().__init__(str(client.base_url), client, None)
        self.folder = folder
        self._flags = (*flags, "--engine", "scripted", "--log-level", "error", "--port", str(port))
        self._stack = AsyncExitStack()
        self._process: Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.to_thread(self._stack.enter_context, serving(*self._flags))

    async def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.process.send_signal(number)
        await asyncio.to_thread(self._process.process.wait)

    async def close(self) -> None:
        """End all processes."""
        await self._stack.aclose()


@asynccontextmanager
async def served(way: "Way", folder: Path) -> AsyncIterator[Servers]:
    """Serve what a way needs."""
    if way.store is None:
        async with running_server() as server:
            yield Servers(server.url, server.client, server)
        return
    flags = ("--data-dir", str(folder / "data")) if way.store == "default" else ("--store", way.store)
    port = free_port()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
        server = ServerProcesses(folder, client, flags, port)
        await server.start()
        try:
            yield server
        finally:
            await server.close()


class ParentModel:
    """Starts the child, waits for it or works until it is released, then answers; its step is in the conversation."""

    def __init__(self, way: "Way", parent: Parent, released: asyncio.Event) -> None:
        work = wait("a") if parent is Parent.WAITS else calls("list_directory")
        self._script = [spawn("a", **way.limits), work, says("ok")]
        self._released = None if parent is Parent.WAITS else released

    async def stream(self, said: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Reply."""
        step = sum(message.role == "assistant" for message in said)
        if step == 1 and self._released is not None:
            await self._released.wait()
        async for item in ScriptedModel([self._script[step]]).stream(said, tools):
            yield item


# -- what happens to the child ----------------------------------------------------------------------------------------


async def nothing(_: Tree) -> None:
    """Do nothing."""


async def advance(tree: Tree) -> None:
    """Let the child go on."""
    tree.clock.advance(5)


async def expire(tree: Tree) -> None:
    """Let the lease of the child run out."""
    assert tree.server.harness is not None
    session = tree.server.harness.store.get("main/a")
    assert session.running is not None
    session.expire(session.running)


async def lose_lease(tree: Tree) -> None:
    """Let the lease run out before the child goes on."""
    await expire(tree)
    await advance(tree)


async def take_over(tree: Tree) -> None:
    """Let another runtime claim the turn of the child."""
    await expire(tree)
    assert await tree.post("main/a/claim", {"lease": 300})
    await advance(tree)


async def cancel(tree: Tree) -> None:
    """Cancel the child's turn, as a user does."""
    await tree.post("main/a/cancel")


async def end_by_program(tree: Tree) -> None:
    """Cancel the child by the program that runs the tree."""
    tree.agent.cancel("a")


async def delete(tree: Tree) -> None:
    """Delete the child's session."""
    await tree.delete("main/a")


async def delete_and_create(tree: Tree) -> None:
    """Delete the child's session, and begin another one of its name."""
    await tree.delete("main/a")
    (await tree.server.client.post("/v1/sessions/main/a/messages", content=b"hello")).raise_for_status()


async def rename(tree: Tree) -> None:
    """Give the child's session another name."""
    await tree.post("main/a/rename", {"id": "taken-over"})


async def kill_and_start(tree: Tree) -> None:
    """Kill the server, and start it again."""
    await tree.server.stop()
    await tree.server.start()
    await advance(tree)


async def stop_and_start(tree: Tree) -> None:
    """Stop the server as a service manager does, and start it again."""
    await tree.server.stop(signal.SIGTERM)
    await tree.server.start()
    await advance(tree)


async def restore(tree: Tree) -> None:
    """Put the server back to a backup that was made while the child worked."""
    backup = tree.folder / "backup.db"
    done = await asyncio.to_thread(run_cfs, "backup", str(backup), "--url", tree.server.url)
    assert done.returncode == 0, done.stderr
    tree.clock.advance(5)
    await tree.clock.until_asleep()
    await tree.server.stop(signal.SIGTERM)
    store = tree.folder / "data/sessions.db"
    done = await asyncio.to_thread(run_cfs, "restore", str(backup), "--store", str(store), "--force")
    assert done.returncode == 0, done.stderr
    await tree.server.start()
    await advance(tree)


# -- the table --------------------------------------------------------------------------------------------------------


async def crash(path: str) -> str:
    """Fail with a defect."""
    raise RuntimeError(f"no {path}")


HANGS = (late(write("a.txt"), 1000),)
GOES_ON = (late(write("a.txt")), finish("made a.txt", "a.txt"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a child ends: its script, what happens to it, and what its parent must read.

    `act` happens when the child's model waits, `down` while the runtime is down; then the child plays `again`. `store`
    is that of a server process, which may end; None is a server in this process.
    """

    status: ReportStatus
    reason: str
    child: Sequence[Line] = HANGS
    act: Act | None = None
    down: Act | None = None
    again: Sequence[Line] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    store: str | None = None
    impossible: Mapping[Parent, str] = field(default_factory=dict)


IN_BOTH = {Parent.AWAY: "the runtime is down in this way: the other two columns are that"}

WAYS = {
    "it reports success": Way(status="success", reason="well done", child=[finish("well done")]),
    "it reports failure": Way(status="failed", reason="no luck", child=[finish("no luck", status="failed")]),
    "it claims what is not so": Way(status="unverified", reason="missing.txt", child=[finish("ok", "missing.txt")]),
    "it answers without a report": Way(
        status="unverified", reason="without a report", child=[says("one"), says("two"), says("three")]
    ),
    "it comes to no end": Way(
        status="failed",
        reason="no end in 2 turns",
        child=[write("1"), write("2"), write("3")],
        limits={"max_turns": 2},
    ),
    "it takes too long": Way(status="failed", reason="longer than 0.2 s", limits={"timeout": 0.2}),
    "it repeats itself": Way(status="failed", reason="repeat", child=[calls("list_directory")] * 9),
    "it has no budget": Way(status="failed", reason="budget", child=[finish()], limits={"budget": 1}),
    "its model fails": Way(status="failed", reason="out of memory", child=[raises(EngineError("out of memory"))]),
    "its upstream refuses": Way(status="failed", reason="no key", child=[raises(UpstreamRefused("no key"))]),
    "its tool crashes": Way(
        status="failed",
        reason="the tool crashed",
        child=[calls("crash", path="x"), finish("the tool crashed", status="failed")],
        config={"tools": [crash]},
    ),
    "a user cancels it": Way(status="cancelled", reason="cancelled", act=cancel),
    "the program cancels it": Way(status="cancelled", reason="it was cancelled", act=end_by_program),
    "its session is deleted": Way(status="cancelled", reason="'main/a' has been deleted", act=delete),
    "its session is deleted and created": Way(
        status="cancelled", reason="'main/a' has been deleted", act=delete_and_create
    ),
    "its session is renamed": Way(status="cancelled", reason="is called 'taken-over' now", act=rename),
    "its lease runs out": Way(status="success", reason="made a.txt", child=GOES_ON, act=lose_lease),
    "another runtime takes it": Way(status="cancelled", reason="taken over", child=GOES_ON, act=take_over),
    "the runtime stops in its work": Way(
        status="success", reason="made a.txt", down=nothing, again=[write("a.txt"), *GOES_ON[1:]], impossible=IN_BOTH
    ),
    "its session is deleted while the runtime is down": Way(
        status="cancelled", reason="'main/a' has been deleted", down=delete, impossible=IN_BOTH
    ),
    "its session is created anew while the runtime is down": Way(
        status="cancelled", reason="'main/a' has been deleted", down=delete_and_create, impossible=IN_BOTH
    ),
    "its session is renamed while the runtime is down": Way(
        status="cancelled", reason="is called 'taken-over' now", down=rename, impossible=IN_BOTH
    ),
    "it is cancelled while the runtime is down": Way(
        status="cancelled", reason="it was cancelled", down=cancel, impossible=IN_BOTH
    ),
    "the server is killed": Way(
        status="success", reason="made a.txt", child=GOES_ON, act=kill_and_start, store="default"
    ),
    "the server stops": Way(status="success", reason="made a.txt", child=GOES_ON, act=stop_and_start, store="default"),
    "the server loses its sessions": Way(
        status="success", reason="made a.txt", child=GOES_ON, act=kill_and_start, store="memory"
    ),
    "the server is restored from a backup": Way(
        status="success",
        reason="made a.txt",
        child=[late(write("a.txt")), late(write("b.txt")), finish("made a.txt", "a.txt")],
        act=restore,
        store="default",
    ),
}


def cases() -> Iterator[Any]:
    """Yield every way with every parent, as far as it is possible. Only one parent gets server processes each time."""
    for name, way in WAYS.items():
        for parent in Parent:
            if parent not in way.impossible:
                slow = way.store is not None and parent is not Parent.WAITS
                yield pytest.param(name, parent, marks=pytest.mark.slow if slow else (), id=f"{name}-{parent}")


@asynccontextmanager
async def running(
    way: Way, parent: Parent, folder: Path, server: Servers, *, again: bool = False
) -> AsyncIterator[Tree]:
    """Open the tree, with the models of its first life or of the next one."""
    clock, released = ManualClock(), asyncio.Event()
    script = list(way.again if again else way.child)
    models = {"main": ParentModel(way, parent, released), "a": ScriptedModel(script, clock=clock)}
    async with tree(folder, models.__getitem__, server.url, Retries(first=0.05), **way.config) as agent:
        yield Tree(folder, server, clock, agent, released)


async def notices(folder: Path) -> list[str]:
    """Return all that the parent has read of the child's end."""
    read = [message["content"] for message in await messages(folder) if message["role"] in ("user", "tool")]
    return [text for text in read if re.search(r"\[a (success|failed|unverified|cancelled)\]", text)]


async def stopped(work: "asyncio.Task[Any]") -> None:
    """Stop the runtime in its work."""
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


@pytest.mark.server
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "parent"), list(cases()))
async def test_the_end_of_a_child_reaches_its_parent_once(tmp_path: Path, name: str, parent: Parent) -> None:
    way = WAYS[name]
    async with served(way, tmp_path) as server:
        async with running(way, parent, tmp_path, server) as first:
            work = asyncio.create_task(first.agent.run("go"))
            if way.act is not None or way.down is not None:
                await first.clock.until_asleep()
            if way.act is not None:
                await way.act(first)
            if way.down is None:
                await until(lambda: first.child_ended or work.done())
            if way.down is None and parent is not Parent.AWAY:
                first.released.set()
                assert (await work).summary == "ok"
            else:
                await stopped(work)
        if work.cancelled():
            async with running(way, parent, tmp_path, server, again=True) as second:
                if way.down is not None:
                    await way.down(second)
                work = asyncio.create_task(second.agent.resume())
                await until(lambda: second.child_ended or work.done())
                second.released.set()
                assert (await work).summary == "ok"
        (notice,) = await notices(tmp_path)
        assert f"[a {way.status}]" in notice
        assert re.search(way.reason, notice), notice
        record = await status(tmp_path, "a")
        assert (record["state"], record["held"], record["report"]["status"]) == ("done", None, way.status)
        assert (await status(tmp_path))["inbox"] == []
