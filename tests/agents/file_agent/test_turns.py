"""A long conversation costs what is new in it: the real server computes each token of the rest once (A7, H4)."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from cfs.transports.async_http import AsyncClient
from cfs.wire import Message, ToolCall, Usage
from cfs_agents.base.events import ContextShortened, RoundStarted
from cfs_agents.loop.model import CompleteResponse, Item
from cfs_agents.loop.server_model import ModelSettings, ServerCounter, ServerModel
from cfs_agents.tools import CommandMode
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from tests.server.support import Process

STEPS = 24
_SLACK = 16
"""Tokens that may be computed again where two texts meet."""


class Tethered:
    """Lets a server's model read each prompt, and goes on with a call that the test wants; `costs` is what it told.

    It never syncs; `syncs` are the turns in which it was asked to, by another list of tools.
    """

    def __init__(self, model: ServerModel, steps: int) -> None:
        self.costs: list[Usage] = []
        self.syncs: list[int] = []
        self._model = model
        self._steps = steps

    async def context_window(self) -> int | None:
        """Return what the server's model reads."""
        return await self._model.context_window()

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Ask the server for a token, and reply with the next step."""
        async for item in self._model.stream(messages, tools):
            if isinstance(item, CompleteResponse):
                self.costs.append(item.usage)
        step = len(self.costs)
        if len(tools) == 1:
            self.syncs.append(step)
        if step > self._steps:
            yield CompleteResponse(Message(role="assistant", content="Done."), "stop", self.costs[-1])
            return
        command = f"seq {step} {step + (400 if step == 5 else 8)}"
        call = ToolCall(id=f"call_{step}", name="execute_command", arguments={"command": command})
        message = Message(role="assistant", content=f"Step {step}.", tool_calls=(call,))
        yield CompleteResponse(message, "tool_calls", self.costs[-1])


async def test_only_what_is_new_is_computed(model_server: Process, tmp_path: Path) -> None:
    """In each turn, but for the few before which the conversation was shortened, or the tools were others.

    A turn with other tools takes nothing from the next one, which continues the turn before it.
    """
    shortened: list[int] = []
    rounds = 0
    async with AsyncClient(model_server.url) as client:
        model = Tethered(ServerModel(client, ModelSettings(temperature=0, max_tokens=1)), STEPS)
        counter = ServerCounter(client)
        config = FileSystemAgentConfig(
            max_rounds=STEPS + 1, context_tokens=1_200, counter=counter, commands=CommandMode.HOST
        )
        async with FileSystemAgent(project_root=tmp_path, model=model, config=config) as agent:
            async for event in agent.run_stream("Count."):
                if isinstance(event, RoundStarted):
                    rounds = event.number
                elif isinstance(event, ContextShortened):
                    shortened.append(rounds)
            assert agent.outcome.ok
    computed = [cost.prompt_tokens - cost.cached_tokens for cost in model.costs]
    grown = [
        after.prompt_tokens - before.prompt_tokens for before, after in zip(model.costs, model.costs[1:], strict=False)
    ]
    others = {*shortened, *model.syncs, *(number + 1 for number in model.syncs if number in shortened)}
    for number, (new, growth) in enumerate(zip(computed[1:], grown, strict=True), 2):
        if number - 1 in model.syncs:
            growth += grown[number - 3]
        if number not in others and growth > 0:
            assert new <= growth + _SLACK, f"turn {number} of {len(computed)}: {new} computed, {growth} new"
    assert 0 < len(shortened) < STEPS / 3
    assert len(model.costs) == STEPS + 1
    assert sum(computed) < sum(cost.prompt_tokens for cost in model.costs) / 4
