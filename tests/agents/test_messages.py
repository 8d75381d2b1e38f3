"""What the loop itself says to a model is said in the agent's language."""

import string
from dataclasses import fields

import pytest

from cfs.errors import ContextTooLong
from cfs.wire import Message, ToolCall
from cfs_agents.base.messages import Language, Messages, catalogue
from cfs_agents.context import ContextItem, Conversation
from cfs_agents.loop.agent import Agent, AgentConfig
from cfs_agents.main.testing import ScriptedModel, calls, raises, says


def places(sentence: str) -> int:
    """How many places a sentence leaves to be filled."""
    return sum(name is not None for _, name, _, _ in string.Formatter().parse(sentence))


@pytest.mark.parametrize("name", [field.name for field in fields(Messages)])
def test_both_languages_leave_the_same_places(name: str) -> None:
    english, chinese = getattr(catalogue("en"), name), getattr(catalogue("zh"), name)
    assert places(english) == places(chinese)
    assert any("\u4e00" <= letter <= "\u9fff" for letter in chinese)


def nothing() -> str:
    """Do nothing."""
    return "nothing"


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_an_agent_reads_its_language_when_its_rounds_were_over(language: Language) -> None:
    model = ScriptedModel([calls("nothing"), says("done")])
    agent = Agent(model, AgentConfig(tools=[nothing], max_rounds=1, offload_enabled=False, language=language))
    await agent.query("work")
    await agent.query()
    assert model.asked[-1].messages[-1].content == catalogue(language).go_on


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_an_agent_reads_its_language_after_a_kill(language: Language) -> None:
    model = ScriptedModel([says("done")])
    agent = Agent(model, AgentConfig(tools=[nothing], offload_enabled=False, language=language))
    call = ToolCall(id="1", name="nothing", arguments={})
    task = Message(role="user", content="work"), Message(role="assistant", content="", tool_calls=(call,))
    agent.resume_at(Conversation(tuple(map(ContextItem.of, task))), begun=["1"])
    await agent.query()
    assert model.asked[-1].messages[-1].content == catalogue(language).perhaps_run.format("nothing")


async def test_a_chinese_conversation_is_shortened_in_chinese() -> None:
    model = ScriptedModel([raises(ContextTooLong("too long")), says("done")])
    agent = Agent(model, AgentConfig(offload_enabled=False, language="zh"))
    for word in ("one", "two", "three"):
        agent.context.add(Message(role="user", content=f"{word} " * 300))
        agent.context.add(Message(role="assistant", content=f"{word} " * 300))
    await agent.query("work")
    heading = catalogue("zh").taken_out.partition("{}")[0]
    assert any(message.content.startswith(heading) for message in model.asked[-1].messages)
