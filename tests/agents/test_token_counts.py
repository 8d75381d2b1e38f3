"""Counting by what replies cost: a server is asked for counts only where they are not told anyway (O3, O5)."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from cfs.transports.async_http import AsyncClient
from cfs.wire import Message, ToolCall, Usage
from cfs_agents.context import CachedCounter
from cfs_agents.context.items import MESSAGE_TOKENS
from cfs_agents.loop.agent import Agent, AgentConfig
from cfs_agents.loop.model import CompleteResponse, Item
from cfs_agents.loop.server_model import ModelSettings, ServerCounter, ServerModel
from cfs_agents.main.testing import Line, ScriptedModel, calls, says, together
from tests.server.support import Process

STEPS = 12


class Counting:
    """A counter that notes how often it is asked: each time is a request to a server."""

    def __init__(self, counter: Any = None) -> None:
        self.asked: list[Sequence[str]] = []
        self._counter = counter

    async def count(self, texts: Sequence[str]) -> list[int]:
        self.asked.append(texts)
        if self._counter is None:
            return [len(text.split()) for text in texts]
        counts: list[int] = await self._counter.count(texts)
        return counts


class Reading:
    """Lets a server's model read each prompt, and goes on with a call that the test wants."""

    def __init__(self, model: ServerModel) -> None:
        self._model = model
        self._step = 0

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Ask the server for a token, and reply with the next step; what that costs is not told."""
        read = 0
        async for item in self._model.stream(messages, tools):
            if isinstance(item, CompleteResponse):
                read = item.usage.prompt_tokens
        self._step += 1
        call = ToolCall(id=f"call_{self._step}", name="look", arguments={"number": self._step})
        made = (call,) if self._step <= STEPS else ()
        message = Message(role="assistant", content="" if made else "Done.", tool_calls=made)
        yield CompleteResponse(message, "tool_calls" if made else "stop", Usage(prompt_tokens=read))


def look(number: int) -> str:
    """Look at something."""
    return f"There are {number} of these things, " + "and some more of these " * (number % 4)


def costing(line: Line, prompt: int, completion: int) -> Line:
    return together(line, says("", usage=Usage(prompt_tokens=prompt, completion_tokens=completion)))


async def test_a_server_is_asked_once_and_not_at_each_step(model_server: Process) -> None:
    """For the first messages; what comes later is known from what the prompt grew by, as well as by counting."""
    async with AsyncClient(model_server.url) as client:
        counting = Counting(ServerCounter(client))
        config = AgentConfig(tools=[look], system="Be brief.", counter=CachedCounter(counting), offload_enabled=False)
        made = Agent(llm=Reading(ServerModel(client, ModelSettings(temperature=0, max_tokens=1))), config=config)
        assert (await made.query("Look at all of it.")).ok
        assert len(counting.asked) == 1
        items = made.context.context.items[:-1]
        exact = sum(await ServerCounter(client).count([item.text() for item in items])) + MESSAGE_TOKENS * len(items)
    assert all(item.tokens is not None for item in items)
    told = sum(item.tokens or 0 for item in items)
    assert abs(told - exact) < exact / 5, f"{told} by usage, {exact} by counting"


async def test_several_results_share_what_the_prompt_grew_by() -> None:
    """In proportion to their lengths; a reply is as long as it says."""
    several = together(calls("look", number=4), calls("look", number=3))
    counting = Counting()
    model = ScriptedModel(
        [costing(calls("look", number=1), 50, 7), costing(several, 80, 20), costing(says("Done."), 200, 2)]
    )
    made = Agent(llm=model, config=AgentConfig(tools=[look], counter=counting, offload_enabled=False))
    assert (await made.query("Look.")).ok
    tokens = [item.tokens for item in made.context.context.items]
    assert tokens[:4] == [1 + MESSAGE_TOKENS, 7 + MESSAGE_TOKENS, 80 - 50 - 7 - MESSAGE_TOKENS, 20 + MESSAGE_TOKENS]
    first, second = tokens[4] or 0, tokens[5] or 0
    assert 200 - 80 - 20 - MESSAGE_TOKENS - 2 < first + second <= 200 - 80 - 20 - MESSAGE_TOKENS
    assert second > 2 * first
    assert len(counting.asked) == 1


async def test_without_usage_all_is_counted() -> None:
    """A server that does not say what a reply cost is asked, as ever."""
    nothing = Usage()
    steps = [together(calls("look", number=number), says("", usage=nothing)) for number in range(5)]
    counting = Counting()
    model = ScriptedModel([*steps, says("Done.", usage=nothing)])
    made = Agent(llm=model, config=AgentConfig(tools=[look], counter=counting, offload_enabled=False))
    assert (await made.query("Look.")).ok
    assert [len(texts) for texts in counting.asked] == [1, 2, 2, 2, 2], "a step is counted once a model has answered it"


async def test_near_a_limit_it_is_counted_before_it_is_sent(tmp_path: Path) -> None:
    """A guess may be four times too small: what could be too much is not sent uncounted."""
    counting = Counting()
    config = AgentConfig(tools=[look], counter=counting, context_tokens=60, offload_root_path=tmp_path)
    model = ScriptedModel(
        [costing(calls("look", number=4), 30, 5), costing(calls("look", number=3), 45, 5), says("Done.")]
    )
    made = Agent(llm=model, config=config)
    assert (await made.query("Look.")).ok
    assert any("There are 3" in text for texts in counting.asked for text in texts)
    assert made.context.files is not None
    made.context.files.close()


async def test_a_large_result_goes_to_disk_by_what_it_cost(tmp_path: Path) -> None:
    """It was not counted before."""

    def large() -> str:
        """Read much."""
        return " ".join(str(number) for number in range(2_000))

    counting = Counting()
    config = AgentConfig(tools=[large, look], counter=counting, offload_root_path=tmp_path)
    script = [calls("large"), calls("look", number=1), calls("look", number=2)]
    costs = [(50, 5), (4_050, 5), (4_080, 5), (400, 1)]
    lines = [costing(line, *cost) for line, cost in zip([*script, says("Done.")], costs, strict=True)]
    model = ScriptedModel(lines)
    made = Agent(llm=model, config=config)
    assert (await made.query("Read.")).ok
    assert not model.asked[1].last.content.startswith("[Content offloaded]")
    assert model.asked[2].messages[2].content.startswith("[Content offloaded]")
    assert not any(
        "1999" in text and not text.startswith("large\n[Content") for texts in counting.asked for text in texts
    )
    assert made.context.files is not None
    made.context.files.close()
