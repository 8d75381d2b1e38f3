"""The loop by itself, as a library (O6): a model, tools, a conversation, and no directory."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cfs.errors import Unavailable
from cfs.wire import Message
from cfs_agents.base.events import Finished, Retrying, Text, Thinking
from cfs_agents.context import ContextFileSystem, ContextItem
from cfs_agents.loop.agent import Agent, AgentConfig
from cfs_agents.main.testing import ScriptedModel, breaks_off, calls, raises, says, together
from cfs_agents.tools import tool


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool("Look at the screen.", ephemeral=3)
def screen(line: int) -> str:
    """Return what is there."""
    return f"line {line} of the screen " * 30


async def test_a_query_is_answered_by_way_of_tools() -> None:
    """A function with a docstring is a tool; the system prompt comes first, and the outcome has the answer."""
    model = ScriptedModel([calls("double", number=4), says("It is 8.")])
    agent = Agent(llm=model, config=AgentConfig(tools=[double], system="Be brief.", offload_enabled=False))
    outcome = await agent.query("Twice four?")
    assert (outcome.ok, str(outcome), outcome.rounds) == (True, "It is 8.", 2)
    assert [message.role for message in model.asked[1].messages] == ["system", "user", "assistant", "tool"]
    assert model.asked[1].last.content == "8"


async def test_several_calls_of_a_reply_are_run_in_their_order() -> None:
    """And the model sees all results at once."""
    model = ScriptedModel([together(calls("double", number=1), calls("double", number=2)), says("2 and 4.")])
    agent = Agent(llm=model, config=AgentConfig(tools=[double], offload_enabled=False))
    assert (await agent.query("Both?")).ok
    assert [message.content for message in model.asked[1].messages if message.role == "tool"] == ["2", "4"]


async def test_large_results_are_off_loaded_where_the_config_says(tmp_path: Path) -> None:
    """Once the model has answered to them, they are on disk and a placeholder stands in the prompt."""
    model = ScriptedModel([calls("screen", line=1), calls("double", number=1), says("Seen.")])
    config = AgentConfig(tools=[screen, double], offload_token_threshold=100, offload_root_path=tmp_path)
    assert (await Agent(llm=model, config=config).query("Look.")).ok
    assert model.asked[1].last.content.startswith("line 1")
    assert model.asked[2].messages[2].content.startswith("[Content offloaded]")
    assert "/tool_result/screen/call_1.txt" in model.asked[2].messages[2].content
    assert str(tmp_path) in model.asked[2].messages[2].content


def sessions_below(root: Path) -> set[str]:
    """Name the sessions that there are."""
    return {path.name for path in root.iterdir() if path.is_dir()}


async def test_sessions_that_nobody_comes_back_to_expire(tmp_path: Path) -> None:
    """Once a day, after a task: those that are older than a week go; one that is in use, or has a name, stays."""
    config = AgentConfig(tools=[screen], offload_token_threshold=100, offload_root_path=tmp_path)
    long_ago = datetime.now(UTC) - timedelta(days=8)
    for name in (None, "a_name", None):
        with ContextFileSystem(tmp_path, name, now=lambda: long_ago) as old:
            old.offload([ContextItem.of(Message(role="user", content="old"))])
    used = ContextFileSystem(tmp_path, now=lambda: long_ago)
    used.offload([ContextItem.of(Message(role="user", content="old"))])
    script = [calls("screen", line=1), calls("screen", line=2), says("Seen."), raises(Unavailable("busy"))]
    agents = [Agent(llm=ScriptedModel(script), config=config) for _ in range(2)]
    assert (await agents[0].query("Look.")).ok
    mine = agents[0].context.files
    assert mine is not None
    assert sessions_below(tmp_path) == {"a_name", used.session_id, mine.session_id}
    used.close()
    assert (await agents[1].query("Look.")).ok
    assert used.path.is_dir(), "not twice in a day"
    marker = tmp_path / ".cleaned"
    os.utime(marker, (0, 0))
    assert (await agents[1].query("Again?")).reason == "failed", "also after a failure"
    assert not used.path.exists()
    for made in agents:
        assert made.context.files is not None
        made.context.files.close()


@pytest.mark.parametrize(("recent", "whole"), [(None, [3, 4, 5]), (1, [5])])
async def test_old_outputs_of_ephemeral_tools_are_destroyed(
    tmp_path: Path, recent: int | None, whole: list[int]
) -> None:
    """The newest three of this tool stay, or as many as the config says for all tools."""
    model = ScriptedModel([*(calls("screen", line=line) for line in range(1, 6)), says("Seen.")])
    config = AgentConfig(tools=[screen], offload_root_path=tmp_path, ephemeral_keep_recent=recent)
    await Agent(llm=model, config=config).query("Look five times.")
    results = [message.content for message in model.asked[-1].messages if message.role == "tool"]
    assert [line for line, text in enumerate(results, 1) if text.startswith(f"line {line} of")] == whole


async def test_words_thoughts_and_retries_are_told_as_they_come() -> None:
    """In their order, and the end last."""
    model = ScriptedModel([breaks_off("Hel", seconds=2.0), says("Hello.", thinking="A greeting.")])
    agent = Agent(llm=model, config=AgentConfig(offload_enabled=False))
    events = [
        event async for event in agent.run_stream("Hi.") if isinstance(event, Text | Thinking | Retrying | Finished)
    ]
    again = Retrying("the connection was lost", 2.0)
    assert events == [Text("Hel"), again, Thinking("A greeting."), Text("Hello."), Finished("answered")]


async def test_a_conversation_goes_on_after_a_failure() -> None:
    """The error is in the outcome, and the next question is asked with all that was said."""
    model = ScriptedModel([raises(Unavailable("busy")), says("Hello.")])
    agent = Agent(llm=model, config=AgentConfig(offload_enabled=False))
    failed = await agent.query("One?")
    assert isinstance(failed.error, Unavailable)
    assert (await agent.query("Two?")).ok
    assert [message.content for message in model.asked[1].messages] == ["One?", "Two?"]


async def test_an_interrupt_leaves_the_callers_task_alone() -> None:
    """The stream ends, and its reader goes on, uncancelled."""

    async def wait() -> str:
        """Wait for ever."""
        asyncio.get_running_loop().call_soon(agent.interrupt)
        await asyncio.Event().wait()
        return "never"

    agent = Agent(llm=ScriptedModel([calls("wait")]), config=AgentConfig(tools=[wait], offload_enabled=False))
    assert (await agent.query("Wait.")).reason == "interrupted"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_without_a_last_turn_the_limit_of_rounds_is_the_end() -> None:
    """The outcome says so, and going on has as many rounds again."""
    model = ScriptedModel([*(calls("double", number=number) for number in range(3)), says("Done.")])
    agent = Agent(llm=model, config=AgentConfig(tools=[double], max_rounds=2, offload_enabled=False))
    assert (await agent.query("Count.")).reason == "rounds"
    assert (await agent.query()).ok
    assert model.asked[2].last.content == "[Go on with the task.]"
    model.check_finished()
