"""Whole trees: children that work side by side, their messages, their files, their sessions on a server (B1-B5)."""

import asyncio
from pathlib import Path

import pytest

from cfs_agents.main.testing import calls, says, together
from tests.agents.fibre.trees import (
    ScriptedModels,
    all_chunks,
    finish,
    messages,
    of,
    read,
    roles,
    spawn,
    status,
    tree,
    wait,
    writer,
)
from tests.server.support import ServerHarness

PARALLEL = [
    together(spawn("a", "make a.txt"), spawn("b", "make b.txt")),
    wait("a"),
    wait("b"),
    calls("list_directory"),
    says("Both are there."),
]


def two() -> ScriptedModels:
    """A root with two children."""
    return ScriptedModels(main=PARALLEL, a=writer("a"), b=writer("b"))


async def test_two_children_work_and_report_and_the_root_answers(tmp_path: Path) -> None:
    scripted = two()
    async with tree(tmp_path, scripted) as agent:
        report = await agent.run("make a.txt and b.txt in parallel")
        assert (report.status, report.summary) == ("success", "Both are there.")
        assert not agent.unfinished
    scripted.check_finished()
    assert await asyncio.to_thread((tmp_path / "main/agent_workspace/b.txt").read_text) == "b"
    link = tmp_path / "main/sub_sessions/a/agent_workspace"
    assert await asyncio.to_thread(link.readlink) == Path("../../agent_workspace")


async def test_the_root_keeps_only_the_calls_and_the_reports(tmp_path: Path) -> None:
    """A child's calls are in its own messages and nowhere else (B5)."""
    async with tree(tmp_path, two()) as agent:
        await agent.run("make both")
    mine, child = await messages(tmp_path), await messages(tmp_path, "a")
    assert roles(mine) == ["user", "assistant", "tool", "tool", *["assistant", "tool"] * 3, "assistant"]
    assert "made a.txt" in mine[5]["content"]
    assert "write_file" not in await read(tmp_path, "messages.json", None)
    assert roles(child) == ["user", "assistant", "tool", "assistant", "tool"]
    assert child[0]["content"] == "make a.txt"
    assert (await status(tmp_path, "a"))["state"] == "done"


async def test_every_chunk_says_whose_it_is_and_comes_in_order(tmp_path: Path) -> None:
    async with tree(tmp_path, two()) as agent:
        chunks = await all_chunks(agent, "make both")
    sessions = {chunk.session_id for chunk in chunks}
    assert sessions == {"main", "main/a", "main/b"}
    for session in sessions:
        mine = of(chunks, session)
        assert [chunk.number for chunk in mine] == list(range(1, len(mine) + 1))
        assert (mine[0].kind, mine[-1].kind) == ("started", "ended")
        assert {chunk.agent_name for chunk in mine} == {session.rpartition("/")[2]}
    kinds = [chunk.kind for chunk in of(chunks, "main/a")]
    assert kinds == ["started", "message", "call", "result", "call", "result", "ended"]


@pytest.mark.parametrize("number", [2, 50])
async def test_many_children_at_once(tmp_path: Path, number: int) -> None:
    names = [f"c{each}" for each in range(number)]
    root = [together(*map(spawn, names)), together(*map(wait, names)), says("all")]
    scripted = ScriptedModels(main=root, **{name: writer(name) for name in names})
    async with tree(tmp_path, scripted) as agent:
        chunks = await all_chunks(agent, "all of them")
        assert agent.report is not None
        assert agent.report.ok
    assert {chunk.session_id for chunk in chunks if chunk.kind == "ended"} == {"main", *(f"main/{n}" for n in names)}
    scripted.check_finished()


async def test_three_levels(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[spawn("lead"), wait("lead"), says("done")],
        lead=[together(spawn("x"), spawn("y")), together(wait("x"), wait("y")), finish("both")],
        x=writer("x"),
        y=writer("y"),
    )
    async with tree(tmp_path, scripted) as agent:
        chunks = await all_chunks(agent, "go")
    assert {chunk.session_id for chunk in chunks} == {"main", "main/lead", "main/lead/x", "main/lead/y"}
    leaf, lead = scripted.models["x"].asked[0], scripted.models["lead"].asked[0]
    assert "sys_spawn_agent" not in [each["function"]["name"] for each in leaf.tools]
    assert "sys_spawn_agent" in [each["function"]["name"] for each in lead.tools]


async def test_the_goal_is_the_first_message_and_not_in_the_system_prompt(tmp_path: Path) -> None:
    scripted = ScriptedModels(main=[spawn("a", "the secret goal"), wait("a"), says("ok")], a=[finish()])
    async with tree(tmp_path, scripted) as agent:
        await agent.run("go")
    system, user = scripted.models["a"].asked[0].messages
    assert (user.role, user.content) == ("user", "the secret goal")
    assert "You are a." in system.content
    assert "the secret goal" not in system.content


async def test_a_childs_parent_task_is_the_task_that_its_parent_gave_it(tmp_path: Path) -> None:
    """Also after the tree was read from disk."""
    scripted = ScriptedModels(main=[spawn("a", "the goal"), wait("a"), says("ok")], a=[finish()])
    async with tree(tmp_path, scripted) as agent:
        await agent.run("go")
        assert agent.agents["a"].context.system_context["parent_task"] == "the goal"
    async with tree(tmp_path, ScriptedModels(main=[])) as agent:
        assert agent.agents["a"].context.system_context["parent_task"] == "the goal"
        assert "parent_task" not in agent.agents["main"].context.system_context


# -- on a server ------------------------------------------------------------------------------------------------------


async def test_the_same_sessions_are_on_the_server(tmp_path: Path, server: ServerHarness) -> None:
    scripted = two()
    async with tree(tmp_path, scripted, server.url) as agent:
        report = await agent.run("make both")
        assert report.ok, report
    detail = (await server.client.get("/v1/sessions/main")).json()
    assert roles(detail["history"]) == roles(await messages(tmp_path))
    assert (detail["state"], detail["settings"]["driver"]) == ("idle", "agent")
    assert detail["history"][-1]["content"] == "Both are there."
    child = (await server.client.get("/v1/sessions/main/a")).json()
    assert roles(child["history"]) == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert child["history"][-1]["content"] == "made a.txt"
    assert child["history"][1]["tool_calls"][0]["name"] == "write_file"
    scripted.check_finished()


async def test_a_name_whose_agent_is_done_gets_a_number(tmp_path: Path, server: ServerHarness) -> None:
    """So the same task can be given twice; the first agent's conversation stays as it is."""
    again = [spawn("a"), wait("a-2"), says("again")]
    scripted = ScriptedModels(
        **{"main": [spawn("a"), wait("a"), says("once"), *again], "a": writer("a"), "a-2": writer("b")}
    )
    async with tree(tmp_path, scripted, server.url) as agent:
        assert (await agent.run("make it")).summary == "once"
        assert (await agent.run("make it")).summary == "again"
    scripted.check_finished()
    assert "a-2" in (await messages(tmp_path))[-4]["content"]
    assert {session.id for session in server.store} == {"main", "main/a", "main/a-2"}


async def test_the_name_of_an_agent_that_is_at_work_is_taken(tmp_path: Path) -> None:
    scripted = ScriptedModels(main=[together(spawn("a"), spawn("a")), wait("a"), says("one")], a=writer("a"))
    async with tree(tmp_path, scripted) as agent:
        assert (await agent.run("make it")).summary == "one"
    assert "take another name" in (await messages(tmp_path))[3]["content"]
