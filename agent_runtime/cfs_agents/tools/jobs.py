"""The background jobs of one agent, and the tool `job` (A5).

The output of a job is a file of the workspace. A job ends at the latest with its agent. The list of jobs is on disk, so
after a kill of the runtime the agent learns which jobs are lost.
"""

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from cfs.wire import MAX_JOBS, AgentJob
from cfs_agents.base.disk import replace_file
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.base.threads import in_thread
from cfs_agents.shell.jobs import JobProcess
from cfs_agents.shell.results import Job
from cfs_agents.shell.shell import AsyncPersistentShell
from cfs_agents.tools.definition import Tool, tool
from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.results import CutText

JOB = "job"
"""Name of the tool."""

LONGEST_WAIT = 3600.0
USUAL_WAIT = 60.0
MAX_OUTPUT = 16 << 10
"""Bytes of new output that one call returns."""

_LONGEST_COMMAND = 80
_ENDED = re.compile(rb"\[ended with (exit status \d+)\]\n\Z")
_STORED = re.compile(r"([1-9]\d{0,14}) \((.*)\), output in .*", re.DOTALL)
_DESCRIPTION = "Read a job's new output, await it, or stop it"


@dataclass(slots=True, kw_only=True)
class BackgroundJob:
    """A job of an agent. `name` has its id and its command, and `path` is the logical path of its output.

    `offset` is the number of bytes of output that the agent has read. `reported` says whether the agent knows its end.
    """

    id: int
    name: str
    path: str
    job: Job
    process: JobProcess
    started: float
    offset: int = 0
    stopped: bool = False
    reported: bool = False


class Jobs:
    """The background jobs of one agent, which its shell runs.

    `file` holds the list of running jobs; without it jobs are not reported as lost after a kill.
    """

    def __init__(self, shell: AsyncPersistentShell, file: Path | None = None, language: Language = "en") -> None:
        self._shell = shell
        self._file = file
        self._say = catalogue(language)
        self._jobs: dict[int, BackgroundJob] = {}
        self._last_id = 0
        self._lost: list[str] | None = None
        """Jobs of an earlier process that the agent does not know as lost; None until the file was read."""
        self._asked = False
        self._earlier: list[AgentJob] = []
        """Lost jobs of an earlier process, for those who list jobs."""

    def tool(self) -> Tool:
        """Return the tool. Models with a small context do not get it."""
        return tool(_DESCRIPTION, name=JOB, timeout=LONGEST_WAIT + 60, in_brief=False)(self.job)

    @property
    def running(self) -> list[BackgroundJob]:
        """The jobs that have not ended."""
        return [job for job in self._jobs.values() if job.process.running]

    async def listed(self) -> tuple[AgentJob, ...]:
        """Return all jobs of the present task, and those of an earlier process, which are lost."""
        await self._load()
        jobs = [
            AgentJob(
                id=job.id,
                command=job.name.partition("(")[2].removesuffix(")"),
                state="running" if job.process.running else await self._status(job),
            )
            for job in self._jobs.values()
        ]
        return tuple([*self._earlier, *jobs][-MAX_JOBS:])

    async def start(self, command: str, directory: Path | None, path_of: Callable[[Path], str]) -> BackgroundJob:
        """Start a command as a job."""
        await self._load()
        job = await self._shell.background(command, directory=directory)
        process = await self._shell.watch(job)
        self._last_id += 1
        line = " ".join(command.split())
        short = line if len(line) <= _LONGEST_COMMAND else f"{line[:_LONGEST_COMMAND]}..."
        entry = self._jobs[self._last_id] = BackgroundJob(
            id=self._last_id,
            name=f"{self._last_id} ({short})",
            path=path_of(job.log),
            job=job,
            process=process,
            started=time.monotonic(),
        )
        await self._save()
        return entry

    async def job(
        self,
        id: int,  # noqa: A002 - the name that the model reads
        action: Literal["read", "wait", "stop"],
        seconds: Annotated[float, Field(gt=0, le=LONGEST_WAIT), WithJsonSchema({"type": "number"})] = USUAL_WAIT,
    ) -> str:
        """Act on a job; returns its state and its new output."""
        entry = self._jobs.get(id)
        if entry is None:
            raise ToolError(f"there is no job {id} (there are: {', '.join(map(str, self._jobs)) or 'none'})")
        if action == "wait":
            await self._shell.wait_for(entry.process, seconds)
        elif action == "stop" and entry.process.running:
            entry.stopped = True
            await self._shell.end(entry.process)
        return await self._news_of(entry)

    async def news(self) -> list[str]:
        """Return what the agent does not know yet: jobs that have ended, and jobs that are lost."""
        await self._load()
        texts = [self._say.jobs_lost.format("; ".join(self._lost))] if self._lost else []
        ended = [job for job in self._jobs.values() if not job.reported and not job.process.running]
        for job in ended:
            job.reported = True
            texts.append(self._say.job_ended.format(job.name, await self._status(job), job.path))
        return texts

    async def delivered(self) -> None:
        """Store that the agent has got its news."""
        self._lost = []
        await self._save()

    def begin(self) -> None:
        """A task begins."""
        self._asked = False

    def question(self) -> str | None:
        """Return the question whether a task may end while jobs run; None if none runs, or if it was asked before."""
        if self._asked or not (running := self.running):
            return None
        self._asked = True
        return self._say.jobs_at_work.format(", ".join(job.name for job in running))

    async def end(self) -> tuple[str, ...]:
        """Stop all jobs, as a task has ended; return a note on each, and on each process that a command has left."""
        running = self.running
        for job in running:
            job.stopped = job.reported = True
            await self._shell.end(job.process)
        notes = [self._say.job_stopped.format(job.name) for job in running]
        left = await self._shell.left_processes()
        notes += [self._say.process_left.format(f"{pid} ({line[:_LONGEST_COMMAND]})") for pid, line in left.items()]
        if running:
            await self._save()
        return tuple(notes)

    async def close(self) -> None:
        """End all processes of the shell, and stop watching. Jobs of an unfinished task are reported as lost later."""
        await self._shell.close()
        for job in self._jobs.values():
            job.process.close()

    async def _news_of(self, entry: BackgroundJob) -> str:
        """Return the state of a job and its output since the last call."""
        over = not entry.process.running
        state = await self._status(entry) if over else f"it has run for {time.monotonic() - entry.started:.0f} s"
        if over and not entry.reported:
            entry.reported = True
            await self._save()
        data, size = await self._shell.log_since(entry.job, entry.offset, MAX_OUTPUT)
        left_out, entry.offset = size - entry.offset - len(data), size
        note = f"[... {left_out:,} bytes left out; they are in {entry.path} ...]\n" if left_out > 0 else ""
        text = f"[job {entry.name}: {state}]\n{note}{data.decode('utf-8', 'replace')}"
        return CutText(text) if note else text

    async def _status(self, entry: BackgroundJob) -> str:
        """Return how a job has ended; its shell writes the exit status, unless it was killed."""
        if entry.stopped:
            return "stopped"
        data, _ = await self._shell.log_since(entry.job, 0, 100)
        match = _ENDED.search(data)
        return match[1].decode() if match else "it was killed"

    async def _load(self) -> None:
        """Read the jobs of an earlier process once."""
        if self._lost is None:
            self._last_id, self._lost = await in_thread(self._read)
            matches = filter(None, map(_STORED.fullmatch, self._lost or ()))
            self._earlier = [AgentJob(id=int(match[1]), command=match[2][:500], state="lost") for match in matches]

    def _read(self) -> tuple[int, list[str]]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            if self._file is not None:
                stored = json.loads(self._file.read_bytes())
                return int(stored["last_id"]), [str(name) for name in stored["jobs"]]
        return 0, []

    async def _save(self) -> None:
        """Write the list of jobs whose end the agent does not know. A disk error does not end a job."""
        if self._file is None:
            return
        file, names = (
            self._file,
            [f"{job.name}, output in {job.path}" for job in self._jobs.values() if not job.reported],
        )
        text = json.dumps({"last_id": self._last_id, "jobs": [*(self._lost or []), *names]}, ensure_ascii=False)

        def write() -> None:
            with suppress(OSError):
                replace_file(file, text.encode("utf-8", "replace"))

        await in_thread(write)
