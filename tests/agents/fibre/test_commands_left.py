"""Commands of agents end with their agents, and with a runtime that is killed (B8)."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cfs_agents.testing import calls, says
from tests.agents.fibre.trees import Cast, finish, messages, spawn, tree, wait

PROGRAM = Path(__file__).with_name("commanding_tree.py")


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


def test_a_killed_runtime_leaves_no_command_at_work(tmp_path: Path) -> None:
    workspace = tmp_path / "main/agent_workspace"
    process = subprocess.Popen([sys.executable, str(PROGRAM), str(tmp_path)], stdout=subprocess.DEVNULL)
    try:
        until(lambda: (workspace / "other").exists() and (workspace / "other").read_text().endswith("\n"))
        pids = [(workspace / name).read_text().strip() for name in ("own", "other")]
        assert all(map(alive, pids))
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(map(alive, pids)))


async def test_commands_run_in_the_shared_workspace_and_end_with_their_agent(tmp_path: Path) -> None:
    cast = Cast(
        main=[spawn("a"), wait("a"), says("ok")],
        a=[calls("execute_command", command="sleep 1357 & echo $! > pid; echo made > a.txt"), finish("made", "a.txt")],
    )
    async with tree(tmp_path, cast, commands=True) as agent:
        assert (await agent.run("go")).ok
        report = agent.agents["a"].report
        assert report is not None
        assert report.status == "success", report
        assert {change.path for change in report.facts} == {"a.txt", "pid"}
    pid = await asyncio.to_thread((tmp_path / "main/agent_workspace/pid").read_text)
    assert not await asyncio.to_thread(alive, pid.strip())
    assert (await messages(tmp_path, "a"))[2]["name"] == "execute_command"
