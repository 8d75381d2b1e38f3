"""Replies that are cut off at their limit of tokens: gone on with, told, or a failure, never half an answer."""

from pathlib import Path

import pytest

from cfs.errors import EngineError
from cfs.wire import Message
from cfs_agents.base.events import RoundStarted, Warned
from cfs_agents.loop.agent import Agent, AgentConfig
from cfs_agents.loop.faults import MOST_FAULTS, Fault, joined
from cfs_agents.main.testing import Line, ScriptedModel, calls, cut_off, garbles, raises, says
from tests.agents.file_agent.support import agent, events_of, operations

MOST_CUTS = MOST_FAULTS[Fault.CUT_OFF]


def plain(*script: Line) -> tuple[Agent, ScriptedModel]:
    """Make an agent without a directory."""
    model = ScriptedModel(script)
    return Agent(llm=model, config=AgentConfig(offload_enabled=False)), model


def messages_of(model: ScriptedModel, number: int) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in model.asked[number].messages]


async def test_an_answer_is_gone_on_with_and_joined() -> None:
    """The model reads what it has written and is asked for the rest; the answer is one, and so is the message."""
    made, model = plain(cut_off(says("One, two,")), cut_off(says("three,")), says("four."), says("You are welcome."))
    assert (await made.query("Count.")).text == "One, two, three, four."
    assert made.outcome.rounds == 1
    assert messages_of(model, 1)[1] == ("assistant", "One, two,")
    assert "Go on exactly where it stopped" in model.asked[1].last.content
    assert messages_of(model, 2)[1] == ("assistant", "One, two, three,")
    await made.query("Thanks.")
    assert messages_of(model, 3) == [
        ("user", "Count."),
        ("assistant", "One, two, three, four."),
        ("user", "Thanks."),
    ]


async def test_it_is_told_and_is_one_round(tmp_path: Path) -> None:
    """A warning says so; the cost of both parts counts."""
    made, _ = agent(tmp_path, cut_off(says("One,")), says("two."))
    async with made:
        events = await events_of(made, "Count.")
        assert made.outcome.text == "One, two."
    assert [event.number for event in events if isinstance(event, RoundStarted)] == [1]
    assert any("cut off" in event.text for event in events if isinstance(event, Warned))
    assert any("cut off" in warning for warning in made.warnings)
    assert len(operations(tmp_path, "model")) == 2


@pytest.mark.parametrize(
    "half",
    ['<tool_call>{"name": "double", "arguments": {"num', '{"name": "double", "arguments": {"num', '[CALL:double("x'],
)
async def test_half_a_call_in_words_is_no_answer(half: str) -> None:
    """The model is told that it was cut off within a call; the half leaves the conversation with its next reply."""

    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    model = ScriptedModel([cut_off(says(half)), calls("double", number=2), says("Four.")])
    made = Agent(llm=model, config=AgentConfig(tools=[double], offload_enabled=False))
    assert (await made.query("Twice two?")).text == "Four."
    assert "in the middle of a call" in model.asked[1].last.content
    assert model.asked[1].messages[-2].content == half
    assert half not in str(model.asked[2].messages)
    assert model.asked[2].last.content == "4"


async def test_what_was_said_before_half_a_call_stays() -> None:
    """Words are words."""
    part = Message(role="assistant", content='I write it. <tool_call>{"name": "wri')
    assert joined(part, Message(role="assistant", content="Done.")).content == "I write it. Done."


async def test_a_reply_that_was_thinking_only_is_asked_to_answer() -> None:
    """There is nothing to go on with, so the empty message is not shown; the thoughts are kept."""
    made, model = plain(cut_off(says("", thinking="Well, ")), says("Yes.", thinking="so be it."))
    assert (await made.query("Well?")).text == "Yes."
    assert [role for role, _ in messages_of(model, 1)] == ["user", "user"]
    assert "Think less" in model.asked[1].last.content
    assert made.context.context.items[-1].message.thinking == "Well, so be it."


async def test_after_a_few_tries_the_task_fails_with_the_reason() -> None:
    """Half a text is never an answer; going on later asks for the rest again."""
    made, model = plain(*[cut_off(says("more")) for _ in range(MOST_CUTS)], says("and the end."))
    outcome = await made.query("Tell all.")
    assert (outcome.reason, outcome.text, outcome.rounds) == ("failed", "", 1)
    assert isinstance(outcome.error, EngineError)
    assert "cut off at its limit of tokens 4 times in a row" in outcome.detail
    assert (await made.query()).text == "more more more more and the end."
    model.check_finished()


async def test_a_call_that_is_always_too_long_fails_too(tmp_path: Path) -> None:
    """Each time the model reads that it was cut off; a whole call in between begins the count anew."""
    half = cut_off(garbles("write_file", '{"path": "a", "content": "xxxx'))
    made, model = agent(tmp_path, half, half, calls("list_directory"), *[half] * MOST_CUTS)
    async with made:
        outcome = await made.run("Write much.")
        assert outcome.reason == "failed"
    assert "limit of tokens" in model.asked[1].last.content
    model.check_finished()


async def test_a_new_task_after_half_an_answer_is_a_new_task() -> None:
    """What was said stays as it was said, and nothing is joined to it."""
    made, model = plain(*[cut_off(says("more")) for _ in range(MOST_CUTS)], says("Two."))
    await made.query("Tell all.")
    assert (await made.query("One and one?")).text == "Two."
    assert [role for role, _ in messages_of(model, MOST_CUTS)] == ["user", "assistant", "user"]


async def test_half_an_answer_outlives_its_process(tmp_path: Path) -> None:
    """Another process asks for the rest, from what the journal says."""
    made, _ = agent(tmp_path, cut_off(says("One,")), cut_off(says("two,")), raises(EngineError("the power is cut")))
    async with made:
        assert not (await made.run("Count.")).ok
    made, model = agent(tmp_path, says("three."), says("Yes."))
    async with made:
        assert made.unfinished
        assert (await made.resume()).text == "One, two, three."
    assert [message.content for message in model.asked[0].messages[1:-1]] == ["Count.", "One, two,"]
    made, model = agent(tmp_path, says("Yes."))
    async with made:
        assert not made.unfinished
        await made.run("All?")
    assert [message.content for message in model.asked[0].messages[1:]] == ["Count.", "One, two, three.", "All?"]


async def test_a_chinese_agent_is_asked_in_chinese(tmp_path: Path) -> None:
    """As for all that the loop says."""
    made, model = agent(tmp_path, cut_off(says("一，")), says("二。"), language="zh")
    async with made:
        assert (await made.run("数数。")).text == "一，二。"
    assert "截断" in model.asked[1].last.content
