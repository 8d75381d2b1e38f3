"""A conversation that is too long is summed up by the model, and what became of it outlives the process (O5, A1)."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from cfs.errors import EngineError
from cfs.wire import Message, ToolCall, Usage
from cfs_agents.base.events import ContextShortened, Warned
from cfs_agents.loop.model import CompleteResponse, Item
from cfs_agents.main.testing import calls, raises, says
from cfs_agents.tools import CommandMode
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from tests.agents.file_agent.support import agent, events_of, texts


class Talker:
    """Calls a tool with a long argument again and again, then answers; asked for a summary, it says `summary`."""

    def __init__(self, rounds: int, summary: str | Exception, *, length: int = 1_800) -> None:
        self.asked: list[tuple[Message, ...]] = []
        self.summarised: list[str] = []
        self._left = rounds
        self._summary = summary
        self._length = length

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Reply at once; a model that sums up has no tools."""
        if not tools:
            self.summarised.append(messages[-1].content)
            if isinstance(self._summary, Exception):
                raise self._summary
            yield CompleteResponse(Message(role="assistant", content=self._summary), "stop", Usage(completion_tokens=7))
            return
        self.asked.append(tuple(messages))
        self._left -= 1
        if self._left < 0:
            yield CompleteResponse(Message(role="assistant", content="Done."), "stop", Usage())
            return
        text = f"{self._left} " * (self._length // 2)
        call = ToolCall(id=f"call_{self._left}", name="execute_command", arguments={"command": f": {text}"})
        yield CompleteResponse(Message(role="assistant", content="", tool_calls=(call,)), "tool_calls", Usage())


def talking(root: Path, model: Talker, **config: Any) -> FileSystemAgent:
    """An agent whose newest four calls alone are too long for it."""
    usual: dict[str, Any] = {"max_rounds": 40, "context_tokens": 1_300, "commands": CommandMode.HOST}
    return FileSystemAgent(project_root=root, model=model, config=FileSystemAgentConfig(**(usual | config)))


async def test_the_model_sums_up_what_nothing_else_shortens(tmp_path: Path) -> None:
    """Its words stand for what left, its cost counts, and an event tells; the task itself is never summed up."""
    model = Talker(8, "Four of eight are done.")
    made = talking(tmp_path, model)
    async with made:
        events = await events_of(made, "Do eight.")
        assert made.outcome.ok
        assert made.outcome.usage.completion_tokens == 7 * len(model.summarised)
    assert model.summarised
    assert "Do eight." not in model.summarised[0]
    assert any("Four of eight are done." in texts(asked) for asked in model.asked)
    assert all("Do eight." in texts(asked) for asked in model.asked)
    told = [event for event in events if isinstance(event, ContextShortened) and event.summarised]
    assert len(told) == len(model.summarised)
    assert all(event.tokens_after < event.tokens_before for event in told)


async def test_a_summary_that_does_not_help_is_not_asked_for_every_round(tmp_path: Path) -> None:
    """What was there stays; the next try comes when the conversation has grown by a tenth."""
    model = Talker(12, "blah " * 4_000, length=100)
    made = talking(tmp_path, model)
    async with made:
        events = await events_of(made, "x" * 4 * 1_250)
        assert made.outcome.ok
    warned = [event.text for event in events if isinstance(event, Warned)]
    assert 0 < len(model.summarised) <= 4 < len(model.asked)
    assert len([text for text in warned if "the summary is not smaller" in text]) == len(model.summarised)


async def test_a_summary_that_fails_leaves_the_conversation(tmp_path: Path) -> None:
    """The work goes on with what was there, and a warning has the reason."""
    model = Talker(8, EngineError("it was too much for me"))
    made = talking(tmp_path, model)
    async with made:
        events = await events_of(made, "Do eight.")
        assert made.outcome.ok
    assert any("it was too much for me" in event.text for event in events if isinstance(event, Warned))


async def test_another_process_goes_on_with_the_same_conversation(tmp_path: Path) -> None:
    """Word for word: what had left does not come back, and nothing is summed up or off-loaded again."""
    first = Talker(7, "Some are done.")
    made = talking(tmp_path, first)
    async with made:
        events = made.run_stream("Do many.")
        async for event in events:
            if isinstance(event, ContextShortened) and event.summarised:
                break
        await events.aclose()
        known = made._agent.context.context
    second = Talker(0, "Never asked for.")
    made = talking(tmp_path, second)
    async with made:
        assert (await made.resume()).ok
    assert second.summarised == []
    assert second.asked[0][1:] == tuple(item.message for item in known.items[1:])
    assert "Some are done." in texts(second.asked[0])


async def test_placeholders_outlive_the_process(tmp_path: Path) -> None:
    """What was off-loaded once stands as a placeholder in the next process, also if its threshold is another one."""
    made, model = agent(
        tmp_path,
        calls("execute_command", command="seq 2000"),
        calls("list_directory"),
        raises(EngineError("the power is cut")),
        offload_token_threshold=500,
    )
    async with made:
        await made.run("Count.")
    again, later = agent(tmp_path, says("Counted."), offload_enabled=False)
    async with again:
        assert (await again.resume()).ok
    assert "[Content offloaded]" in model.asked[2].messages[3].content
    assert later.asked[0].messages[3] == model.asked[2].messages[3]
