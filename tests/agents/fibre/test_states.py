"""The states of a sub-agent: the table, and that real agents keep to it whatever happens to them (B8)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cfs.wire import Message
from cfs_agents.loop.model import Item
from cfs_agents.main.testing import Line, ScriptedModel, says
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.record import TRANSITIONS, SubAgentState
from cfs_agents.tree.sub_agent import FibreSubAgent
from tests.agents.fibre.trees import ScriptedModels, finish, spawn, tree, wait, write

STARTING, WORKING, WAITING, REPORTING, DONE = SubAgentState
T = TypeVar("T")


@pytest.mark.parametrize(("before", "after"), list(product(SubAgentState, repeat=2)))
async def test_only_the_changes_of_the_table_happen(
    tmp_path: Path, before: SubAgentState, after: SubAgentState
) -> None:
    async with tree(tmp_path, ScriptedModels(main=[])) as agent:
        root = agent.agents["main"]
        root._state = before
        if after in TRANSITIONS[before] or after is before:
            root._change(after)
            assert root.state is after
        else:
            with pytest.raises(RuntimeError, match=f"{before} to {after}"):
                root._change(after)
            assert root.state is before


def test_every_state_is_reached_and_left() -> None:
    assert TRANSITIONS.keys() == set(SubAgentState)
    assert set().union(*TRANSITIONS.values()) == set(SubAgentState)
    assert all(TRANSITIONS.values())


class Models:
    """Models that wait until the test answers for them."""

    def __init__(self) -> None:
        self.asked: dict[str, asyncio.Future[Line]] = {}

    def __call__(self, name: str) -> "Asking":
        return Asking(self, name)

    def answer(self, name: str, line: Line) -> None:
        """Let an agent's model reply."""
        self.asked.pop(name).set_result(line)


class Asking:
    """One agent's model."""

    def __init__(self, models: Models, name: str) -> None:
        self._models = models
        self._name = name

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Reply with the line that the test gives."""
        asked = self._models.asked[self._name] = asyncio.get_running_loop().create_future()
        try:
            line = await asked
        finally:
            if self._models.asked.get(self._name) is asked:
                del self._models.asked[self._name]
        async for item in ScriptedModel([line]).stream(messages, tools):
            yield item


CONFIG = FibreConfig(max_turns=1000, root_max_turns=1000, timeout=None, tick_seconds=60.0)


class Life(RuleBasedStateMachine):
    """A root and its child `a`, whose models and users do anything in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = TemporaryDirectory()
        self.expected: dict[str, SubAgentState] = {}
        self.models = Models()
        self.count = 0
        self.stream: asyncio.Task[None] | None = None
        self.agent = self.run(self._enter())

    # -- the tree -------------------------------------------------------------------------------------------------

    async def _enter(self) -> FibreAgent:
        return await FibreAgent(self.folder.name, self.models, CONFIG).__aenter__()

    def run(self, work: Awaitable[T]) -> T:
        """Do something, and wait until each agent is at rest, waits for its child, or for its model."""

        async def through() -> T:
            result = await work
            async with asyncio.timeout(60):
                while not self.quiet():  # noqa: ASYNC110 - threads write files meanwhile
                    await asyncio.sleep(0.001)
            return result

        return self.runner.run(through())

    def does(self, action: Callable[[], Any]) -> None:
        """Do something on the event loop."""

        async def work() -> None:
            action()

        self.run(work())

    def quiet(self) -> bool:
        """Whether nothing happens until the test does something."""
        if self.stream is None:
            return True
        if not self.root.busy:
            return self.stream.done()
        return not self.stream.done() and all(self.blocked(each) for each in self.agent.agents.values())

    def blocked(self, agent: FibreSubAgent) -> bool:
        if agent.agent_id in self.models.asked or not agent.busy:
            return True
        return agent.state is WAITING and agent.is_root and self.child is not None and self.child.busy

    def begin(self, task: str | None) -> None:
        """Run the tree on a task, or on what was interrupted."""

        async def read() -> None:
            async with aclosing(self.agent.run_stream(task)) as chunks:
                async for _ in chunks:
                    pass

        async def start() -> None:
            self.stream = asyncio.create_task(read())
            await asyncio.sleep(0)
            while not self.root.running:  # noqa: ASYNC110 - it starts at once
                await asyncio.sleep(0)

        self.run(start())

    @property
    def root(self) -> FibreSubAgent:
        """The root."""
        return self.agent.agents["main"]

    @property
    def child(self) -> FibreSubAgent | None:
        """The child, if there is one."""
        return self.agent.agents.get("a")

    def has_message(self, name: str) -> bool:
        """Whether a message waits for an agent that it will read before it ends."""
        return bool(self.agent.agents[name].record.inbox)

    def child_ends(self) -> None:
        """Expect the child's end, or its next task if a message waits; a root that waits gets the report."""
        again = self.has_message("a")
        self.expected["a"] = WORKING if again else DONE
        if self.expected["main"] is WAITING and not again:
            self.expected["main"] = WORKING

    # -- what happens ---------------------------------------------------------------------------------------------

    @initialize()
    def begins(self) -> None:
        """The root gets its first task."""
        self.begin("go")
        self.expected["main"] = WORKING

    @precondition(lambda self: "main" in self.models.asked and self.child is None)
    @rule()
    def root_spawns(self) -> None:
        """Both work."""
        self.does(lambda: self.models.answer("main", spawn("a")))
        self.expected["a"] = WORKING

    @precondition(lambda self: "main" in self.models.asked and self.child is not None)
    @rule()
    def root_waits(self) -> None:
        """It has the report at once if there is one."""
        self.expected["main"] = WAITING if self.expected["a"] is not DONE else WORKING
        self.does(lambda: self.models.answer("main", wait("a")))

    @precondition(lambda self: "main" in self.models.asked)
    @rule()
    def root_answers(self) -> None:
        """It goes on if a message waits, or once if its child works; else its answer ends the child, too."""
        more = self.has_message("main")
        nudged = "at_work" in self.root.record.nudges
        if not more and (self.expected.get("a", DONE) is DONE or nudged):
            self.expected = dict.fromkeys(self.expected, DONE)
        self.does(lambda: self.models.answer("main", says("ok")))

    @precondition(lambda self: self.expected["main"] is DONE)
    @rule()
    def root_gets_a_task(self) -> None:
        """It works again, and so does a child for which a message waits."""
        self.expected["main"] = WORKING
        if self.child is not None and any(not each.is_notification for each in self.child.record.inbox):
            self.expected["a"] = WORKING
        self.begin("again")

    @precondition(lambda self: "a" in self.models.asked)
    @rule()
    def child_writes(self) -> None:
        """It works on."""
        self.count += 1
        content = str(self.count)
        self.does(lambda: self.models.answer("a", write("a.txt", content)))

    @precondition(lambda self: "a" in self.models.asked)
    @rule()
    def child_finishes(self) -> None:
        """It has reported."""
        self.child_ends()
        self.does(lambda: self.models.answer("a", finish()))

    @precondition(lambda self: "a" in self.models.asked)
    @rule()
    def child_answers(self) -> None:
        """It is asked for a report once; the next answer ends it."""
        assert self.child is not None
        if "finish" in self.child.record.nudges and not self.has_message("a"):
            self.child_ends()
        self.does(lambda: self.models.answer("a", says("well")))

    @precondition(lambda self: "a" in self.models.asked)
    @rule()
    def child_is_cancelled(self) -> None:
        """It reports that."""
        self.child_ends()

        def cancel() -> None:
            del self.models.asked["a"]
            self.agent.cancel("a")

        self.does(cancel)
        assert self.child is not None
        if self.expected["a"] is DONE:
            assert self.child.report is not None
            assert self.child.report.status == "cancelled"

    @precondition(lambda self: self.child is not None and self.expected["main"] in (WORKING, WAITING))
    @rule()
    def child_gets_a_message(self) -> None:
        """One that is done works on it."""
        self.expected["a"] = WORKING
        self.run(self.agent.send("a", "more"))

    @precondition(lambda self: self.expected["main"] in (WORKING, WAITING))
    @rule()
    def everything_is_interrupted_and_resumed(self) -> None:
        """Each agent that had a task has it still, also in another process, and then is where it was."""
        before = dict(self.expected)

        async def leave() -> None:
            assert self.stream is not None
            self.stream.cancel()
            await asyncio.wait([self.stream])
            self.stream = None

        self.run(leave())
        resting = {name: DONE if state is DONE else STARTING for name, state in before.items()}
        assert {name: each.state for name, each in self.agent.agents.items()} == resting
        self.run(self.agent.__aexit__(None, None, None))
        self.agent = self.run(self._enter())
        assert {name: each.state for name, each in self.agent.agents.items()} == resting
        self.begin(None)

    # -- what is true ---------------------------------------------------------------------------------------------

    @invariant()
    def states_are_as_expected(self) -> None:
        """And what is stored says the same."""
        assert {name: each.state for name, each in self.agent.agents.items()} == (self.expected or {"main": DONE})
        for each in self.agent.agents.values():
            assert each.busy == (each.state is not DONE) == (each.record.state != "done")
            assert (each.report is not None) == (each.state is DONE and each.record.tasks > 0)

    def teardown(self) -> None:
        """End it."""

        async def end() -> None:
            if self.stream is not None:
                self.stream.cancel()
                await asyncio.wait([self.stream])
            self.stream = None
            await self.agent.__aexit__(None, None, None)

        self.run(end())
        self.runner.close()
        self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=settings().max_examples * 2 // 5,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
