"""A model behind a bad line: what may pass is tried again, what is wrong is told, and work is done once (A7)."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cfs.completions import UNREADABLE
from cfs.wire import Message
from cfs_agents.base.events import Retrying
from cfs_agents.loop.model import Item, Model
from cfs_agents.main.testing import ManualClock
from cfs_agents.tree.file_agent import FileSystemAgent
from tests.agents.file_agent.support import events_of, operations
from tests.agents.test_server_model import misbehaving
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import Act, Refusal, Speech


class Plain:
    """A model whose server takes the protocol to the letter: no name in a result, no arguments that are no JSON."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Leave both out."""
        async for item in self._model.stream(list(map(self._plain, messages)), tools):
            yield item

    def _plain(self, message: Message) -> Message:
        read = (
            call.model_copy(update={"arguments": {}}) if UNREADABLE in call.arguments else call
            for call in message.tool_calls
        )
        return message.model_copy(update={"name": None, "tool_calls": tuple(read)})


@asynccontextmanager
async def at_work(root: Path, *acts: Act) -> AsyncIterator[tuple[FileSystemAgent, OpenAIStub, ManualClock]]:
    """An agent whose model is behind a server that plays these acts."""
    async with (
        misbehaving(*acts) as (stub, model, clock),
        FileSystemAgent(project_root=root, model=Plain(model)) as agent,
    ):
        yield agent, stub, clock


def calling(name: str, *pieces: str, cut: int | None = None) -> Speech:
    """A call of a tool, its arguments in pieces, perhaps cut off after some of them."""
    return Speech((), calls=((name, pieces),), cut=cut)


def told(body: dict[str, object]) -> str:
    """The last message that the model was sent."""
    messages = body["messages"]
    assert isinstance(messages, list)
    return str(messages[-1]["content"])


async def test_a_task_is_done_through_all_that_a_server_can_do_wrong(tmp_path: Path) -> None:
    """Refused, failing; arguments that are none, a tool that there is not: never a crash, and nothing is done twice."""
    whole = json.dumps({"path": "a.txt", "content": "hello"})
    acts = (
        Refusal(429, headers={"Retry-After": "7"}),
        Refusal(503),
        calling("write_file", whole),
        calling("write_file", '{"path": "b.txt", "content": '),
        calling("write_everything", "{}"),
        calling("write_file", '{"path": 7}'),
        Speech(("It is", " written.")),
    )
    async with at_work(tmp_path, *acts) as (agent, stub, clock):
        events = await events_of(agent, "Write hello to a.txt.")
        assert agent.outcome.text == "It is written."
    assert clock.slept[0] == 7
    assert len([event for event in events if isinstance(event, Retrying)]) == 2
    reasons = [told(body) for body in stub.bodies]
    assert "no JSON object" in reasons[4]
    assert "write_everything" in reasons[5]
    assert "content" in reasons[6]
    assert (tmp_path / "workspace/a.txt").read_text() == "hello"
    assert [path.name for path in (tmp_path / "workspace").iterdir() if path.suffix] == ["a.txt"]
    done = operations(tmp_path, "write_file", "write_everything")
    assert [operation["success"] for operation in done] == [True, False, False, False]


async def test_a_stream_that_breaks_in_a_call_runs_it_once(tmp_path: Path) -> None:
    """What came of the half is nothing; the whole call, which comes then, is run."""
    half = calling("write_file", '{"path": "a.txt", ', '"content": "half"}', cut=3)
    whole = calling("write_file", '{"path": "a.txt", "content": "whole"}')
    async with at_work(tmp_path, half, whole, Speech(("Done.",))) as (agent, _, _clock):
        assert (await agent.run("Write.")).text == "Done."
    assert (tmp_path / "workspace/a.txt").read_text() == "whole"
    assert len(operations(tmp_path, "write_file")) == 1


async def test_a_call_that_the_limit_cuts_off_is_told_and_made_shorter(tmp_path: Path) -> None:
    """By a real stream that ends with `length` in the middle of the arguments."""
    half = Speech((), calls=(("write_file", ('{"path": "a.txt", "content": "xxxx',)),), stop="length")
    whole = calling("write_file", '{"path": "a.txt", "content": "x"}')
    async with at_work(tmp_path, half, whole, Speech(("Done.",))) as (agent, stub, _):
        assert (await agent.run("Write.")).text == "Done."
    assert "limit of tokens" in told(stub.bodies[1])
    assert (tmp_path / "workspace/a.txt").read_text() == "x"
