"""Guards in a whole tree: liars are found out, races lose nothing, zombies end, and the parent goes on (B7)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cfs.wire import Message
from cfs_agents.guards.report import ChangedFile, Report
from cfs_agents.main.testing import Line, ScriptedModel, calls, says, together
from tests.agents.fibre.trees import Script, ScriptedModels, finish, late, messages, spawn, tree, wait, write, writer
from tests.server.support import until


def read(path: str) -> Line:
    return calls("read_file", path=path)


async def child_of(folder: Path, script: Script, *before: Line, **config: Any) -> Report:
    """Let a root spawn one child that plays a script; return the child's report."""
    scripted = ScriptedModels(main=[*before, spawn("child"), wait("child"), says("I know.")], child=script)
    async with tree(folder, scripted, **config) as agent:
        async with asyncio.timeout(60):
            report = await agent.run("work")
        assert (report.status, report.summary) == ("success", "I know.")
        found = agent.agents["child"].report
    assert found is not None
    return found


def put(folder: Path, name: str, text: str) -> None:
    """Have a file in the workspace before any agent is at work."""
    place = folder / "main" / "agent_workspace"
    place.mkdir(parents=True)
    (place / name).write_text(text)


class TestLiars:
    @pytest.mark.parametrize(
        ("script", "reason"),
        [
            ([finish("made it", "none.txt")], "claimed, but not there: none.txt"),
            ([write("empty.txt", ""), finish("made it", "empty.txt")], "claimed, but empty: empty.txt"),
            ([finish("made it", "old.txt")], "claimed, but nothing changed: old.txt"),
            ([finish("made it", "/etc/hostname")], "claimed, but no path of the workspace: /etc/hostname"),
        ],
    )
    async def test_a_false_claim_makes_a_success_unverified(self, tmp_path: Path, script: Script, reason: str) -> None:
        await asyncio.to_thread(put, tmp_path, "old.txt", "old")
        report = await child_of(tmp_path, script)
        assert report.status == "unverified"
        assert report.reasons == (reason,)
        told = (await messages(tmp_path))[-2]
        assert told["content"].startswith("[child unverified]\nmade it\n" + reason)

    async def test_who_wrote_what_the_file_had_already_has_not_lied(self, tmp_path: Path) -> None:
        """The order is carried out, although nothing has changed: else it would be given to one agent after another."""
        await asyncio.to_thread(put, tmp_path, "old.txt", "old")
        report = await child_of(tmp_path, [write("old.txt", "old"), finish("made it", "old.txt")])
        assert (report.status, report.facts) == ("success", ())

    async def test_a_claim_to_the_work_of_another_is_found_out(self, tmp_path: Path) -> None:
        scripted = ScriptedModels(
            main=[spawn("honest"), wait("honest"), spawn("thief"), wait("thief"), says("I know.")],
            honest=writer("honest"),
            thief=[finish("made it", "honest.txt")],
        )
        async with tree(tmp_path, scripted) as agent:
            await agent.run("work")
            reports = {name: sub_agent.report for name, sub_agent in agent.agents.items()}
        assert reports["honest"] is not None
        assert reports["honest"].status == "success"
        assert reports["honest"].facts == (ChangedFile("honest.txt", "created", "honest"),)
        assert reports["thief"] is not None
        assert reports["thief"].reasons == ("claimed, but made by others: honest.txt",)

    async def test_who_reports_twice_is_held_to_the_first(self, tmp_path: Path) -> None:
        report = await child_of(tmp_path, [together(finish("first"), finish("second"))])
        assert (report.status, report.summary) == ("success", "first")

    async def test_who_never_reports_is_asked_once_and_unverified(self, tmp_path: Path) -> None:
        report = await child_of(tmp_path, [says("Done."), says("I said it.")])
        assert (report.status, report.summary) == ("unverified", "I said it.")

    async def test_nobody_can_report_for_another(self, tmp_path: Path) -> None:
        lie = calls("sys_finish_task", status="success", summary="done", agent_id="main")
        report = await child_of(tmp_path, [lie, finish("for myself")])
        assert (report.status, report.summary) == ("success", "for myself")

    async def test_a_claim_of_a_failure_is_held_against_the_facts_too(self, tmp_path: Path) -> None:
        report = await child_of(tmp_path, [write("half.txt"), finish("no", "whole.txt", status="failed")])
        assert report.status == "failed"
        assert report.reasons == ("claimed, but not there: whole.txt",)
        assert report.facts == (ChangedFile("half.txt", "created", "child"),)


class TestRaces:
    async def test_twenty_sub_agents_on_one_file_lose_nothing(self, tmp_path: Path) -> None:
        names = [f"writer{number}" for number in range(20)]
        models = {name: Appender(name) for name in names}
        main = ScriptedModel([together(*map(spawn, names)), *map(wait, names), says("All there.")])

        def scripted(name: str) -> Any:
            return models.get(name, main)

        async with tree(tmp_path, scripted, max_turns=100) as agent:
            async with asyncio.timeout(60):
                await agent.run("work")
            assert all(sub_agent.report is not None and sub_agent.report.ok for sub_agent in agent.agents.values())
        text = await asyncio.to_thread((tmp_path / "main/agent_workspace/shared.txt").read_text)
        assert sorted(text.split()) == sorted(names)
        refusals = [said for model in models.values() for said in model.refused]
        assert len(refusals) >= 19
        assert all("was changed by writer" in said for said in refusals)

    async def test_locks_hold_and_end_with_their_agent(self, tmp_path: Path) -> None:
        lock = calls("sys_lock_file", path="x.txt")
        scripted = ScriptedModels(
            main=[spawn("first"), wait("first"), lock, spawn("second"), wait("second"), says("Done.")],
            first=[lock, finish()],
            second=[lock, finish()],
        )
        async with tree(tmp_path, scripted) as agent:
            await agent.run("work")
            assert agent._orchestrator.guards.locks.held() == {}
        assert "x.txt is yours for 120 s" in str(await messages(tmp_path))
        assert "reserved by main" in str(await messages(tmp_path, "second"))


class Appender:
    """A model that adds its name to a file: it writes, and reads first when it is told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.refused: list[str] = []

    def stream(self, asked: Any, tools: Any = ()) -> Any:
        """Answer by what was said last."""
        last: Message = asked[-1]
        if last.name == "write_file" and last.content.startswith("Error"):
            self.refused.append(last.content)
            line = read("shared.txt")
        elif last.name == "write_file":
            line = finish("added", "shared.txt")
        else:
            before = last.content if last.name == "read_file" else ""
            line = write("shared.txt", f"{before}{self.name}\n")
        return ScriptedModel([line]).stream(asked, tools)


class TestZombies:
    @pytest.mark.parametrize("length", [1, 2, 3])
    async def test_loops_end_and_the_parent_goes_on(self, tmp_path: Path, length: int) -> None:
        cycle = [calls("list_directory", path="/workspace"), read("a.txt"), calls("list_directory")][:length]
        report = await child_of(tmp_path, cycle * 30, write("a.txt"), max_turns=50)
        assert report.status == "failed"
        assert "it repeated itself" in report.reasons[0]

    async def test_the_same_error_again_and_again_ends(self, tmp_path: Path) -> None:
        script = [calls("read_file", path="none.txt", start_line=number) for number in range(1, 50)]
        report = await child_of(tmp_path, script, max_turns=100)
        assert report.status == "failed"
        assert report.reasons == ("it got the same error 5 times",)

    async def test_a_root_that_repeats_itself_ends_too(self, tmp_path: Path) -> None:
        async with tree(tmp_path, ScriptedModels(main=[calls("list_directory")] * 30)) as agent:
            report = await agent.run("work")
        assert report.status == "failed"
        assert "it repeated itself: list_directory" in report.reasons[0]

    async def test_a_spawn_beyond_the_depth_is_refused(self, tmp_path: Path) -> None:
        scripted = ScriptedModels(
            main=[spawn("child"), wait("child"), says("Done.")],
            child=[spawn("grandchild"), wait("grandchild"), finish()],
            grandchild=[spawn("too_deep"), finish()],
        )
        async with tree(tmp_path, scripted) as agent:
            await agent.run("work")
            assert list(agent.agents) == ["main", "child", "grandchild"]
        told = (await messages(tmp_path, "grandchild"))[2]["content"]
        assert told.startswith("Error: there is no tool 'sys_spawn_agent'")

    async def test_an_endless_spawner_is_held_by_both_limits(self, tmp_path: Path) -> None:
        names = [f"n{number}" for number in range(6)]
        main = [together(*map(spawn, names[:3])), wait("n0"), wait("n1"), *map(spawn, names[3:]), says("Enough.")]
        scripts: dict[str, Script] = {name: [finish()] for name in names}
        async with tree(tmp_path, ScriptedModels(main=main, **scripts), max_alive=2, max_agents=4) as agent:
            await agent.run("work")
            assert list(agent.agents) == ["main", "n0", "n1", "n3", "n4"]
        said = str(await messages(tmp_path))
        assert "2 are at work, which is the most" in said
        assert "there have been 4 already" in said

    async def test_a_budget_that_is_used_up_ends_a_child_before_the_call(self, tmp_path: Path) -> None:
        script = [says(" ".join(f"word{number}" for number in range(400))), finish()]
        scripted = ScriptedModels(main=[spawn("child", budget=1_500), wait("child"), says("I know.")], child=script)
        async with tree(tmp_path, scripted) as agent:
            await agent.run("work")
            child = agent.agents["child"].report
        assert child is not None
        assert child.status == "failed"
        assert "the token budget of child is used up" in child.reasons[0]
        assert len(scripted.models["child"].asked) == 1

    async def test_the_trees_budget_is_drawn_by_descendants(self, tmp_path: Path) -> None:
        scripted = ScriptedModels(
            main=[spawn("child"), wait("child"), says("Not said.")],
            child=[late(says(" ".join(map(str, range(6_000))))), finish()],
        )
        async with tree(tmp_path, scripted, tree_budget=6_000) as agent:
            working = asyncio.create_task(agent.run("work"))
            await scripted.clock.until_asleep()
            await until(lambda: len(scripted.models["main"].asked) == 2)  # else it would be the first to find it used
            scripted.clock.advance(5)
            report = await working
            child = agent.agents["child"].report
        assert report.status == "failed"
        assert child is not None
        assert [report.reasons[0][:32], child.reasons[0][:32]] == ["the token budget of main is used"] * 2


async def test_a_long_conversation_has_old_reports_in_a_line_each(tmp_path: Path) -> None:
    names = [f"agent{number}" for number in range(6)]
    main = ScriptedModel([together(*map(spawn, names)), *map(wait, names), says("Done.")])
    others = {name: ScriptedModel([finish(f"made it\n{'and more ' * 30}")]) for name in names}

    async with tree(tmp_path, lambda name: others.get(name, main)) as agent:
        await agent.run("work")
    reports = [each.content for each in main.asked[-1].messages if each.name == "sys_wait_agent"]
    assert [len(text.splitlines()) > 1 for text in reports] == [False] * 4 + [True] * 2
    kept = [each["content"] for each in await messages(tmp_path) if each.get("name") == "sys_wait_agent"]
    assert all("and more" in text for text in kept), "what was said stays in the session"


async def test_a_chinese_tree_is_guarded_in_chinese(tmp_path: Path) -> None:
    report = await child_of(tmp_path, [finish("完成", "none.txt")], language="zh")
    assert report.reasons == ("声称有，但不存在：none.txt",)
