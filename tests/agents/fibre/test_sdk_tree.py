"""A tree of agents seen through the SDK while it works: `AsyncTree`, and `Tree`, which is generated from it."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from cfs import AsyncTree, NotFound, PreconditionFailed, Timeout, Tree, TreeAgent, TreeOutcome
from cfs.state.stream import StreamEvent
from cfs_agents.testing import calls, says
from tests.agents.fibre.trees import ScriptedModels, answering, finish, late, spawn, tree, wait, write, writer
from tests.client.wires import Relay
from tests.server.support import ServerHarness, until


def two_writers() -> ScriptedModels:
    """A root and two children that write a file each."""
    return ScriptedModels(
        main=[spawn("a"), spawn("b"), wait("a"), wait("b"), says("both are there")], a=writer("a"), b=writer("b")
    )


async def collected(sdk: AsyncTree, into: list[StreamEvent], task: str | None = None) -> None:
    """Watch a tree to the end of the stream."""
    async with aclosing(sdk.watch(task)) as events:
        async for event in events:
            into.append(event)  # noqa: PERF401 - one by one, as they come


def has(events: list[StreamEvent], session: str, kind: str) -> bool:
    """Whether an event of this kind has come."""
    return any((event.session, event.type) == (session, kind) for event in events)


async def until_connected(server: ServerHarness, streams: int) -> None:
    """Wait for so many streams of events."""
    await until(lambda: server.parts.streams.open >= streams)


async def test_a_watch_shows_children_that_appear_later(tmp_path: Path, server: ServerHarness) -> None:
    """A task is given once nothing can be missed, and its turn ends the stream. Other sessions are not shown."""
    scripted, events = two_writers(), list[StreamEvent]()
    async with (
        AsyncTree("main", url=server.url) as sdk,
        tree(tmp_path, scripted, server.url) as agent,
        answering(agent),
    ):
        watching = asyncio.create_task(collected(sdk, events, "Make two files."))
        await until(lambda: has(events, "main", "message.added"))
        await server.say("mainly", "another session", wait="true")
        await watching
    assert events[-1].type == "turn.finished"
    assert events[-1].data["reply"] == "both are there"
    assert {event.session for event in events} == {"main", "main/a", "main/b"}
    assert {event.session for event in events if event.type == "session.created"} == {"main/a", "main/b"}
    positions = [event.position for event in events]
    assert positions == sorted(set(positions))


async def test_a_watch_goes_on_after_lost_connections(tmp_path: Path, server: ServerHarness) -> None:
    """Nothing is missed, and nothing comes twice."""
    scripted, events, whole = two_writers(), list[StreamEvent](), list[StreamEvent]()
    relay = Relay(server.url)
    async with (
        AsyncTree("main", url=relay.url) as far,
        AsyncTree("main", url=server.url) as near,
        tree(tmp_path, scripted, server.url) as agent,
    ):
        await agent.attach()
        watching = [asyncio.create_task(collected(far, events)), asyncio.create_task(collected(near, whole))]
        await until_connected(server, 2)
        await agent.run("first")
        await until(lambda: len(whole) > 20 and len(events) == len(whole))
        relay.cut()
        scripted.models["main"].check_finished()
        await server.client.patch("/v1/sessions/main/a/settings", json={"title": "seen after the cut"})
        await server.client.delete("/v1/sessions/main")
        await asyncio.gather(*watching)
    await asyncio.to_thread(relay.stop)
    assert relay.accepted >= 2
    assert has(events, "main/a", "settings.changed")
    assert [event.id for event in events] == [event.id for event in whole]
    assert events[-1].type == "session.deleted"


async def test_what_agents_do_is_shown_while_they_do_it(tmp_path: Path, server: ServerHarness) -> None:
    """The root waits for its child, and the child for its model."""
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), says("done")], a=[write("a.txt"), late(finish("wrote a.txt", "a.txt"))]
    )
    async with AsyncTree(url=server.url) as sdk, tree(tmp_path, scripted, server.url) as agent:
        running = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        root, child = await busy(sdk)
        assert (root.name, root.depth, root.state, root.tool) == ("main", 0, "generating", "sys_wait_agent")
        assert root.tool_since is not None
        assert 0 <= root.seconds < 60
        assert (child.session, child.name, child.depth) == ("main/a", "a", 1)
        assert (child.tool, child.tool_since, child.outcome) == (None, None, None)
        with pytest.raises(Timeout):
            await sdk.outcome(timeout=0)
        await sdk.pause()
        assert [each.paused for each in await sdk.agents()] == [True, True], "a pause covers what is below"
        await sdk.pause(paused=False)
        scripted.clock.advance(5)
        await running
        root, child = await sdk.agents()
    assert (root.tool, root.state) == (None, "idle")
    assert root.tokens > 0
    assert child.outcome is not None
    assert (child.outcome.status, child.outcome.text) == ("finished", "wrote a.txt")
    assert child.outcome.report == {
        "status": "success",
        "summary": "wrote a.txt",
        "details": {"created_files": ["a.txt"]},
    }


async def busy(sdk: AsyncTree) -> tuple[TreeAgent, ...]:
    """The agents, once the server knows that the root waits for its child, which has written its file."""
    while True:
        agents = await sdk.agents()
        if agents[0].tool == "sys_wait_agent" and agents[-1].messages == 3:
            return agents
        await asyncio.sleep(0.01)


async def test_the_outcome_is_that_of_the_root_and_of_each_agent(tmp_path: Path, server: ServerHarness) -> None:
    """A child that claims what it has not done is not verified, and one that fails has failed."""
    scripted = ScriptedModels(
        main=[spawn("a"), spawn("b"), wait("a"), wait("b"), says("one of two")],
        a=[finish("made a.txt", "a.txt")],
        b=[finish("there is no b", status="failed")],
    )
    async with AsyncTree(url=server.url) as sdk, tree(tmp_path, scripted, server.url) as agent:
        await agent.attach()
        running = asyncio.create_task(agent.run("go"))
        await server.until("main", "turn.started")
        outcome = await sdk.outcome()
        await running
    assert (outcome.ok, outcome.status, outcome.text) == (True, "finished", "one of two")
    assert {each.name: each.outcome and each.outcome.status for each in outcome.agents} == {
        "main": "finished",
        "a": "unverified",
        "b": "failed",
    }
    kept = (await sdk_agents(server, "main/b"))[0]
    assert kept.outcome is not None
    assert kept.outcome.report is not None
    assert kept.outcome.report["summary"] == "there is no b"


async def sdk_agents(server: ServerHarness, session: str) -> tuple[TreeAgent, ...]:
    """The agents from a session on down."""
    async with AsyncTree(session, url=server.url) as sdk:
        return await sdk.agents()


async def test_files_are_read_and_written_while_agents_work(tmp_path: Path, server: ServerHarness) -> None:
    """A write replaces only the version that it names."""
    scripted = ScriptedModels(
        main=[write("notes/plan.md", "first"), late(calls("read_file", path="new.md")), says("x")]
    )
    async with AsyncTree(url=server.url) as sdk, tree(tmp_path, scripted, server.url) as agent:
        running = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        (plan,) = await sdk.files()
        assert (plan.path, plan.size) == ("notes/plan.md", 5)
        assert await sdk.read_file("notes/plan.md") == b"first"
        newer = await sdk.write_file("notes/plan.md", b"second", version=plan.version)
        assert newer.version != plan.version
        with pytest.raises(PreconditionFailed):
            await sdk.write_file("notes/plan.md", b"third", version=plan.version)
        await sdk.write_file("new.md", b"for the agent")
        assert [each.path for each in await sdk.files()] == ["new.md", "notes/plan.md"]
        scripted.clock.advance(5)
        await running
        with pytest.raises(NotFound):
            await sdk.read_file("none")
    assert "for the agent" in scripted.models["main"].asked[-1].messages[-1].content


async def test_webdav_shows_the_files_while_agents_work(tmp_path: Path, server: ServerHarness) -> None:
    """Its listings name the workspace, the folder and the file, with its size, and a PUT there reaches the agents."""
    scripted = ScriptedModels(
        main=[write("notes/plan.md", "first"), late(calls("read_file", path="new.md")), says("x")]
    )
    async with tree(tmp_path, scripted, server.url) as agent:
        running = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        for place, found in (("", "main/"), ("main/", "main/notes/"), ("main/notes/", "main/notes/plan.md")):
            listed = await server.client.request("PROPFIND", f"/dav/workspaces/{place}", headers={"Depth": "1"})
            assert listed.status_code == 207
            assert f"/dav/workspaces/{found}</" in listed.text
        assert "getcontentlength>5<" in listed.text
        assert (await server.client.get("/dav/workspaces/main/notes/plan.md")).text == "first"
        await server.client.put("/dav/workspaces/main/new.md", content=b"by WebDAV")
        scripted.clock.advance(5)
        await running
    assert "by WebDAV" in scripted.models["main"].asked[-1].messages[-1].content


async def test_a_session_without_a_task_has_no_outcome(server: ServerHarness) -> None:
    async with AsyncTree("nobody", url=server.url) as sdk:
        for wanted in (sdk.agents(), sdk.outcome(), anext(sdk.watch())):
            with pytest.raises(NotFound):
                await wanted
        await server.create("nobody")
        with pytest.raises(NotFound, match="no task"):
            await sdk.outcome()


async def test_without_coroutines_it_is_the_same(tmp_path: Path, server: ServerHarness) -> None:
    """A program without an event loop gives the task, follows it, and reads what came of it."""

    def program() -> tuple[list[str], TreeOutcome, bytes]:
        with Tree("main", url=server.url) as sdk:
            calls_made = [
                f"{event.session} {call['name']}"
                for event in sdk.watch("Make a file.")
                if event.type == "message.added"
                for call in event.data["message"].get("tool_calls", ())
            ]
            return calls_made, sdk.outcome(), sdk.read_file(sdk.files()[0].path)

    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("it is there")], a=writer("a"))
    async with tree(tmp_path, scripted, server.url) as agent, answering(agent):
        made, outcome, content = await asyncio.to_thread(program)
    assert sorted(made) == [
        "main sys_spawn_agent",
        "main sys_wait_agent",
        "main/a sys_finish_task",
        "main/a write_file",
    ]
    assert (outcome.text, content) == ("it is there", b"a")
