"""Commands of agents end with their agents, and with a runtime that is killed (B8)."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cfs_agents.main.testing import calls, says
from cfs_agents.tools import CommandMode
from tests.agents.fibre.trees import ScriptedModels, finish, messages, spawn, tree, wait

PROGRAM = Path(__file__).with_name("commanding_agent.py")


def alive(pid: str) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def until(condition: Callable[[], object]) -> None:
    """Wait until something has become true; the test's time-out is the limit."""
    while not condition():
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["tree", "file-agent"])
def test_a_killed_runtime_leaves_no_command_at_work_and_no_directory(tmp_path: Path, kind: str) -> None:
    temporary, root = tmp_path / "temporary", tmp_path / "root"
    temporary.mkdir()
    workspace = root / ("main/agent_workspace" if kind == "tree" else "workspace")
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), kind, str(root)],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    try:
        until(lambda: (workspace / "other").exists() and (workspace / "other").read_text().endswith("\n"))
        pids = [(workspace / name).read_text().strip() for name in ("own", "other")]
        assert all(map(alive, pids))
        assert list(temporary.iterdir())
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(map(alive, pids)))
    until(lambda: not list(temporary.iterdir()))


async def test_names_that_are_no_text_survive_a_kill(tmp_path: Path) -> None:
    """Such files once killed the runtime at each start, as no report with their names could be written down."""
    root, made = tmp_path / "root", tmp_path / "root/main/agent_workspace/other"
    command = [sys.executable, str(PROGRAM), "odd-names", str(root)]
    process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.DEVNULL)
    try:
        await asyncio.to_thread(until, made.exists)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
    names = [r"\xff", r"a\x0ab", r"\xe2\x80\xaetxt", r"d\xfe/back\x5cslash*"]
    scripted = ScriptedModels(main=[wait("a"), says("ok")], a=[finish("made them", *names)])
    async with tree(root, scripted, commands=CommandMode.HOST) as agent:
        assert (await agent.resume()).ok
        report = agent.agents["a"].report
        assert report is not None
        assert report.status == "success", report
        assert {change.path for change in report.facts} >= set(names)
    scripted.check_finished()
    for file in ("ledger.jsonl", "messages.json", "session_status.json", "sub_sessions/a/session_status.json"):
        text = (root / "main" / file).read_bytes().decode()  # valid UTF-8, and no surrogate stands in an escape
        assert "\\ud" not in text


async def test_commands_run_in_the_shared_workspace_and_end_with_their_agent(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), says("ok")],
        a=[calls("execute_command", command="sleep 1357 & echo $! > pid; echo made > a.txt"), finish("made", "a.txt")],
    )
    async with tree(tmp_path, scripted, commands=CommandMode.HOST) as agent:
        assert (await agent.run("go")).ok
        report = agent.agents["a"].report
        assert report is not None
        assert report.status == "success", report
        assert {change.path for change in report.facts} == {"a.txt", "pid"}
    pid = await asyncio.to_thread((tmp_path / "main/agent_workspace/pid").read_text)
    assert not await asyncio.to_thread(alive, pid.strip())
    assert (await messages(tmp_path, "a"))[2]["name"] == "execute_command"


async def test_a_child_is_asked_before_its_report_ends_its_jobs(tmp_path: Path) -> None:
    start = calls("execute_command", command="echo $BASHPID > pid; exec sleep 1357", background=True)
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("ok")], a=[start, finish("made"), finish("made")])
    async with tree(tmp_path, scripted, commands=CommandMode.HOST) as agent:
        assert (await agent.run("go")).ok
        report = agent.agents["a"].report
        assert report is not None
        assert report.status == "success"
        assert "job 1 (echo $BASHPID" in report.reasons[0]
        assert report.reasons[0] in report.text()
    refused = (await messages(tmp_path, "a"))[4]
    assert refused["content"].startswith("Error: [These jobs still run: 1 (echo")
    pid = await asyncio.to_thread((tmp_path / "main/agent_workspace/pid").read_text)
    assert not await asyncio.to_thread(alive, pid.strip())
    scripted.check_finished()


async def test_a_root_is_asked_before_its_answer_ends_its_jobs(tmp_path: Path) -> None:
    start = calls("execute_command", command="sleep 1357", background=True)
    scripted = ScriptedModels(main=[start, says("ok"), says("yes")])
    async with tree(tmp_path, scripted, commands=CommandMode.HOST) as agent:
        report = await agent.run("go")
        assert (report.summary, report.ok) == ("yes", True)
        assert report.reasons == ("job 1 (sleep 1357) was stopped, as the task has ended",)
    scripted.check_finished()
