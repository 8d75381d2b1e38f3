"""Background jobs and the task of a file agent: news, the question at the end, the outcome, and a kill (A5, B8)."""

import asyncio
import subprocess
import sys
from pathlib import Path

from cfs_agents import FileSystemAgent
from cfs_agents.base.events import Warned
from cfs_agents.main.testing import Line, ScriptedModel, calls, says
from cfs_agents.tools import CommandMode
from cfs_agents.tree.file_config import FileSystemAgentConfig
from tests.agents.fibre.test_commands_left import PROGRAM, alive, until


def background(command: str) -> Line:
    """Start a job."""
    return calls("execute_command", command=command, background=True)


def agent_of(root: Path, model: ScriptedModel) -> FileSystemAgent:
    """An agent that may run commands."""
    return FileSystemAgent(project_root=root, model=model, config=FileSystemAgentConfig(commands=CommandMode.HOST))


def last(model: ScriptedModel, request: int) -> str:
    """The last message of a request."""
    return model.asked[request].messages[-1].content


async def test_a_task_that_ends_while_jobs_run_is_asked_once_then_they_are_stopped_and_named(tmp_path: Path) -> None:
    model = ScriptedModel(
        [
            background("echo $BASHPID > pid; exec sleep 600"),
            calls("execute_command", command="until test -s pid; do sleep 0.02; done"),
            *(says("done"), says("I mean it"), says("yes")),
        ]
    )
    async with agent_of(tmp_path, model) as agent:
        pid = tmp_path / "workspace/pid"
        warnings = [event.text async for event in agent.run_stream("go") if isinstance(event, Warned)]
        assert "[These jobs still run: 1 (echo $BASHPID" in last(model, 3)
        assert agent.outcome.text == "I mean it"
        (note,) = agent.outcome.jobs
        assert "job 1 (echo $BASHPID" in note
        assert note in warnings
        text = await asyncio.to_thread(pid.read_text)
        assert not await asyncio.to_thread(alive, text.strip())
        assert (await agent.run("again")).jobs == ()  # a task without jobs is not asked
    assert len(model.asked) == 5


async def test_the_end_of_a_job_reaches_the_agent_before_its_next_step(tmp_path: Path) -> None:
    model = ScriptedModel(
        [
            background("until test -e go; do sleep 0.02; done; exit 5"),
            calls("execute_command", command="echo > go; wait"),
            says("seen"),
        ]
    )
    async with agent_of(tmp_path, model) as agent:
        assert (await agent.run("go")).jobs == ()
    assert "has ended: exit status 5. Its output is in /workspace/.cfs/" in last(model, 2)
    assert model.asked[2].messages[-1].role == "user"


async def test_a_job_may_be_awaited_again_and_again(tmp_path: Path) -> None:
    looks = [calls("job", id=1, action="wait", seconds=0.01) for _ in range(12)]
    model = ScriptedModel([background("sleep 600"), *looks, calls("job", id=1, action="stop"), says("stopped")])
    async with agent_of(tmp_path, model) as agent:
        assert (await agent.run("go")).ok
    model.check_finished()


async def test_what_a_command_left_is_named_in_the_outcome(tmp_path: Path) -> None:
    command = (
        "nohup sleep 1358 >/dev/null 2>&1 &"
        " until grep -qa ^sleep /proc/$!/cmdline; do sleep 0.01; done; disown"  # until then it is nohup
    )
    model = ScriptedModel([calls("execute_command", command=command), says("done")])
    async with agent_of(tmp_path, model) as agent:
        outcome = await agent.run("go")
    (note,) = outcome.jobs
    assert "(sleep 1358) in the background" in note
    process = note.split("process ")[1].split()[0]
    await asyncio.to_thread(until, lambda: not alive(process))


async def test_jobs_of_a_killed_runtime_are_reported_as_lost(tmp_path: Path) -> None:
    pid = tmp_path / "workspace/other"
    process = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, str(PROGRAM), "job", str(tmp_path)], stdout=subprocess.DEVNULL
    )
    try:
        await asyncio.to_thread(until, lambda: pid.exists() and pid.read_text().endswith("\n"))
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
    job = await asyncio.to_thread((tmp_path / "workspace/job").read_text)
    await asyncio.to_thread(until, lambda: not alive(job.strip()))
    model = ScriptedModel([says("I see")])
    async with agent_of(tmp_path, model) as agent:
        assert agent.unfinished
        await agent.resume()
    assert "[These jobs are lost, as the program that ran them has ended: 1 (echo" in last(model, 0)
