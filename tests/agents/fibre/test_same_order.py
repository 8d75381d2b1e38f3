"""The same order given again costs no more than the first time, and attempts that only fail come to an end."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from cfs import api
from cfs.transports.http import Client
from cfs.wire import Message, Usage
from cfs_agents.guards.limits import MAX_ATTEMPTS, MAX_FAILURES, check_attempts
from cfs_agents.main.testing import Line, ScriptedModel, says, together
from cfs_agents.tools import ToolError
from cfs_agents.tree.config import FibreConfig, tree_budget_of
from tests.agents.fibre.test_guarded import Following
from tests.agents.fibre.trees import ScriptedModels, finish, messages, spawn, tree, wait, write
from tests.client.terminal import Running, cfs
from tests.server.support import serving

ORDER = 'Make a.txt with "hello".'
WRITER = [write("a.txt", "hello"), finish("made a.txt", "a.txt")]
FAILS = [finish("it is locked", status="failed")]


def visible(workspace: Path) -> list[str]:
    return sorted(path.name for path in workspace.iterdir() if not path.name.startswith("."))


async def test_an_order_given_three_times_starts_as_many_agents_each_time(tmp_path: Path) -> None:
    """The model waits by the name that it asked for. The answer is the report of the new agent, not of the old one."""
    once = [spawn("w", ORDER), wait("w"), says("Done.")]
    scripted = ScriptedModels(main=once * 3, w=WRITER, **{"w-2": WRITER, "w-3": WRITER})
    async with tree(tmp_path, scripted) as agent:
        for _ in range(3):
            report = await agent.run(ORDER)
            assert (report.status, report.summary) == ("success", "Done.")
        assert list(agent.agents) == ["main", "w", "w-2", "w-3"]
    scripted.check_finished()
    assert visible(tmp_path / "main/agent_workspace") == ["a.txt"]
    reports = [each["content"] for each in await messages(tmp_path) if each.get("name") == "sys_wait_agent"]
    assert [report.partition(" ")[0] for report in reports] == ["[w", "[w-2", "[w-3"]


class SpawnsForEver:
    """A model of the root that never gives up: it starts a new agent for each of some goals, and waits for it."""

    def __init__(self, *goals: str) -> None:
        self.goals = goals
        self.spawned = 0

    def line(self, asked: Sequence[Message]) -> Line:
        last = asked[-1]
        if last.role == "tool" and last.name == "sys_spawn_agent" and not last.content.startswith("Error"):
            return wait(last.content)
        self.spawned += 1
        return spawn(f"agent{self.spawned}", self.goals[self.spawned % len(self.goals)])


@pytest.mark.parametrize(
    ("goals", "most"), [([ORDER], MAX_ATTEMPTS), ([f"goal {word}" for word in "abcdefghij"], MAX_FAILURES)]
)
async def test_new_agents_that_all_fail_are_repetition(tmp_path: Path, goals: list[str], most: int) -> None:
    root = SpawnsForEver(*goals)
    names = {f"agent{number}": FAILS for number in range(1, 40)}
    children = ScriptedModels(**names)
    model = Following(root.line)
    async with tree(tmp_path, lambda name: model if name == "main" else children(name)) as agent:
        report = await agent.run(ORDER)
        assert report.status == "failed"
        assert "the same error" in report.reasons[0]
        assert len(agent.agents) - 1 == most


def test_a_goal_is_the_same_in_other_words_of_form_only() -> None:
    failed = [("Write  a.txt!", False), ("write A.TXT", False), ("Write a.txt at 10:31:02", False)]
    with pytest.raises(ToolError, match="3 agents have failed at this goal"):
        check_attempts("write a.txt", [*failed[:2], ("Write a.txt.", False)])
    check_attempts("write b.txt", failed)
    check_attempts("write a.txt", [(goal, True) for goal, _ in failed])


async def test_each_order_has_a_budget_and_a_number_of_agents_of_its_own(tmp_path: Path) -> None:
    cost = Usage(prompt_tokens=12_000)
    costly = together(spawn("w", ORDER), says("", usage=cost))
    scripted = ScriptedModels(
        main=[costly, wait("w"), spawn("x"), says("One."), costly, wait("w"), says("Two.")], w=WRITER, **{"w-2": WRITER}
    )
    async with tree(tmp_path, scripted, tree_budget=20_000, max_agents=1) as agent:
        assert (await agent.run(ORDER)).summary == "One."
        assert (await agent.run(ORDER)).summary == "Two."
    scripted.check_finished()


async def test_a_tree_without_budget_left_asks_for_another_message(tmp_path: Path) -> None:
    cost = Usage(prompt_tokens=6_000)
    scripted = ScriptedModels(main=[together(write("a.txt"), says("", usage=cost)), says("Now it is done.")])
    async with tree(tmp_path, scripted, tree_budget=5_000) as agent:
        report = await agent.run(ORDER)
        assert report.status == "failed"
        assert report.reasons[0].endswith("Send a message to go on with as much again")
    async with tree(tmp_path, scripted, tree_budget=5_000) as agent:
        assert (await agent.run("go on")).summary == "Now it is done."


@pytest.mark.parametrize(
    ("budget", "window", "tokens"), [(None, 2_048, 81_920), (None, None, 5_000_000), (7, 2_048, 7), (0, 2_048, None)]
)
def test_the_budget_of_a_tree_follows_from_its_context(budget: int | None, window: int | None, tokens: int) -> None:
    assert tree_budget_of(FibreConfig(tree_budget=budget), window) == tokens


class Sized(ScriptedModel):
    """A model that says how much it reads."""

    tokens = 0

    async def context_window(self) -> int | None:
        """Return it."""
        return self.tokens


@pytest.mark.parametrize(("tokens", "roles"), [(2_048, "su"), (4_096, "suatatatau")])
async def test_a_tiny_context_begins_each_order_with_an_empty_conversation(
    tmp_path: Path, tokens: int, roles: str
) -> None:
    """Small models repeat what they did for earlier orders. The session keeps all messages."""
    root = Sized([spawn("w", ORDER), wait("w"), write("b.txt"), says("One."), says("Two.")])
    root.tokens = tokens
    child = ScriptedModel(WRITER)
    async with tree(tmp_path, lambda name: root if name == "main" else child) as agent:
        await agent.run(ORDER)
        await agent.run(ORDER)
    assert "".join(message.role[0] for message in root.asked[-1].messages) == roles
    assert len(await messages(tmp_path)) == 10


@pytest.mark.slow
def test_the_order_of_the_readme_given_three_times(tmp_path: Path) -> None:
    """By the embedded model, with the program: no more agents than the first time and one, and no other file."""
    order = 'Make a.txt with "hello" and b.txt with "world" in parallel.'
    with serving() as server, Client(server.url) as client:
        root = tmp_path / "agents"
        options = ("--session", "main", "--root", str(root), "--temperature", "0")
        with Running(server.url, "agent", "serve", *options) as running:
            assert running.process.stderr is not None
            assert b"an agent answers" in running.process.stderr.readline()
            counts = [0]
            for _ in range(3):
                assert cfs(server.url, "send", "main", order).returncode == 0
                children = client.call(api.sub_sessions("main"))
                counts.append(len(children.children))
        assert counts[1] >= 2
        assert all(later - earlier <= counts[1] + 1 for earlier, later in pairwise(counts))
        assert visible(root / "main/agent_workspace") == ["a.txt", "b.txt"]
