"""How agents end before their time: cancelled, out of time, failed, left; and that the others go on (B7, B8, S12)."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from cfs import api
from cfs.errors import Conflict, EngineError, NotFound, Unreachable
from cfs.transports.async_http import AsyncClient
from cfs_agents.loop.retries import Retries
from cfs_agents.main.testing import raises, says, together
from cfs_agents.tree.fibre import FibreAgent
from tests.agents.fibre.trees import (
    ScriptedModels,
    all_chunks,
    finish,
    late,
    messages,
    said,
    settled,
    spawn,
    tree,
    wait,
    write,
    writer,
)
from tests.server.support import Process, ServerHarness, serving


def deep() -> ScriptedModels:
    """A root, a child `lead` and below it `leaf`, which hangs; and beside it `b`, which does not."""
    return ScriptedModels(
        main=[together(spawn("lead"), spawn("b")), wait("lead"), wait("b"), says("went on")],
        lead=[spawn("leaf"), wait("leaf"), finish("with a leaf")],
        leaf=[late(write("leaf.txt"), 1000)],
        b=writer("b"),
    )


def outcome(agent: FibreAgent, name: str) -> str:
    """How an agent's task has ended."""
    report = agent.agents[name].report
    assert report is not None
    return report.status


async def test_a_cancelled_child_is_reported_and_its_parent_goes_on(tmp_path: Path, server: ServerHarness) -> None:
    scripted = deep()
    async with tree(tmp_path, scripted, server.url) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        await server.client.post("/v1/sessions/main/lead/leaf/cancel")
        assert (await working).summary == "went on"
        assert [outcome(agent, name) for name in ("leaf", "lead", "b")] == ["cancelled", "success", "success"]
    leaf = await settled(server, "main/lead/leaf")
    assert said(leaf["history"]) == ["[Cancelled]"]


async def test_a_cancelled_parent_ends_its_children(tmp_path: Path, server: ServerHarness) -> None:
    scripted = deep()
    async with tree(tmp_path, scripted, server.url) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        await server.client.post("/v1/sessions/main/lead/cancel")
        assert (await working).summary == "went on"
        assert [outcome(agent, name) for name in ("leaf", "lead", "b")] == ["cancelled", "cancelled", "success"]
    await settled(server)


@pytest.mark.parametrize("cascade", [True, False])
async def test_a_cancelled_root_ends_the_tree(tmp_path: Path, server: ServerHarness, cascade: bool) -> None:
    scripted = deep()
    async with tree(tmp_path, scripted, server.url) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        await server.client.post("/v1/sessions/main/cancel", json={"cascade": cascade})
        assert (await working).status == "cancelled"
        assert not any(sub_agent.running for sub_agent in agent.agents.values())
        assert not agent.unfinished
    await settled(server)


async def test_agents_can_be_cancelled_without_a_server(tmp_path: Path) -> None:
    scripted = deep()
    async with tree(tmp_path, scripted) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        with pytest.raises(NotFound):
            agent.cancel("nobody")
        agent.cancel("lead")
        assert (await working).ok
        assert outcome(agent, "leaf") == "cancelled"


async def test_a_deleted_session_ends_its_agent(tmp_path: Path, server: ServerHarness) -> None:
    scripted = deep()
    async with tree(tmp_path, scripted, server.url) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        await server.client.delete("/v1/sessions/main/lead")
        assert (await working).ok
        assert outcome(agent, "lead") == "cancelled"


async def test_a_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[spawn("a", timeout=0.2), wait("a"), says("went on")], a=[late(write("a.txt"), 1000)]
    )
    async with tree(tmp_path, scripted) as agent:
        assert (await agent.run("go")).ok
    assert "it took longer than 0.2 s" in (await messages(tmp_path))[-2]["content"]


async def test_a_child_that_comes_to_no_end_is_ended(tmp_path: Path) -> None:
    turns = [write(f"{each}.txt") for each in range(3)]
    scripted = ScriptedModels(main=[spawn("a", max_turns=3), wait("a"), says("went on")], a=turns)
    async with tree(tmp_path, scripted) as agent:
        assert (await agent.run("go")).ok
        assert outcome(agent, "a") == "failed"
    assert "it came to no end in 3 turns" in (await messages(tmp_path))[-2]["content"]


async def test_a_child_whose_model_fails_is_reported(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("went on")], a=[raises(EngineError("out of memory"))])
    async with tree(tmp_path, scripted, server.url) as agent:
        assert (await agent.run("go")).ok
    assert "out of memory" in (await messages(tmp_path))[-2]["content"]
    assert said((await settled(server, "main/a"))["history"]) == ["[Error: out of memory]"]


async def test_a_root_that_fails_ends_its_children(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(main=[spawn("a"), raises(EngineError("out of memory"))], a=[late(finish(), 1000)])
    async with tree(tmp_path, scripted, server.url) as agent:
        assert (await agent.run("go")).status == "failed"
        assert outcome(agent, "a") == "cancelled"
    assert said((await settled(server))["history"]) == ["[Error: out of memory]"]


async def test_a_stream_that_is_left_leaves_nothing_at_work_and_can_be_resumed(
    tmp_path: Path, server: ServerHarness
) -> None:
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("ok")], a=[late(write("a.txt")), finish()])
    async with tree(tmp_path, scripted, server.url) as agent:
        async with aclosing(agent.run_stream("go")) as chunks:
            async for chunk in chunks:
                if chunk.name == "sys_wait_agent":
                    break
        tasks = [sub_agent.task for sub_agent in agent.agents.values()]
        assert all(task is not None and task.done() for task in tasks)
        assert agent.unfinished
    again = ScriptedModels(main=[says("ok")], a=writer("a"))
    async with tree(tmp_path, again, server.url) as agent:
        assert (await agent.resume()).summary == "ok"
        assert outcome(agent, "a") == "success"
        with pytest.raises(NotFound):
            await agent.resume()
    history = (await settled(server))["history"]
    assert [said(history), said(history, "user")] == [["ok"], ["go"]]


@pytest.fixture
def elsewhere() -> Iterator[Process]:
    """Another server, a process of its own."""
    with serving("--engine", "scripted", "--log-level", "error") as server:
        yield server


async def test_a_tree_goes_on_at_a_server_that_has_lost_its_sessions(
    tmp_path: Path, server: ServerHarness, elsewhere: Process
) -> None:
    """They are made again, with what was said before."""
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), says("ok")], a=[write("a.txt"), late(finish("made", "a.txt"))]
    )
    async with tree(tmp_path, scripted, server.url) as agent, aclosing(agent.run_stream("go")) as chunks:
        async for chunk in chunks:
            if chunk.name == "write_file" and chunk.kind == "result":
                break
    again = ScriptedModels(main=[wait("a"), says("ok")], a=[finish("made", "a.txt")])
    async with tree(tmp_path, again, elsewhere.url) as agent:
        report = await agent.resume()
        assert (report.summary, outcome(agent, "a")) == ("ok", "success")
    async with AsyncClient(elsewhere.url) as client:
        assert (await client.call(api.settings("main"))).driver == "agent"
        root, child = [
            (await client.call(api.read(session))).model_dump(mode="json")["history"] for session in ("main", "main/a")
        ]
    assert [said(root), said(root, "user")] == [["ok"], ["go"]]
    called = [call["name"] for message in child for call in message.get("tool_calls", ())]
    assert called == ["write_file", "sys_finish_task"]
    assert sum(message["role"] == "tool" for message in child) == 2


async def test_one_task_at_a_time_and_one_program_at_a_time(tmp_path: Path) -> None:
    scripted = ScriptedModels(main=[late(says("ok"))])
    async with tree(tmp_path, scripted) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        with pytest.raises(Conflict):
            await agent.run("another")
        with pytest.raises(Conflict):
            await FibreAgent(tmp_path, scripted).__aenter__()
        scripted.clock.advance(5)
        assert (await working).ok


async def test_the_next_task_goes_on_in_the_same_conversation(tmp_path: Path) -> None:
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("one"), wait("a"), says("two")], a=[finish()])
    async with tree(tmp_path, scripted) as agent:
        await agent.run("first")
        chunks = await all_chunks(agent, "second")
        assert chunks[-1].content == "two"
    assert said(await messages(tmp_path), "user") == ["first", "second"]


@pytest.mark.server
async def test_a_server_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    """When patience is over the run ends by the error: nothing has failed, and nothing has begun."""
    retries = Retries(patience=0, first=0.01)
    async with tree(tmp_path, ScriptedModels(main=[]), "http://127.0.0.1:9", retries) as agent:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
            await agent.run("go")
        assert (agent.report, agent.unfinished) == (None, False)


async def test_a_turn_whose_holder_was_late_goes_on(tmp_path: Path, server: ServerHarness) -> None:
    """The lease runs out in the middle of a task, and no other agent has claimed the turn."""
    scripted = ScriptedModels(main=[late(write("a.txt")), says("ok")])
    async with tree(tmp_path, scripted, server.url) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        session = server.store.get("main")
        assert session.running is not None
        session.expire(session.running)
        assert session.running is None
        scripted.clock.advance(5)
        assert (await working).ok
    assert said((await settled(server))["history"]) == ["ok"]
