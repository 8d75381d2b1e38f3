"""Commands in the background are jobs: they are read, awaited, stopped, and named when they are left (A5, B8)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from cfs.wire import AgentJob, ToolCall
from cfs_agents.shell.census import members
from cfs_agents.tools import AsyncPersistentShell, CommandTools, FileTools, Registry, agent_grants, agent_shell
from cfs_agents.tools.jobs import MAX_OUTPUT
from cfs_filesystem import DiskFileSystem
from tests.agents.tools.test_sandbox import needs_bubblewrap

KINDS = ["host", pytest.param("bwrap", marks=needs_bubblewrap)]

LEFT = {
    "sleep 600 &": "sleep 600",
    "setsid -f sleep 600": "sleep 600",
    "setsid sleep 600 &": "sleep 600",
    "nohup sleep 600 >/dev/null 2>&1 & disown": "sleep 600",
    "(yes >&2 &)": "yes",
    "PATH=/usr/local/bin:/usr/bin:/bin python3 -m http.server 0 >/dev/null 2>&1 &": "-m http.server 0",
    "(while :; do :; done) &": "bash",
}
"""Commands that leave a process in the background, and its command line."""


class JobWorker:
    """The command tools of an agent, called as a model calls them."""

    def __init__(self, root: Path, kind: str) -> None:
        self.files = DiskFileSystem(root)
        handle = self.files.create_handle(agent_grants())
        self.shell = AsyncPersistentShell(agent_shell(root, grace=3.0, sandbox=kind == "bwrap"))
        self.commands = CommandTools(self.shell, root, handle, jobs_file=root / "jobs.json")
        self.jobs = self.commands.jobs
        self.registry = Registry([*self.commands.tools(), *FileTools(handle).tools()])

    async def call(self, name: str, /, **arguments: object) -> str:
        """Call a tool and return its text, without times."""
        result = await self.registry.call(ToolCall(id="1", name=name, arguments=arguments))
        return re.sub(r"\d+ s\b", "T s", result.text)

    async def run(self, command: str, *, background: bool = False) -> str:
        """Run a command."""
        return await self.call("execute_command", command=command, background=background)

    async def job(self, number: int, action: str, **more: object) -> str:
        """Call the tool `job`."""
        return await self.call("job", id=number, action=action, **more)

    def processes(self) -> set[int]:
        """The living processes of the shell, however they left it."""
        return members(set(), self.shell._core._cookie)


@asynccontextmanager
async def working(root: Path, kind: str) -> AsyncIterator[JobWorker]:
    """Make an agent's tools; nothing may block the loop."""
    worker = JobWorker(root, kind)
    with blockbuster_ctx():
        try:
            yield worker
        finally:
            await worker.jobs.close()
        assert not await asyncio.to_thread(worker.processes)
    worker.files.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "agent/workspace").mkdir(parents=True)
    return tmp_path / "agent"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_is_read_and_awaited_while_other_commands_run(root: Path, kind: str) -> None:
    async with working(root, kind) as worker:
        command = "echo one; until test -e go; do sleep 0.02; done; echo two; exit 3"
        assert "[job 1: process " in await worker.run(command, background=True)
        while "one" not in (text := await worker.job(1, "read")):
            pass
        assert text == f"[job 1 ({command}): it has run for T s]\none\n"
        assert await worker.job(1, "read") == f"[job 1 ({command}): it has run for T s]\n"
        assert "it has run for" in await worker.job(1, "wait", seconds=0.01)
        assert await worker.run("echo > go; echo next") == "next\n"
        ended = await worker.job(1, "wait")
        assert ended == f"[job 1 ({command}): exit status 3]\ntwo\n[ended with exit status 3]\n"
        assert await worker.jobs.news() == []  # the agent knows it
        assert worker.jobs.running == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "command", ["sleep 600", "trap '' TERM; while :; do sleep 1; done", "setsid -f sleep 600; cat /dev/zero"]
)
async def test_a_job_is_stopped_with_all_that_it_started(root: Path, kind: str, command: str) -> None:
    async with working(root, kind) as worker:
        await worker.run(command, background=True)
        await worker.run(command, background=True)
        assert "(" + command + "): stopped]" in await worker.job(1, "stop")
        assert [job.id for job in worker.jobs.running] == [2]
        await worker.job(2, "stop")
        assert await worker.shell.left_processes() == {}
        assert await worker.run("echo next") == "next\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", LEFT)
async def test_what_a_command_leaves_hinders_nothing_and_is_named(root: Path, kind: str, command: str) -> None:
    """The next command works, and nothing is left when the agent ends (`working`)."""
    async with working(root, kind) as worker:
        await worker.run(command)
        assert await worker.run("echo next") == "next\n"
        left = await worker.shell.left_processes()
        while [LEFT[command] in line for line in left.values()] != [True]:  # a fork has the shell's name at first
            left = await worker.shell.left_processes()
        notes = await worker.jobs.end()
        assert [LEFT[command] in note for note in notes] == [True]


async def test_the_end_of_a_job_is_news_once(root: Path) -> None:
    async with working(root, "host") as worker:
        await worker.run("exit 4", background=True)
        await worker.run("kill -9 $BASHPID", background=True)
        await worker.run("wait")
        first, second = await worker.jobs.news()
        assert re.fullmatch(
            r"\[Job 1 \(exit 4\) has ended: exit status 4. Its output is in /workspace/\.cfs/\S+\.]", first
        )
        assert "[Job 2 (kill -9 $BASHPID) has ended: exit status 137." in second
        await worker.jobs.delivered()
        assert await worker.jobs.news() == []
        await worker.run("sleep 600", background=True)
        pid = int(next(iter(worker.jobs.running)).job.pid)
        await worker.run(f"kill -9 -- -{pid}; wait")
        assert "has ended: it was killed." in (await worker.jobs.news())[0]


async def test_jobs_are_stopped_and_named_at_the_end_of_a_task(root: Path) -> None:
    async with working(root, "host") as worker:
        await worker.run("sleep 600", background=True)
        assert "1 (sleep 600)" in (worker.jobs.question() or "")
        assert worker.jobs.question() is None
        assert await worker.jobs.listed() == (AgentJob(id=1, command="sleep 600"),)
        assert await worker.jobs.end() == ("job 1 (sleep 600) was stopped, as the task has ended",)
        assert await worker.jobs.end() == ()
        worker.jobs.begin()
        assert worker.jobs.question() is None


async def test_jobs_of_a_killed_program_are_reported_as_lost(root: Path) -> None:
    async with working(root, "host") as worker:
        await worker.run("sleep 600", background=True)
        await worker.run("true", background=True)
        await worker.job(2, "wait")
    async with working(root, "host") as worker:
        (lost,) = await worker.jobs.news()
        assert "1 (sleep 600), output in /workspace/.cfs/" in lost
        assert "true" not in lost
        assert await worker.jobs.listed() == (AgentJob(id=1, command="sleep 600", state="lost"),)
        await worker.jobs.delivered()
        assert await worker.jobs.news() == []
        assert "[job 3: process" in await worker.run("true", background=True)  # no id is used twice
        await worker.job(3, "wait")
    assert json.loads((root / "jobs.json").read_bytes()) == {"last_id": 3, "jobs": []}


async def test_long_output_is_cut_and_names_its_file(root: Path) -> None:
    async with working(root, "host") as worker:
        await worker.run("seq 100000", background=True)
        text = await worker.job(1, "wait")
        assert re.search(r"\n\[\.\.\. [\d,]+ bytes left out; they are in /workspace/\.cfs/\S+ \.\.\.]\n", text)
        assert text.endswith("99999\n100000\n[ended with exit status 0]\n")
        assert len(text) < MAX_OUTPUT + 300


async def test_a_wrong_call_says_what_there_is(root: Path) -> None:
    async with working(root, "host") as worker:
        assert await worker.job(7, "read") == "Error: there is no job 7 (there are: none)"
        assert "'action' " in await worker.job(7, "look")
        assert "'seconds' " in await worker.job(7, "wait", seconds=0)


async def test_a_log_that_a_command_replaced_is_not_followed(root: Path) -> None:
    secret = root / "secret"
    secret.write_text("secret")
    async with working(root, "host") as worker:
        text = await worker.run("sleep 600", background=True)
        log = text.split()[9].removesuffix(";").removeprefix("/workspace/")
        await worker.run(f"rm {log}; ln -s ../../secret {log}")
        assert "secret" not in await worker.job(1, "read")


async def test_small_models_do_not_get_the_tool(root: Path) -> None:
    async with working(root, "host") as worker:
        names = {
            brief: [each["function"]["name"] for each in worker.registry.schemas(brief=brief)]
            for brief in (True, False)
        }
        assert "job" not in names[True]
        assert "job" in names[False]
