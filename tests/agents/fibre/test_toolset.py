"""The `sys_` tools: what a model writes arrives as values, and the model reads what is wrong with a call."""

from pathlib import Path
from typing import Any

import pytest

from cfs_agents.main.testing import Line, calls, says
from cfs_agents.tools import Registry
from cfs_agents.tools.plan import PLAN_CONTEXT
from cfs_agents.tree.fibre_tools import FibreTools
from tests.agents.fibre.test_isolated import SizedModel
from tests.agents.fibre.trees import ScriptedModels, finish, messages, spawn, tree, wait

SPAWN = {
    "agent_name": "coder",
    "role_description": "writes code",
    "system_instruction": "You write code.",
    "task_goal": "Write main.py.",
}


async def results(folder: Path, *script: Line, **others: Any) -> list[str]:
    """What the root reads of the calls that it makes."""
    async with tree(folder, ScriptedModels(main=[*script, says("ok")], **others)) as agent:
        await agent.run("go")
    return [each["content"] for each in await messages(folder) if each["role"] == "tool"]


async def test_a_spawn_arrives_with_its_limits(tmp_path: Path) -> None:
    start = calls("sys_spawn_agent", **SPAWN, max_turns=3, timeout=20.5, budget=90_000)
    async with tree(tmp_path, ScriptedModels(main=[start, wait("coder"), says("ok")], coder=[finish()])) as agent:
        await agent.run("go")
        record = agent.agents["coder"].record
    assert (record.agent_name, record.max_turns, record.timeout, record.budget) == ("coder", 3, 20.5, 90_000)
    assert {name: getattr(record, name) for name in SPAWN} == SPAWN
    assert (record.session_id, record.parent_id) == ("main/coder", "main")


@pytest.mark.parametrize(
    "wrong", [{"agent_name": "../up"}, {"agent_name": ""}, {"max_turns": 0}, {"timeout": -1}, {"budget": 0}, {"x": 1}]
)
async def test_a_wrong_spawn_is_an_error_and_starts_nothing(tmp_path: Path, wrong: dict[str, object]) -> None:
    async with tree(
        tmp_path, ScriptedModels(main=[calls("sys_spawn_agent", **{**SPAWN, **wrong}), says("ok")])
    ) as agent:
        await agent.run("go")
        assert list(agent.agents) == ["main"]
    assert "Error" in (await messages(tmp_path))[2]["content"]


@pytest.mark.parametrize(
    ("window", "configured", "files"),
    [
        (PLAN_CONTEXT, None, {"read_file", "write_file", "list_directory", "edit_file", "search_files"}),
        (PLAN_CONTEXT - 1, None, {"read_file", "write_file", "list_directory"}),
        (PLAN_CONTEXT, ["read_file"], {"read_file"}),
    ],
)
async def test_models_with_a_large_context_may_edit_and_search(
    tmp_path: Path, window: int, configured: list[str] | None, files: set[str]
) -> None:
    """Those with a small one have no room for the descriptions; what is configured is given as it is."""
    model = SizedModel([says("ok")])
    model.window = window
    async with tree(tmp_path, lambda _: model, file_tools=configured, plan=False) as agent:
        await agent.run("go")
    offered = {schema["function"]["name"] for schema in model.asked[0].tools}
    assert {name for name in offered if not name.startswith("sys_")} == files


async def test_messages_waits_and_locks_have_their_results(tmp_path: Path) -> None:
    started, sent, report, locked, freed = await results(
        tmp_path,
        spawn("a"),
        calls("sys_send_message", agent_id="a", content="more"),
        wait("a"),
        calls("sys_lock_file", path="a.txt"),
        calls("sys_unlock_file", path="a.txt"),
        a=[finish("first"), finish("second")],
    )
    assert started == "a"
    assert sent == "a has the message."
    assert report.startswith("[a success]")
    assert (locked, freed) == ("a.txt is yours for 120 s", "a.txt is free")


@pytest.mark.parametrize("details", [None, {}, {"created_files": [], "logs": "fine"}])
async def test_a_finish_arrives_with_its_details(tmp_path: Path, details: dict[str, object] | None) -> None:
    end = calls("sys_finish_task", status="success", summary="done", details=details)
    async with tree(tmp_path, ScriptedModels(main=[spawn("a"), wait("a"), says("ok")], a=[end])) as agent:
        await agent.run("go")
        report = agent.agents["a"].report
    assert report is not None
    assert (report.status, report.summary, report.details) == ("success", "done", details or {})


async def test_an_unknown_status_is_an_error_that_names_the_right_ones(tmp_path: Path) -> None:
    wrong = calls("sys_finish_task", status="great", summary="done")
    await results(tmp_path, spawn("a"), wait("a"), a=[wrong, finish()])
    assert '"success", "failed"' in (await messages(tmp_path, "a"))[2]["content"]


async def test_a_leaf_cannot_spawn_and_the_root_cannot_finish(tmp_path: Path) -> None:
    async with tree(tmp_path, ScriptedModels(main=[])) as agent:
        tools = FibreTools(agent._orchestrator, agent.agents["main"])
        assert "sys_spawn_agent" not in Registry(tools.tools(may_spawn=False))
        assert "sys_wait_agent" not in Registry(tools.tools(may_spawn=False))
        assert "sys_finish_task" not in Registry(tools.tools(may_finish=False))
        assert len(Registry(tools.tools())) == 6
