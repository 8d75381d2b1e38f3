"""Agents of several runtimes, each with a folder and a server of its own, whose servers share a bucket."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cfs.transports.async_http import AsyncClient
from cfs_agents.main.testing import calls, says
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from tests.agents.fibre.test_published import sides_at
from tests.agents.fibre.trees import ScriptedModels, all_chunks, late, write
from tests.agents.file_agent.test_published import told
from tests.buckets import NAME, bucket_server
from tests.server.support import Process, serving

SCRIPTED = ("--engine", "scripted", "--store", "memory", "--workspaces", f"s3://{NAME}/agents")
PLAN = "/v1/files/workspaces/main/plan.md"


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Process, Process]]:
    with bucket_server(), serving(*SCRIPTED) as one, serving(*SCRIPTED) as other:
        yield one, other


def test_a_runtime_sees_the_files_of_the_other(tmp_path: Path, two: tuple[Process, Process]) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    told(here, two[0], calls("write_file", path="deep/a.txt", content="of a"), says("done"))
    edit = calls("write_file", path="deep/a.txt", content="of both")
    assert "of a" in told(there, two[1], calls("read_file", path="deep/a.txt"), says("done"))
    told(there, two[1], calls("read_file", path="deep/a.txt"), edit, says("done"))
    assert "of both" in told(here, two[0], calls("read_file", path="deep/a.txt"), says("done"))
    for root in (here, there):
        assert (root / "workspace/deep/a.txt").read_text() == "of both"


async def test_a_runtime_may_go_on_with_another_server(tmp_path: Path, two: tuple[Process, Process]) -> None:
    """The files are the same there, so what was deleted meanwhile stays deleted."""
    async with sides_at(two[0].url, tmp_path) as sides:
        await sides.write("moved/a.txt", "a")
        await sides.write("moved/b.txt", "b")
        await sides.both()
    async with httpx.AsyncClient() as web:
        assert (await web.delete(f"{two[1].url}/v1/files/workspaces/main/moved/a.txt")).status_code == 204
    async with sides_at(two[1].url, tmp_path) as sides:
        here, there = await sides.both()
    assert here == there
    assert [path for path in there if path.startswith("moved/")] == ["moved/b.txt"]


async def test_a_write_over_what_the_other_runtime_has_changed_is_refused(
    tmp_path: Path, two: tuple[Process, Process]
) -> None:
    """The agent reads it and writes again, and nothing is lost."""
    scripted = ScriptedModels(
        main=[
            write("plan.md", "first"),
            late(write("plan.md", "not seen")),
            calls("read_file", path="plan.md"),
            write("plan.md", "first, theirs"),
            says("done"),
        ]
    )
    async with (
        AsyncClient(two[0].url) as client,
        FibreAgent(tmp_path / "here", scripted, FibreConfig(tick_seconds=0.02), client=client) as agent,
    ):
        running = asyncio.create_task(all_chunks(agent, "go"))
        await scripted.clock.until_asleep()
        async with AsyncClient(two[1].url) as other:
            theirs = ScriptedModels(main=[calls("read_file", path="plan.md"), write("plan.md", "theirs"), says("done")])
            async with FibreAgent(tmp_path / "there", theirs, client=other) as second:
                assert (await second.run("go")).ok
        scripted.clock.advance(5)
        chunks = await running
    results = [chunk.content for chunk in chunks if chunk.kind == "result"]
    assert "plan.md was changed by somebody outside since you last read it" in results[1]
    assert "theirs" in results[2]
    async with httpx.AsyncClient() as web:
        assert [(await web.get(server.url + PLAN)).text for server in two] == ["first, theirs"] * 2
