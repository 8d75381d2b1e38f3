"""The `sys_` tools: what a model writes arrives as values, and what it gets wrong is told."""

import pytest

from cfs.wire import ToolCall
from cfs_agents.fibre.tools import FibreTools, Finish, SpawnRequest
from cfs_agents.tools import Registry
from tests.agents.fibre.support import RecordingConductor

SPAWN = {
    "agent_name": "coder",
    "role_description": "writes code",
    "system_instruction": "You write code.",
    "task_goal": "Write main.py.",
}


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(id="1", name=name, arguments=arguments)


async def test_a_spawn_arrives_with_its_limits() -> None:
    conductor = RecordingConductor()
    registry = Registry(FibreTools(conductor).tools())
    result = await registry.call(call("sys_spawn_agent", **SPAWN, max_turns=3, timeout=2.5, budget=900))
    assert (result.text, result.ok) == ("main/coder", True)
    assert conductor.asked == [SpawnRequest(**SPAWN, max_turns=3, timeout=2.5, budget=900)]


@pytest.mark.parametrize(
    "wrong", [{"agent_name": "../up"}, {"agent_name": ""}, {"max_turns": 0}, {"timeout": -1}, {"budget": 0}, {"x": 1}]
)
async def test_a_spawn_that_is_wrong_is_told_and_not_done(wrong: dict[str, object]) -> None:
    conductor = RecordingConductor()
    result = await Registry(FibreTools(conductor).tools()).call(call("sys_spawn_agent", **{**SPAWN, **wrong}))
    assert not result.ok
    assert conductor.asked == []


async def test_messages_waits_and_locks_arrive() -> None:
    conductor = RecordingConductor()
    registry = Registry(FibreTools(conductor).tools())
    for each, text in [
        (call("sys_send_message", agent_id="main/coder", content="more"), "sent"),
        (call("sys_wait_agent", agent_id="main/coder"), "[report]"),
        (call("sys_lock_file", path="a.txt"), "locked"),
        (call("sys_unlock_file", path="a.txt"), "unlocked"),
    ]:
        assert (await registry.call(each)).text == text
    assert conductor.asked == [("main/coder", "more"), ("main/coder",), ("lock", "a.txt"), ("unlock", "a.txt")]


@pytest.mark.parametrize("details", [None, {}, {"created_files": ["a.txt"], "logs": "fine"}])
async def test_a_finish_arrives_with_its_details(details: dict[str, object] | None) -> None:
    conductor = RecordingConductor()
    registry = Registry(FibreTools(conductor).tools())
    await registry.call(call("sys_finish_task", status="success", summary="done", details=details))
    assert conductor.asked == [Finish(status="success", summary="done", details=details or {})]


async def test_a_status_that_is_none_is_told() -> None:
    result = await Registry(FibreTools(RecordingConductor()).tools()).call(
        call("sys_finish_task", status="great", summary="done")
    )
    assert not result.ok
    assert '"success", "failed"' in result.text


def test_a_leaf_has_nothing_to_spawn_with_and_the_root_nothing_to_finish_with() -> None:
    tools = FibreTools(RecordingConductor())
    assert "sys_spawn_agent" not in Registry(tools.tools(may_spawn=False))
    assert "sys_wait_agent" not in Registry(tools.tools(may_spawn=False))
    assert "sys_finish_task" not in Registry(tools.tools(may_finish=False))
    assert len(Registry(tools.tools())) == 6
