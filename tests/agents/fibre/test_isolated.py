"""A child that is spawned with `isolated=true` works in a copy of the files, which is merged when it reports (S17)."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cfs_agents.main.testing import Line, ScriptedModel, calls, says
from cfs_agents.tools.plan import PLAN_CONTEXT
from tests.agents.fibre.test_rewound import rewind, versions
from tests.agents.fibre.trees import ScriptedModels, finish, late, spawn, status, tree, wait, write
from tests.server.support import ServerHarness

LINES = "one\ntwo\nthree\nfour\nfive\n"


def read(path: str) -> Line:
    return calls("read_file", path=path)


def edit(path: str, old: str, new: str) -> Line:
    return calls("edit_file", path=path, edits=[{"old": old, "new": new}])


def isolated(name: str, goal: str = "do it", **limits: Any) -> Line:
    return spawn(name, goal, isolated=True, **limits)


async def files(folder: Path) -> dict[str, str]:
    """The files below a folder, without those of agents for themselves."""

    def look() -> dict[str, str]:
        paths = (path for path in folder.rglob("*") if path.is_file() and ".cfs" not in path.parts)
        return {str(path.relative_to(folder)): path.read_text() for path in paths}

    return await asyncio.to_thread(look)


def shared(folder: Path) -> Path:
    return folder / "main/agent_workspace"


def copy_of(folder: Path, agent: str) -> Path:
    return folder / "main/sub_sessions" / agent / "agent_workspace"


def results(model: ScriptedModel, tool: str) -> list[str]:
    """What the calls of a tool have returned."""
    return [message.content for message in model.asked[-1].messages if message.role == "tool" and message.name == tool]


async def run(agent: Any, scripted: ScriptedModels, asked: int) -> Any:
    """Do a task; the late lines of children are said when the root has sent so many requests."""
    working = asyncio.create_task(agent.run("go"))
    while len(scripted.models["main"].asked) < asked:  # noqa: ASYNC110 - another task sends them
        await asyncio.sleep(0.01)
    await scripted.clock.until_asleep()
    scripted.clock.advance(10)
    return await working


async def test_both_work_apart_until_the_report_and_lines_of_both_are_merged(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[
            write("text.md", LINES),
            write("old.txt", "old"),
            isolated("coder"),
            write("text.md", LINES.replace("five", "FIVE")),
            write("mine.txt", "mine"),
            calls("list_directory", path="."),
            wait("coder"),
            read("text.md"),
            calls("list_directory", path="."),
            says("All merged."),
        ],
        coder=[
            late(calls("list_directory", path=".")),
            read("text.md"),
            write("text.md", LINES.replace("one", "ONE")),
            write("new/made.txt", "made"),
            finish("wrote both", "text.md", "new/made.txt"),
        ],
    )
    async with tree(tmp_path, scripted) as agent:
        assert (await run(agent, scripted, 7)).ok
        report = agent.agents["coder"].report
    merged = {
        "text.md": "ONE\ntwo\nthree\nfour\nFIVE\n",
        "old.txt": "old",
        "mine.txt": "mine",
        "new/made.txt": "made",
    }
    assert await files(shared(tmp_path)) == merged
    assert "mine.txt" not in await files(copy_of(tmp_path, "coder"))
    assert report is not None
    assert report.ok, report
    assert {change.path for change in report.facts} == {"text.md", "new/made.txt"}
    before, after = results(scripted.models["main"], "list_directory")
    assert ("new" in before, "new" in after) == (False, True)
    (seen,) = results(scripted.models["coder"], "list_directory")
    assert "old.txt" in seen
    assert "mine.txt" not in seen
    scripted.check_finished()


async def test_a_conflict_leaves_what_both_have_and_the_report_names_the_files(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[
            write("a.txt", "base"),
            isolated("coder"),
            write("a.txt", "of the parent"),
            wait("coder"),
            says("I will look at both."),
        ],
        coder=[late(read("a.txt")), write("a.txt", "of the child"), finish("wrote it", "a.txt")],
    )
    async with tree(tmp_path, scripted) as agent:
        assert (await run(agent, scripted, 4)).ok
    assert await files(shared(tmp_path)) == {
        "a.txt": "of the parent",
        "a.txt.conflict-main": "of the parent",
        "a.txt.conflict-coder": "of the child",
    }
    (report,) = results(scripted.models["main"], "sys_wait_agent")
    assert report.startswith("[coder success]")
    assert "conflict: a.txt was changed by both; see a.txt, a.txt.conflict-main, a.txt.conflict-coder" in report


@pytest.mark.parametrize(
    ("script", "act"),
    [
        ([write("half.txt", "half"), finish("I cannot", status="failed")], lambda _: None),
        ([write("half.txt", "half"), late(finish())], lambda agent: agent.cancel("coder")),
    ],
    ids=["failed", "cancelled"],
)
async def test_what_did_not_succeed_is_kept_and_named_and_merged_when_it_does(
    tmp_path: Path, script: list[Line], act: Callable[[Any], None]
) -> None:
    scripted = ScriptedModels(
        main=[isolated("coder"), wait("coder"), says("Not yet.")],
        coder=script,
    )
    place = copy_of(tmp_path, "coder")
    async with tree(tmp_path, scripted) as agent:
        working = asyncio.create_task(agent.run("go"))
        while not (place / "half.txt").exists():  # noqa: ASYNC110 - another task writes it
            await asyncio.sleep(0.01)
        act(agent)
        assert (await working).ok
    assert await files(shared(tmp_path)) == {}
    assert await files(place) == {"half.txt": "half"}
    (report,) = results(scripted.models["main"], "sys_wait_agent")
    assert f"its files are not merged; they are in {place}" in report
    again = ScriptedModels(
        main=[calls("sys_send_message", agent_id="coder", content="go on"), wait("coder"), says("Now.")],
        coder=[write("rest.txt", "rest"), finish("all there", "rest.txt")],
    )
    async with tree(tmp_path, again) as agent:
        assert (await agent.run("once more")).ok
    assert await files(shared(tmp_path)) == {"half.txt": "half", "rest.txt": "rest"}


async def test_a_copy_of_a_copy_is_merged_level_by_level(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[write("a.txt", "main"), isolated("lead"), wait("lead"), says("Done.")],
        lead=[write("b.txt", "lead"), isolated("leaf"), wait("leaf"), read("c.txt"), finish("both", "b.txt")],
        leaf=[read("b.txt"), write("c.txt", "leaf"), finish("mine", "c.txt")],
    )
    async with tree(tmp_path, scripted) as agent:
        assert (await agent.run("go")).ok
    assert await files(shared(tmp_path)) == {"a.txt": "main", "b.txt": "lead", "c.txt": "leaf"}
    assert set(await files(copy_of(tmp_path, "leaf"))) == {"a.txt", "b.txt", "c.txt"}
    (text,) = results(scripted.models["lead"], "read_file")
    assert "leaf" in text
    (report,) = results(scripted.models["main"], "sys_wait_agent")
    assert "created (by leaf): c.txt" in report


async def test_a_merged_file_must_be_read_before_the_parent_replaces_it(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[write("a.txt", "one"), isolated("coder"), wait("coder"), write("a.txt", "blind"), says("Read first.")],
        coder=[read("a.txt"), write("a.txt", "two"), finish("two", "a.txt")],
    )
    async with tree(tmp_path, scripted) as agent:
        await agent.run("go")
    assert (await files(shared(tmp_path)))["a.txt"] == "two"
    assert "was changed by coder" in results(scripted.models["main"], "write_file")[-1]


class SizedModel(ScriptedModel):
    """A scripted model that says how much it reads."""

    window: int | None = None

    async def context_window(self) -> int | None:
        """Return how many tokens it reads."""
        return self.window


@pytest.mark.parametrize(("window", "offered"), [(PLAN_CONTEXT, True), (PLAN_CONTEXT - 1, False), (None, False)])
async def test_only_models_with_a_large_context_see_the_parameter(
    tmp_path: Path, window: int | None, offered: bool
) -> None:
    model = SizedModel([says("ok")])
    model.window = window
    async with tree(tmp_path, lambda _: model) as agent:
        await agent.run("go")
    (schema,) = (each["function"] for each in model.asked[0].tools if each["function"]["name"] == "sys_spawn_agent")
    assert ("isolated" in schema["parameters"]["properties"]) is offered


@pytest.mark.parametrize("children", [False, True], ids=["alone", "with-children"])
async def test_a_rewind_over_the_merge_takes_it_back(tmp_path: Path, server: ServerHarness, children: bool) -> None:
    """The merge is a change by the parent, whether its child goes back with it or not."""
    scripted = ScriptedModels(
        main=[
            write("a.txt", "one"),
            says("First."),
            isolated("coder"),
            wait("coder"),
            says("Second."),
            read("a.txt"),
            says("Third."),
        ],
        coder=[read("a.txt"), write("a.txt", "two"), write("b.txt", "new"), finish("both", "a.txt", "b.txt")],
    )
    async with tree(tmp_path, scripted, server.url) as agent:
        assert (await agent.run("first")).ok
        there = (await versions(server, "main"))[-1]["number"]
        assert (await agent.run("second")).ok
        assert await files(shared(tmp_path)) == {"a.txt": "two", "b.txt": "new"}
        done = await rewind(server, "main", there, sub_sessions=children)
        assert not any("sub-sessions" in sentence for sentence in done["lasting"])
        assert [(file["path"], file["change"]) for file in done["files"]] == [
            ("/workspaces/main/a.txt", "restored"),
            ("/workspaces/main/b.txt", "removed"),
        ]
        assert (await agent.run("third")).ok
    assert await files(shared(tmp_path)) == {"a.txt": "one"}
    assert "one" in results(scripted.models["main"], "read_file")[-1]


async def test_the_copy_is_that_of_the_same_agent_after_a_restart(tmp_path: Path) -> None:
    """A spawn in one process, the work and the merge in another one."""
    scripted = ScriptedModels(
        main=[write("a.txt", "one"), isolated("coder"), wait("coder"), says("Done.")],
        coder=[write("b.txt", "two"), late(finish("never said"))],
    )
    async with tree(tmp_path, scripted) as agent:
        working = asyncio.create_task(agent.run("go"))
        while not (copy_of(tmp_path, "coder") / "b.txt").exists():  # noqa: ASYNC110 - another task writes it
            await asyncio.sleep(0.01)
        await scripted.clock.until_asleep()
        working.cancel()
        await asyncio.wait([working])
    assert await files(shared(tmp_path)) == {"a.txt": "one"}
    assert (await status(tmp_path, "coder"))["branch"] == {"merging": None, "conflicts": []}
    rest = ScriptedModels(main=[says("Done.")], coder=[read("b.txt"), finish("made it", "b.txt")])
    async with tree(tmp_path, rest) as agent:
        assert (await agent.resume()).ok
    assert await files(shared(tmp_path)) == {"a.txt": "one", "b.txt": "two"}
