"""Liars, races and zombies in whole trees: caught by the system, told to the parent as facts, and survived (B7)."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cfs.wire import Message, Usage
from cfs_agents.guards.report import Report
from cfs_agents.loop.model import Item
from cfs_agents.main.testing import Line, ScriptedModel, calls, says, together
from cfs_agents.tools import tool
from cfs_agents.tree.fibre import FibreAgent
from tests.agents.fibre.trees import ScriptedModels, finish, late, messages, spawn, tree, wait, write
from tests.server.support import until

WENT_ON = [wait("a"), says("went on")]


class Following:
    """A model that goes by what it is asked, and not by how often."""

    def __init__(self, line: Callable[[Sequence[Message]], Line]) -> None:
        self._line = line

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Say what follows."""
        async for item in ScriptedModel([self._line(messages)]).stream(messages, tools):
            yield item


def cycling(*lines: Line) -> Following:
    """One that says the same lines again and again."""
    return Following(lambda asked: lines[sum(message.role == "assistant" for message in asked) % len(lines)])


def report_of(agent: FibreAgent, name: str = "a") -> Report:
    """What its parent was told of an agent."""
    report = agent.agents[name].report
    assert report is not None
    return report


async def judged(folder: Path, root: Sequence[Line], *child: Line) -> Report:
    """The report of a child `a` that does this, while its parent goes on."""
    async with tree(folder, ScriptedModels(main=[*root, spawn("a"), *WENT_ON], a=child)) as agent:
        assert (await agent.run("go")).summary == "went on"
        return report_of(agent)


# -- liars ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        ([finish("made it", "ghost.txt")], "claimed, but not there: ghost.txt"),
        ([write("empty.txt", ""), finish("made it", "empty.txt")], "claimed, but empty: empty.txt"),
        ([finish("made it", "base.txt")], "claimed, but made by others: base.txt"),
        ([finish("made it", "/etc/passwd")], "claimed, but no path of the workspace: /etc/passwd"),
    ],
)
async def test_a_claim_that_is_not_so_makes_a_success_unverified(
    tmp_path: Path, child: list[Line], reason: str
) -> None:
    report = await judged(tmp_path, [write("base.txt")], *child)
    assert (report.status, reason in report.reasons) == ("unverified", True), report
    told = (await messages(tmp_path))[-2]["content"]
    assert ["[a unverified]" in told, reason in told, "Verify" in told] == [True, True, True]


async def test_a_child_that_changed_nothing_says_so_by_its_facts(tmp_path: Path) -> None:
    report = await judged(tmp_path, [write("base.txt")], finish("all done"))
    assert report.facts == ()


async def test_the_facts_of_a_child_are_those_of_its_own_and_of_what_is_below_it(tmp_path: Path) -> None:
    """What its siblings did is in their reports; the root's name all."""
    scripted = ScriptedModels(
        main=[spawn("a"), spawn("b"), wait("b"), wait("a"), says("ok")],
        a=[late(write("a.txt")), finish("mine", "a.txt", "b.txt")],
        b=[spawn("c"), wait("c"), write("b.txt"), finish("mine", "b.txt")],
        c=[write("c.txt"), finish("mine", "c.txt")],
    )
    async with tree(tmp_path, scripted) as agent:
        working = asyncio.create_task(agent.run("go"))
        await until(lambda: len(scripted.models["main"].asked) == 4)
        await scripted.clock.until_asleep()
        scripted.clock.advance(5)
        assert (await working).ok
        assert report_of(agent, "b").status == "success"
        report = report_of(agent)
        made = {
            name: [(change.path, change.by) for change in report_of(agent, name).facts] for name in ("main", "a", "b")
        }
    mine, theirs = [("a.txt", "a")], [("b.txt", "b"), ("c.txt", "c")]
    assert made == {"a": mine, "b": theirs, "main": mine + theirs}
    assert (report.status, report.reasons) == ("unverified", ("claimed, but made by others: b.txt",))


async def test_of_two_reports_the_first_counts(tmp_path: Path) -> None:
    report = await judged(tmp_path, [], together(finish("first"), finish("second")))
    assert report.summary == "first"
    assert "it reported more than once; the first report counts" in report.reasons


async def test_nobody_reports_for_another(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[together(spawn("a"), spawn("b")), wait("a"), wait("b"), says("ok")],
        a=[calls("sys_finish_task", status="success", summary="b is done", agent_id="b"), finish("mine")],
        b=[finish("my own")],
    )
    async with tree(tmp_path, scripted) as agent:
        assert (await agent.run("go")).ok
        assert [report_of(agent, name).summary for name in ("a", "b")] == ["mine", "my own"]
    assert (await messages(tmp_path, "a"))[2]["content"].startswith("Error")


# -- races ------------------------------------------------------------------------------------------------------------


async def test_of_twenty_writers_of_one_file_none_loses_an_update(tmp_path: Path) -> None:
    """Each reads and writes the whole; who comes too late is told who was first, and begins again."""
    names = [f"w{number:02}" for number in range(20)]
    refused: list[str] = []

    def appending(name: str) -> Following:
        def line(asked: Sequence[Message]) -> Line:
            last = asked[-1]
            if last.role == "tool" and last.name == "read_file":
                return write("list.txt", f"{last.content}{name}\n")
            if last.role == "tool" and last.content.startswith("changed"):
                return finish("added")
            if last.role == "tool":
                refused.append(last.content)
            return calls("read_file", path="list.txt")

        return Following(line)

    root = ScriptedModel(
        [
            write("list.txt", "names:\n"),
            together(*(spawn(name, max_turns=200) for name in names)),
            together(*map(wait, names)),
            says("ok"),
        ]
    )
    models = {"main": root, **{name: appending(name) for name in names}}
    async with tree(tmp_path, models.__getitem__) as agent:
        assert (await agent.run("go")).ok
        assert {report_of(agent, name).status for name in names} == {"success"}
    text = await asyncio.to_thread((tmp_path / "main/agent_workspace/list.txt").read_text)
    assert sorted(text.split()[1:]) == names
    assert all(re.search(r"was changed by w\d\d since you last read it", sentence) for sentence in refused)


async def test_locks_end_with_their_agent(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), calls("sys_lock_file", path="x.txt"), says("ok")],
        a=[calls("sys_lock_file", path="x.txt"), finish()],
    )
    async with tree(tmp_path, scripted) as agent:
        assert (await agent.run("go")).ok
        assert agent._orchestrator.guards.locks.held() == {}
    assert (await messages(tmp_path))[-2]["content"] == "x.txt is yours for 120 s"


async def test_a_locked_file_is_told_with_its_holder(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[calls("sys_lock_file", path="x.txt"), spawn("a"), wait("a"), says("ok")],
        a=[calls("sys_lock_file", path="x.txt"), finish()],
    )
    async with tree(tmp_path, scripted) as agent:
        assert (await agent.run("go")).ok
    assert "x.txt is reserved by main" in (await messages(tmp_path, "a"))[2]["content"]


# -- zombies ----------------------------------------------------------------------------------------------------------


async def ended(folder: Path, model: Any, *, limits: dict[str, Any] | None = None, **config: Any) -> Report:
    """The report of a child `a` that this model plays, whose parent goes on."""
    models = {"main": ScriptedModel([spawn("a", **(limits or {})), *WENT_ON]), "a": model}
    async with tree(folder, lambda name: models.get(name, model), **config) as agent:
        assert (await agent.run("go")).summary == "went on"
        assert not any(sub_agent.running for sub_agent in agent.agents.values())
        return report_of(agent)


LOOK, READ, LIST = calls("list_directory"), calls("read_file", path="x"), calls("list_directory", path="/workspace")


@pytest.mark.parametrize("loop", [[LOOK], [LOOK, READ], [LOOK, READ, LIST]])
async def test_a_loop_is_ended(tmp_path: Path, loop: list[Line]) -> None:
    report = await ended(tmp_path, cycling(*loop), limits={"max_turns": 100})
    assert (report.status, len(report.reasons)) == ("failed", 1)


async def test_a_hung_tool_is_ended(tmp_path: Path) -> None:
    @tool("Hang.")
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    report = await ended(tmp_path, cycling(calls("hang")), limits={"timeout": 0.3}, tools=[hang])
    assert (report.status, report.reasons) == ("failed", ("it took longer than 0.3 s",))


async def test_an_endless_spawner_comes_to_the_limit(tmp_path: Path) -> None:
    def line(asked: Sequence[Message]) -> Line:
        if "You are a." not in asked[0].content:
            return finish("done")
        return spawn(f"c{len(asked)}")

    report = await ended(tmp_path, Following(line), limits={"max_turns": 40}, max_agents=6)
    assert report.status == "failed"
    own = await messages(tmp_path, "a")
    assert sum(each["role"] == "tool" and not each["content"].startswith("Error") for each in own) == 5


async def test_who_may_not_spawn_has_no_tool_for_it(tmp_path: Path) -> None:
    report = await ended(tmp_path, cycling(spawn("b"), finish("alone")), max_depth=1)
    assert report.status == "success"
    assert "there is no tool 'sys_spawn_agent'" in (await messages(tmp_path, "a"))[2]["content"]


async def test_so_many_at_work_and_no_more(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[together(spawn("a"), spawn("b")), wait("a"), spawn("b"), wait("b"), says("ok")],
        a=[late(finish())],
        b=[finish()],
    )
    async with tree(tmp_path, scripted, max_alive=1) as agent:
        working = asyncio.create_task(agent.run("go"))
        await until(lambda: len(scripted.models["main"].asked) == 2)
        await scripted.clock.until_asleep()
        scripted.clock.advance(5)
        assert (await working).ok
    refused = (await messages(tmp_path))[3]["content"]
    assert refused.startswith("Error")


async def test_a_budget_that_is_used_up_ends_an_agent_before_the_next_question(tmp_path: Path) -> None:
    asked = []

    def line(messages: Sequence[Message]) -> Line:
        asked.append(len(messages))
        cost = Usage(prompt_tokens=4000, completion_tokens=2000)
        return together(write(f"{len(asked)}.txt"), says("", usage=cost))

    report = await ended(tmp_path, Following(line), limits={"budget": 10_000, "max_turns": 100})
    assert (report.status, len(asked)) == ("failed", 2)
    assert "10" in report.reasons[0]


async def test_children_draw_from_the_budget_of_the_tree(tmp_path: Path) -> None:
    cost = Usage(prompt_tokens=20_000)
    scripted = ScriptedModels(
        main=[together(spawn("a"), wait("a"))], a=[together(write("a.txt"), says("", usage=cost)), finish()]
    )
    async with tree(tmp_path, scripted, tree_budget=15_000) as agent:
        assert (await agent.run("go")).status == "failed"
        assert report_of(agent).status == "failed"
    assert [len(scripted.models[name].asked) for name in ("main", "a")] == [1, 1]
