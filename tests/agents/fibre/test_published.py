"""The workspace of a tree on its server, while agents work: REST, WebDAV and agents see the same files."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cfs import api
from cfs.errors import NotGranted, PreconditionFailed
from cfs.transports.async_http import AsyncClient
from cfs_agents.main.testing import calls, says
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.published import PublishedWorkspace
from cfs_filesystem import OPERATIONS, DiskFileSystem, Grant
from ports import free_port
from tests.access.support import make
from tests.agents.fibre.trees import ScriptedModels, all_chunks, finish, late, spawn, tree, wait, write
from tests.server.support import Process, ServerHarness, running_server, serving


async def test_files_of_a_running_tree_are_listed_and_read_and_written(tmp_path: Path, server: ServerHarness) -> None:
    """An SDK program lists and reads them, a WebDAV client too, and what it writes the agents read."""
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), calls("read_file", path="notes/plan.md"), says("done")],
        a=[write("notes/plan.md", "first"), late(calls("read_file", path="notes/plan.md")), finish()],
    )
    path = "/workspaces/main/notes/plan.md"
    async with AsyncClient(server.url) as client, tree(tmp_path, scripted, server.url) as agent:
        running = asyncio.create_task(all_chunks(agent, "go"))
        await scripted.clock.until_asleep()  # the child thinks about what to do next
        (listed,) = (await client.call(api.files("/workspaces/main/"))).files
        content = await client.call(api.read_file(path))
        assert (listed.path, content.content) == (path, b"first")
        assert (await server.client.get(f"/dav{path}")).text == "first"
        shown = await server.client.request("PROPFIND", "/dav/workspaces/main/notes", headers={"Depth": "1"})
        assert "plan.md" in shown.text
        await client.call(api.write_file(path, b"second", etag=f'"{listed.version}"'))
        with pytest.raises(PreconditionFailed):
            await client.call(api.write_file(path, b"stale", etag=content.etag))
        scripted.clock.advance(5)
        chunks = await running
    read = [chunk.content for chunk in chunks if (chunk.kind, chunk.name) == ("result", "read_file")]
    assert len(read) == 2
    assert all("second" in text for text in read)
    assert await asyncio.to_thread((tmp_path / "main/agent_workspace/notes/plan.md").read_text) == "second"


async def test_what_is_there_before_the_task_is_there_for_the_agents(tmp_path: Path, server: ServerHarness) -> None:
    """A file that a person puts into the workspace is no work of an agent, and found by the first step."""
    await server.client.put("/v1/files/workspaces/main/input.csv", content=b"a,b")
    scripted = ScriptedModels(main=[calls("read_file", path="input.csv"), says("a,b")])
    async with tree(tmp_path, scripted, server.url) as agent:
        report = await agent.run("What is in it?")
    assert report.facts == ()
    assert "a,b" in scripted.models["main"].asked[1].messages[-1].content


async def test_a_tree_may_keep_its_files_for_itself(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(main=[write("a.txt"), says("done")])
    async with tree(tmp_path, scripted, server.url, publish=False) as agent:
        await agent.run("go")
    assert (await server.client.get("/v1/files?prefix=/workspaces/")).json()["files"] == []


async def test_rights_are_those_on_the_workspace(tmp_path: Path) -> None:
    """A token without them sees no files, and an agent with such a token works without the copy on the server."""
    tokens = tmp_path / "tokens.toml"
    secrets = {
        "agent": make(tokens, "agent", "/sessions/main", "/workspaces/main"),
        "bare": make(tokens, "bare", "/sessions/other"),
    }
    scripted = ScriptedModels(main=[write("a.txt", "hello"), says("done")], other=[write("a.txt"), says("done")])
    async with running_server(tokens=tokens) as server:
        for name, session in (("agent", "main"), ("bare", "other")):
            async with (
                AsyncClient(server.url, secrets[name]) as client,
                FibreAgent(tmp_path / name, scripted, session=session, client=client) as agent,
            ):
                assert (await agent.run("go")).ok
        async with AsyncClient(server.url, secrets["agent"]) as client:
            assert (await client.call(api.read_file("/workspaces/main/a.txt"))).content == b"hello"
        async with AsyncClient(server.url, secrets["bare"]) as client:
            with pytest.raises(NotGranted):
                await client.call(api.read_file("/workspaces/main/a.txt"))
            with pytest.raises(NotGranted):
                await client.call(api.files("/workspaces/main/"))


# -- both sides, one change each --------------------------------------------------------------------------------------


class Sides:
    """A workspace here, its copy on a server, and what keeps them equal."""

    def __init__(self, client: AsyncClient, folder: Path) -> None:
        self.client = client
        self.disk = DiskFileSystem(folder / "files", prefix="/workspace/")
        self.here = self.disk.create_handle([Grant(prefix="/workspace", ops=OPERATIONS)])
        self.memory = folder / "published/files.json"
        self.again()

    def again(self) -> None:
        """Begin anew, as another process does."""
        self.published = PublishedWorkspace(self.client, "main", self.here, "/workspace/", self.memory)

    async def write(self, path: str, text: str) -> None:
        """Write a file here."""
        await asyncio.to_thread(self.here.write, f"/workspace/{path}", text)

    async def delete(self, path: str) -> None:
        """Delete a file here."""
        await asyncio.to_thread(self.here.delete, f"/workspace/{path}")

    async def put(self, path: str, text: str) -> None:
        """Write a file on the server."""
        await self.client.call(api.write_file(f"/workspaces/main/{path}", text.encode()))

    async def both(self) -> tuple[dict[str, str], dict[str, str]]:
        """Make both equal; return the files of each, with their texts."""
        await self.published.both()
        there = {}
        for info in (await self.client.call(api.files("/workspaces/main/"))).files:
            content = await self.client.call(api.read_file(info.path))
            there[info.path.removeprefix("/workspaces/main/")] = content.content.decode()
        return await asyncio.to_thread(self._files), there

    def _files(self) -> dict[str, str]:
        paths = [meta["path"] for meta in self.here.list()]
        return {path.removeprefix("/workspace/"): self.here.read_file(path) for path in paths}


@asynccontextmanager
async def sides_at(url: str, folder: Path) -> AsyncIterator[Sides]:
    """Two sides, the one here empty."""
    async with AsyncClient(url) as client:
        sides = await asyncio.to_thread(Sides, client, folder)
        yield sides
        await asyncio.to_thread(sides.disk.close)


@pytest.fixture
async def sides(tmp_path: Path, server: ServerHarness) -> AsyncIterator[Sides]:
    """Two empty sides."""
    async with sides_at(server.url, tmp_path) as sides:
        yield sides


@pytest.fixture
def elsewhere() -> Iterator[Process]:
    """Another server."""
    with serving("--engine", "scripted") as process:
        yield process


async def same(sides: Sides, **files: str) -> None:
    """Both sides have these files, by their names without an end."""
    expected = {f"{name}.txt": text for name, text in files.items()}
    assert await sides.both() == (expected, expected)


async def test_changes_and_deletions_go_both_ways(sides: Sides) -> None:
    await sides.write("a.txt", "mine")
    await sides.put("b.txt", "theirs")
    await same(sides, a="mine", b="theirs")
    await sides.write("b.txt", "mine now")
    await sides.put("a.txt", "theirs now")
    await same(sides, a="theirs now", b="mine now")
    await sides.delete("a.txt")
    await sides.client.call(api.delete_file("/workspaces/main/b.txt"))
    await same(sides)


async def test_another_process_goes_on_where_the_last_one_ended(sides: Sides) -> None:
    """It knows what was equal, so a file that is missing on one side was deleted there."""
    await sides.write("a.txt", "1")
    await sides.write("b.txt", "1")
    await same(sides, a="1", b="1")
    await sides.delete("a.txt")
    await asyncio.to_thread(sides.again)
    await same(sides, b="1")
    await asyncio.to_thread(sides.memory.unlink)  # killed before it could be written: equal contents are equal
    await asyncio.to_thread(sides.again)
    await same(sides, b="1")


async def test_a_server_that_has_lost_its_files_gets_them_again(sides: Sides, elsewhere: Process) -> None:
    """Nobody has deleted them."""
    await sides.write("a.txt", "1")
    await same(sides, a="1")
    async with AsyncClient(elsewhere.url) as sides.client:
        await asyncio.to_thread(sides.again)
        await same(sides, a="1")


async def test_where_both_have_changed_a_file_nothing_is_lost(sides: Sides) -> None:
    await sides.write("a.txt", "old")
    await same(sides, a="old")
    await sides.write("a.txt", "mine")
    await sides.put("a.txt", "theirs")
    expected = {"a.txt": "theirs", "a.txt.conflict": "mine"}
    assert await sides.both() == (expected, expected)
    await sides.write("a.txt", "mine")
    await sides.put("a.txt", "theirs, too")
    await sides.published.send()  # an agent's write, sent at once, finds out as well
    expected |= {"a.txt": "theirs, too", "a.txt.conflict-2": "mine"}
    assert await sides.both() == (expected, expected)


async def test_a_change_wins_over_a_deletion(sides: Sides) -> None:
    await sides.write("a.txt", "1")
    await sides.write("b.txt", "1")
    await same(sides, a="1", b="1")
    await sides.delete("a.txt")
    await sides.put("a.txt", "2")
    await sides.write("b.txt", "2")
    await sides.client.call(api.delete_file("/workspaces/main/b.txt"))
    await same(sides, a="2", b="2")


async def test_folders_of_programs_stay_here(sides: Sides) -> None:
    await sides.write("a.txt", "1")
    await sides.write(".git/config", "secret")
    await sides.write("web/node_modules/left-pad/index.js", "x")
    here, there = await sides.both()
    assert set(there) == {"a.txt"}
    assert len(here) == 3


async def test_what_one_side_cannot_store_stops_nothing_else(sides: Sides) -> None:
    """A file cannot take the place of a folder."""
    await sides.write("a", "a file")
    await sides.put("a/b.txt", "in a folder")
    await sides.write("c.txt", "1")
    here, there = await sides.both()
    assert (here, there) == ({"a": "a file", "c.txt": "1"}, {"a/b.txt": "in a folder", "c.txt": "1"})


async def test_many_files_go_at_once(sides: Sides) -> None:
    names = [f"f{number}" for number in range(120)]
    for name in names:
        await sides.write(f"{name}.txt", name)
    await same(sides, **{name: name for name in names})


async def test_a_server_that_is_away_stops_nothing(tmp_path: Path) -> None:
    async with sides_at(f"http://127.0.0.1:{free_port()}", tmp_path) as sides:
        await sides.write("a.txt", "1")
        await sides.published.send()
        await sides.published.both()
