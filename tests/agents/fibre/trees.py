"""Trees whose models play scripts: what tests of Fibre as a whole begin with."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from cfs.transports.async_http import AsyncClient
from cfs_agents.loop.retries import Retries
from cfs_agents.main.testing import Line, ManualClock, ScriptedModel, calls
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.output import MessageChunk
from tests.server.support import ServerHarness

Script = Sequence[Line]


def spawn(name: str, goal: str = "do it", **limits: Any) -> Line:
    """Start a child."""
    return calls(
        "sys_spawn_agent",
        agent_name=name,
        role_description=f"{name} does it",
        system_instruction=f"You are {name}.",
        task_goal=goal,
        **limits,
    )


def wait(name: str) -> Line:
    """Wait for a child."""
    return calls("sys_wait_agent", agent_id=name)


def write(path: str, content: str = "x") -> Line:
    """Write a file."""
    return calls("write_file", path=path, content=content)


def finish(summary: str = "done", *files: str, status: str = "success") -> Line:
    """Report."""
    return calls("sys_finish_task", status=status, summary=summary, details={"created_files": list(files)})


def writer(name: str) -> Script:
    """A child that makes `NAME.txt`."""
    return [write(f"{name}.txt", name), finish(f"made {name}.txt", f"{name}.txt")]


class ScriptedModels:
    """The models of a tree by the names of their agents; each plays its script, by one clock."""

    def __init__(self, **scripts: Script) -> None:
        self.clock = ManualClock()
        self.models = {name: ScriptedModel(script, clock=self.clock) for name, script in scripts.items()}

    def __call__(self, name: str) -> Any:
        return self.models[name]

    def check_finished(self) -> None:
        """Every line was said."""
        for model in self.models.values():
            model.check_finished()


@asynccontextmanager
async def tree(
    folder: Path,
    scripted: Any,
    url: str | None = None,
    retries: Retries | None = None,
    session: str = "main",
    workspace: Path | None = None,
    **config: Any,
) -> AsyncIterator[FibreAgent]:
    """An agent `main`, or of another session, below a folder, whose sessions are on a server if there is one."""
    settings = FibreConfig(**({"tick_seconds": 0.02} | config))
    if url is None:
        async with FibreAgent(folder, scripted, settings, session=session, workspace=workspace) as agent:
            yield agent
        return
    async with (
        AsyncClient(url) as client,
        FibreAgent(
            folder, scripted, settings, session=session, workspace=workspace, client=client, retries=retries
        ) as agent,
    ):
        yield agent


async def all_chunks(agent: FibreAgent, task: str | None) -> list[MessageChunk]:
    """All that a task brings."""
    async with aclosing(agent.run_stream(task)) as chunks:
        return [chunk async for chunk in chunks]


def of(chunks: Sequence[MessageChunk], session: str) -> list[MessageChunk]:
    """Those of one session."""
    return [chunk for chunk in chunks if chunk.session_id == session]


async def messages(folder: Path, agent: str | None = None) -> list[dict[str, Any]]:
    """What is in a `messages.json`, of the root or of a child."""
    return json.loads(await read(folder, "messages.json", agent))  # type: ignore[no-any-return]


async def status(folder: Path, agent: str | None = None) -> dict[str, Any]:
    """What is in a `session_status.json`."""
    return json.loads(await read(folder, "session_status.json", agent))  # type: ignore[no-any-return]


async def read(folder: Path, name: str, agent: str | None) -> str:
    """Read a file of an agent's folder."""
    place = folder / "main" / "sub_sessions" / agent if agent else folder / "main"
    return await asyncio.to_thread((place / name).read_text, encoding="utf-8")


def roles(said: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who said what, in order."""
    return [each["role"] for each in said]


def late(line: Line, seconds: float = 5.0) -> Line:
    """Say a line only when the clock has gone so far."""
    return replace(line, delay=seconds)


async def settled(server: ServerHarness, session: str = "main") -> dict[str, Any]:
    """The session with its history, when it and all below it are idle."""
    answer = await server.client.get(f"/v1/sessions/{session}", params={"wait": 30})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["state"] == "idle"
    return found


def said(history: Sequence[Mapping[str, Any]], role: str = "assistant") -> list[str]:
    """The texts of a role, without those of calls."""
    return [each["content"] for each in history if each["role"] == role and not each.get("tool_calls")]


@asynccontextmanager
async def answering(agent: FibreAgent) -> AsyncIterator[None]:
    """Let the agent answer its session, as `cfs agent serve` does."""

    async def serve() -> None:
        async with aclosing(agent.serve()) as chunks:
            async for _ in chunks:
                pass

    await agent.attach()
    task = asyncio.create_task(serve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
