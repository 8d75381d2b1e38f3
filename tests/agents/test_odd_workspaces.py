"""Workspaces that commands have made odd: agents work on, start again, and say what was not looked at."""

import asyncio
import os
import resource
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from cfs.errors import Unavailable
from cfs_agents.context import ContextFileSystem
from cfs_agents.guards.ledger import ChangeLog
from cfs_agents.main.testing import calls, says
from cfs_agents.tools import CommandMode
from tests.agents.context.support import item, result
from tests.agents.fibre.trees import ScriptedModels, finish, spawn, tree, wait
from tests.agents.file_agent.support import agent, events_of
from tests.odd_trees import BEYOND, ODD_TREES, emptied, lease, may_lease, nest

__all__ = ["emptied"]

NEST = f"import os\nfor _ in range({BEYOND}):\n os.mkdir('d'); os.chdir('d')\nopen('end.txt', 'w').close()"


@pytest.mark.parametrize("name", ODD_TREES)
def test_a_change_beside_an_odd_tree_is_in_the_ledger(tmp_path: Path, name: str) -> None:
    ledger = ChangeLog(tmp_path)
    ledger.mark("a")
    ODD_TREES[name](tmp_path)
    (tmp_path / "plain.txt").write_text("new")
    assert "plain.txt" in {change.path for change in ledger.since("a")}
    assert ledger.gap == ("limits" if name == "deep" else None)


def test_a_ledger_without_descriptors_says_so_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    ledger = ChangeLog(tmp_path)
    ledger.mark("a")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert ledger.since("a") == ()
        assert ledger.present("old.txt") is not None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ledger.gap == "unreadable"
    (tmp_path / "old.txt").write_text("new")
    assert [(change.path, change.kind) for change in ledger.since("a")] == [("old.txt", "changed")]
    assert ledger.gap is None


@pytest.mark.skipif(not may_lease(), reason="this system has no leases of files")
def test_a_leased_file_is_neither_deleted_nor_changed(tmp_path: Path) -> None:
    file = tmp_path / "leased.txt"
    file.write_text("old")
    ledger = ChangeLog(tmp_path)
    ledger.mark("a")
    with lease(file):
        os.utime(file, ns=(0, 0))  # or the ledger need not read it again
        assert ledger.since("a") == ()


async def test_a_tree_goes_on_beside_folders_that_are_too_deep(tmp_path: Path) -> None:
    """Also at its next start; and the report says that its list of changes has a gap."""
    command = calls("execute_command", command=f'python3 -c "{NEST}"; echo made > a.txt')
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), says("ok"), says("again")], a=[command, finish("made", "a.txt")]
    )
    async with tree(tmp_path, scripted, commands=CommandMode.HOST) as first:
        assert (await first.run("go")).ok
        report = first.agents["a"].report
        assert report is not None
        assert (report.status, report.gap) == ("success", "limits")
        assert "The list of changes is incomplete" in report.text()
    async with tree(tmp_path, scripted, commands=CommandMode.HOST) as second:
        assert (await second.run("go on")).ok
    scripted.check_finished()


async def test_a_file_agent_goes_on_beside_folders_that_are_too_deep(tmp_path: Path) -> None:
    command = calls("execute_command", command=f'python3 -c "{NEST}"; echo made > a.txt')
    made, _ = agent(tmp_path, command, says("done"))
    async with made:
        await events_of(made, "go")
        assert made.outcome.reason == "answered"
        assert "/workspace/a.txt" in made.outcome.files.created
        assert made.warnings == [
            "the list of changed files is incomplete: there are too many files, or folders that are too deep"
        ]
    again, _ = agent(tmp_path, says("here"))
    async with again:
        await events_of(again, "and now?")
        assert again.outcome.reason == "answered"


def link_away(path: Path) -> None:
    path.symlink_to("/etc")


def link_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("replace", [link_away, link_nowhere, Path.touch])
@pytest.mark.parametrize("folder", ["workspace", "storage", "storage/history", "storage/offloaded", "logs"])
async def test_what_replaces_a_folder_of_an_agent_is_put_aside(
    tmp_path: Path, folder: str, replace: Callable[[Path], None]
) -> None:
    async with agent(tmp_path, says("ready"))[0] as first:
        await events_of(first, "begin")
    path = tmp_path / folder
    await asyncio.to_thread(path.rename, tmp_path / "moved")
    await asyncio.to_thread(replace, path)
    made, _ = agent(tmp_path, calls("write_file", path="a.txt", content="new"), says("done"))
    async with made:
        await events_of(made, "go")
        assert made.outcome.reason == "answered"
        assert [f"it is now called {path.name}.aside-1" in warning for warning in made.warnings] == [True]
    aside = path.with_name(f"{path.name}.aside-1")
    assert path.is_dir()
    assert not path.is_symlink()
    assert aside.is_symlink() or aside.is_file()


@pytest.mark.parametrize(("levels", "removed"), [(100, True), (BEYOND, False)])
def test_a_store_with_nested_folders_is_discarded_or_says_why_not(tmp_path: Path, levels: int, removed: bool) -> None:
    with ContextFileSystem(tmp_path / "root", "main") as store:
        store.offload([item(result("a long result"))])
        nest(store.path, levels, file=False)
        with nullcontext() if removed else pytest.raises(Unavailable, match="cannot be written"):
            store.discard()
    assert store.path.exists() is not removed
