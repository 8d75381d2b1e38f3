"""Each way in which a child can end reaches its parent once, with the true state (B5, B7, B8, S2).

`WAYS` is the table. Each way is tried with a parent that waits for the report, with one that works on and is notified,
and with one that does not run when the child ends: the runtime is stopped before the parent has read of the end, and
starts again. Where a combination is impossible, the table says why.
"""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs.errors import EngineError, SessionDeleted, SessionRenamed, Unreachable, UpstreamRefused
from cfs.wire import Message
from cfs_agents.guards.report import ReportStatus
from cfs_agents.loop.model import Item
from cfs_agents.loop.retries import Retries
from cfs_agents.main.testing import Line, ManualClock, ScriptedModel, breaks_off, calls, raises, says
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.server_sessions import ServerSessions
from ports import free_port
from tests.agents.fibre.trees import ScriptedModels, finish, late, messages, said, spawn, status, tree, wait, write
from tests.client.terminal import Running, cfs, ended
from tests.server.support import Process, ServerHarness, environment, run_cfs, running_server, serving, until


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
        quick = ("--shutdown-grace", "0.1")  # the turn of an agent that waits does not finish meanwhile
        self._flags = (*flags, *quick, "--engine", "scripted", "--log-level", "error", "--port", str(port))
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
        async with running_server(may_block=True) as server:  # the log of a defect reads its source code
            yield Servers(server.url, server.client, server)
        return
    flags = ("--data-dir", str(folder / "data")) if way.store == "default" else ("--store", way.store)
    port = free_port()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
        process = ServerProcesses(folder, client, flags, port)
        await process.start()
        try:
            yield process
        finally:
            await process.close()


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
    "its upstream is away for a while": Way(
        status="success", reason="made a.txt", child=[breaks_off("so "), write("a.txt"), *GOES_ON[1:]]
    ),
    "its upstream is away for too long": Way(
        status="success",
        reason="made a.txt",
        child=[raises(Unreachable("no upstream answers"))],
        down=nothing,
        again=[write("a.txt"), *GOES_ON[1:]],
        impossible=IN_BOTH,
    ),
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
    "another runtime takes it": Way(
        status="cancelled",
        reason="taken over",
        child=[late(write("a.txt")), late(finish("made a.txt", "a.txt"), 1000)],  # it sends its call, and is refused
        act=take_over,
    ),
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
    """Yield every way with every parent, as far as it is possible.

    The waiting parent, or the first that is possible, has every way each time; the two others take turns, where no
    server processes are needed.
    """
    for number, (name, way) in enumerate(WAYS.items()):
        parents = [parent for parent in Parent if parent not in way.impossible]
        others = parents[1:] if way.store is None else []
        quick = {parents[0], others[number % len(others)]} if others else {parents[0]}
        for parent in parents:
            slow = () if parent in quick else pytest.mark.slow
            yield pytest.param(name, parent, marks=slow, id=f"{name}-{parent}")


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


def outline(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return who said what, with the names of calls. The report ends a turn, and is its last message on the server."""
    rows = [(each["role"], [call["name"] for call in each.get("tool_calls", ())]) for each in history]
    return [row for row in rows if row != ("assistant", [])]


async def stopped(work: "asyncio.Task[Any]") -> None:
    """Stop the runtime in its work, unless an outage has done so."""
    work.cancel()
    with suppress(asyncio.CancelledError, Unreachable):
        await work


@pytest.mark.server
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "parent"), list(cases()))
async def test_the_end_of_a_child_reaches_its_parent_once(tmp_path: Path, name: str, parent: Parent) -> None:
    way = WAYS[name]
    async with served(way, tmp_path) as server:
        async with running(way, parent, tmp_path, server) as first:
            work = asyncio.create_task(first.agent.run("go"))
            if any(line.delay for line in way.child):  # on a busy machine, its time is over before it asks its model
                await until(lambda: first.clock.sleepers or first.child_ended or work.done())
            if way.act is not None:
                await way.act(first)
            stops = way.down is not None or parent is Parent.AWAY
            if way.down is None or way.child is not HANGS:
                await until(lambda: first.child_ended or work.done())
            if stops:
                await stopped(work)
            else:
                first.released.set()
                assert (await work).summary == "ok"
        if stops:
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
        if rename in (way.act, way.down):
            assert (await server.client.get("/v1/sessions/taken-over")).json()["state"] == "idle"
        if way.status == "success":
            shown = (await server.client.get("/v1/sessions/main/a")).json()["history"]
            assert outline(shown) == outline(await messages(tmp_path, "a"))


async def test_a_renamed_session_that_the_tree_learns_of_before_its_agent_has_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent does not come to read of its session: what the tree hears ends its task."""
    way, resume = WAYS["its session is renamed while the runtime is down"], ServerSessions._resume

    async def resumes(sessions: ServerSessions, session_id: str, *others: Any) -> Any:
        if session_id == "main/a":
            await asyncio.Event().wait()
        return await resume(sessions, session_id, *others)

    async with served(way, tmp_path) as server:
        async with running(way, Parent.WAITS, tmp_path, server) as first:
            work = asyncio.create_task(first.agent.run("go"))
            await first.clock.until_asleep()
            await stopped(work)
        monkeypatch.setattr(ServerSessions, "_resume", resumes)
        async with running(way, Parent.WAITS, tmp_path, server, again=True) as second:
            await rename(second)
            assert (await second.agent.resume()).summary == "ok"
        assert (await server.client.get("/v1/sessions/taken-over")).json()["state"] == "idle"


# -- the parent ends first --------------------------------------------------------------------------------------------

PARENT_ENDS: dict[str, tuple[Sequence[Line], Act | None]] = {
    "it answers": ([says("enough"), says("enough")], None),  # after the first answer it hears that a child works
    "its model fails": ([raises(EngineError("out of memory"))], None),
    "a user cancels it": ([late(says("never"), 1000)], lambda tree: tree.post("main/cancel")),
    "a user cancels all": ([late(says("never"), 1000)], lambda tree: tree.post("main/cancel", {"cascade": True})),
}
"""How a parent can end before its child. It can neither wait nor poll then: it reads of the child in its next task."""


@pytest.mark.parametrize("name", PARENT_ENDS)
async def test_a_parent_that_ends_first_reads_of_its_child_in_its_next_task(
    tmp_path: Path, server: ServerHarness, name: str
) -> None:
    lines, act = PARENT_ENDS[name]
    scripted = ScriptedModels(main=[spawn("a"), *lines, says("next")], a=HANGS)
    async with tree(tmp_path, scripted, server.url) as agent:
        work = asyncio.create_task(agent.run("go"))
        if act is not None:
            await scripted.clock.until_asleep(2)
            servers = Servers(server.url, server.client, server)
            await act(Tree(tmp_path, servers, scripted.clock, agent, asyncio.Event()))
        await work
        assert (await agent.run("more")).summary == "next"
    (notice,) = await notices(tmp_path)
    assert "[a cancelled]" in notice


# -- it never starts --------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], Sequence[Line], str]] = {
    "too many in all": ({"max_agents": 0}, [], "there have been 0 already"),
    "too many at work": ({"max_alive": 0}, [], "0 are at work"),
    "the goal has failed": (
        {},
        [line for n in range(3) for line in (spawn(f"b{n}", max_turns=1), wait(f"b{n}"))],
        "3 agents have failed at this goal",
    ),
}
"""Why a child is not started: limits, lines of the parent before, and the reason. The call itself says it at once, so
there is nothing to wait for, and nothing to miss. At the limit of depth an agent has no tool for it."""


@pytest.mark.parametrize("name", REFUSED)
async def test_a_child_that_cannot_start_is_refused_by_the_call(tmp_path: Path, name: str) -> None:
    config, before, reason = REFUSED[name]
    models = {"main": ScriptedModel([*before, spawn("a"), says("ok")])}
    models |= {f"b{n}": ScriptedModel([write("b.txt"), write("c.txt")]) for n in range(3)}
    async with tree(tmp_path, models.__getitem__, **config) as agent:
        assert (await agent.run("go")).summary == "ok"
        assert "a" not in agent.agents
    assert reason in (await messages(tmp_path))[-2]["content"]
    assert await notices(tmp_path) == []


async def test_an_agent_of_the_last_level_has_no_tool_to_start_one(tmp_path: Path) -> None:
    scripted = ScriptedModels(main=[spawn("a"), says("ok")])
    async with tree(tmp_path, scripted, max_depth=0) as agent:
        assert (await agent.run("go")).summary == "ok"
    assert "there is no tool" in (await messages(tmp_path))[-2]["content"]


# -- killed, with what happens in between -----------------------------------------------------------------------------

PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.agents.fibre.trees import ScriptedModels, late, spawn, tree, wait, write

async def work():
    scripted = ScriptedModels(main=[spawn("a"), wait("a")], a=[late(write("a.txt"), 1000)])
    async with tree(Path(sys.argv[1]), scripted, sys.argv[2]) as agent:
        work = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        print("asleep", flush=True)
        await work

asyncio.run(work())
"""
"""A runtime whose child hangs."""

KILLED = {
    "its session is deleted": (delete, "cancelled", "'main/a' has been deleted"),
    "its session is renamed": (rename, "cancelled", "is called 'taken-over' now"),
    "nothing": (nothing, "success", "made a.txt"),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", KILLED)
async def test_a_child_whose_runtime_and_server_were_killed_ends_once(tmp_path: Path, name: str) -> None:
    """The user acts between the two kills."""
    act, ending, reason = KILLED[name]
    way = Way(status="success", reason="", store="default", again=[write("a.txt"), *GOES_ON[1:]])
    async with served(way, tmp_path) as server:
        runtime = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, str(tmp_path), server.url),
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
            cwd=Path(__file__).parents[3],
        )
        try:
            assert runtime.stdout is not None
            await runtime.stdout.readuntil(b"asleep\n")  # behind lines of the log
        finally:
            runtime.kill()
            await runtime.wait()
        async with running(way, Parent.WAITS, tmp_path, server, again=True) as second:
            await act(second)
            await server.stop()
            await server.start()
            assert (await second.agent.resume()).summary == "ok"
        (notice,) = await notices(tmp_path)
        assert f"[a {ending}]" in notice
        assert reason in notice
        answer = await server.client.get("/v1/sessions/main/a")
        assert answer.status_code == (200 if ending == "success" else 404)
        assert (await server.client.get("/v1/sessions/main")).json()["state"] == "idle"


# -- the root ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [SessionDeleted, SessionRenamed])
@pytest.mark.parametrize("anew", [True, False])
async def test_a_tree_whose_root_was_deleted_or_renamed_does_not_come_back(
    tmp_path: Path, server: ServerHarness, gone: type[SessionDeleted | SessionRenamed], anew: bool
) -> None:
    """Nor does it touch another session that has the name now."""
    scripted = ScriptedModels(main=[spawn("a"), wait("a")], a=HANGS)
    async with tree(tmp_path, scripted, server.url) as agent:
        work = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        await stopped(work)
    if gone is SessionDeleted:
        await server.client.delete("/v1/sessions/main")
    else:
        await server.client.post("/v1/sessions/main/rename", json={"id": "other"})
    if anew:
        await server.say("main", "hello", wait="true")
    before = [(session.id, session.nonce, session.log.last) for session in server.store]
    for _ in range(2):
        async with tree(tmp_path, ScriptedModels(), server.url) as agent:
            with pytest.raises(gone, match=f"move {tmp_path / 'main'} away"):
                await agent.resume()
            with pytest.raises(gone, match=f"move {tmp_path / 'main'} away"):
                await anext(agent.serve())
            with pytest.raises(gone):
                await agent.run("another task")
            assert agent.unfinished
    assert [(session.id, session.nonce, session.log.last) for session in server.store] == before
    if gone is SessionRenamed and not anew:
        await server.client.post("/v1/sessions/other/rename", json={"id": "main"})
        models = ScriptedModels(main=[wait("a"), says("ok")], a=[finish("back")])
        async with tree(tmp_path, models, server.url) as agent:
            assert (await agent.resume()).summary == "ok"
        assert said(await messages(tmp_path)) == ["ok"]


async def test_a_tree_whose_root_is_deleted_while_it_works_ends(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(main=[spawn("a"), wait("a")], a=HANGS)
    async with tree(tmp_path, scripted, server.url) as agent:
        work = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        await server.client.delete("/v1/sessions/main")
        report = await work
        assert (report.status, report.reasons) == ("cancelled", ("session 'main' has been deleted",))
        assert not agent.unfinished
        with pytest.raises(SessionDeleted):
            await agent.run("another task")
    assert list(server.store) == []


@pytest.mark.timeout(240)
async def test_a_root_that_was_deleted_stays_deleted_when_the_server_loses_its_store(tmp_path: Path) -> None:
    """The runtime remembers it, because the server cannot."""
    way = Way(status="cancelled", reason="", store="memory")
    async with served(way, tmp_path) as server:
        async with running(way, Parent.WAITS, tmp_path, server) as first:
            work = asyncio.create_task(first.agent.run("go"))
            await first.clock.until_asleep()
            await first.delete("main")
            assert (await work).status == "cancelled"
        await server.stop()
        await server.start()
        async with running(way, Parent.WAITS, tmp_path, server) as second:
            with pytest.raises(SessionDeleted):
                await second.agent.run("another task")
        assert (await server.client.get("/v1/sessions")).json()["sessions"] == []


@pytest.mark.timeout(240)
def test_serve_says_in_one_line_that_its_session_was_deleted(tmp_path: Path) -> None:
    """A user can use the name at once, and begin a new tree after the folder has been moved away."""
    flags = ("agent", "serve", "--session", "main", "--root", str(tmp_path))
    with serving("--engine", "scripted", "--log-level", "error") as server:
        with Running(server.url, *flags) as runtime:
            assert runtime.process.stderr is not None
            assert b"an agent answers in main" in runtime.process.stderr.readline()
            runtime.process.kill()
        sessions = f"{server.url}/v1/sessions"
        httpx.delete(f"{sessions}/main", timeout=60).raise_for_status()
        line = (
            "session 'main' has been deleted, so its agents are not started again; to begin a new tree in 'main', move"
            f" {tmp_path / 'main'} away"
        )
        for _ in range(2):
            code, output, errors = ended(cfs(server.url, *flags))
            assert (code, output, errors.count("\n"), line in errors) == (1, "", 1, True), errors
            assert httpx.get(f"{sessions}/main", timeout=60).status_code == 404
        answer = httpx.post(f"{sessions}/main/messages?wait=true", content=b"hello", timeout=60)
        assert answer.json()["reply"] == "hello"
        assert line in ended(cfs(server.url, *flags))[2]
        (tmp_path / "main").rename(tmp_path / "before")
        with Running(server.url, *flags) as runtime:
            assert runtime.process.stderr is not None
            assert b"an agent answers in main" in runtime.process.stderr.readline()
