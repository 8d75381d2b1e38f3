"""Each file that an agent keeps, damaged in each way: it starts, keeps what is before the damage, and says so once.

`FILE_AGENT` and `TREE` are the tables of the files. A file that a run makes and that is in no row fails a test. Some
ways need a user without the rights of root, so all cells run as one.
"""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cfs import api
from cfs.transports.async_http import AsyncClient
from cfs_agents.main.testing import Line, ScriptedModel, calls, says, together
from cfs_agents.tools import Tool, tool
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from tests.agents.fibre.trees import ScriptedModels, finish, late, spawn, wait, write
from tests.agents.file_agent.support import WINDOW
from tests.server.support import serving

NOBODY = 65_534

# -- the ways ---------------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero_length(path: Path) -> None:
    path.write_bytes(b"")


def nul_bytes(path: Path) -> None:
    """A disk that was lost power has the size of a file, and not its last blocks."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def wrong_json(path: Path) -> None:
    path.write_text('{"this is": "another file"}\n')


def missing(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    aside = next(each for each in path.parents if each.name.startswith("cfs-damaged-")) / "elsewhere"
    shutil.copyfile(path, aside)
    (made := path.with_name("link")).symlink_to(aside)
    made.replace(path)  # at once: an agent that writes meanwhile cannot come between


def not_writable(path: Path) -> None:
    path.chmod(0o444)


def other_owner(path: Path) -> None:
    """It may not be read. Only root can give files away."""
    path.chmod(0o000)
    if os.getuid() == 0:
        os.seteuid(0)
        try:
            os.chown(path, 1, 1)
        finally:
            os.seteuid(NOBODY)


def no_rights(path: Path) -> None:
    """As the file of another owner: for an agent at work, whose threads would get the rights of root for a moment."""
    path.chmod(0o000)


WAYS: Mapping[str, Callable[[Path], None]] = {
    each.__name__: each for each in (cut, zero_length, nul_bytes, wrong_json, missing, link, not_writable, other_owner)
}
WITHIN = {**WAYS, "other_owner": no_rights}
ALL = frozenset(WAYS)
RIGHTS = frozenset({"not_writable", "other_owner"})
AWAY = frozenset({"link", "other_owner"})


@dataclass(frozen=True)
class Row:
    """A file that an agent keeps, as a pattern below its folder.

    `at_rest` are the ways of which something is said at the next start, `within` those of which it is said while a task
    runs or at the next start, unless these are the same. `conversation` says whether a part of the conversation may be
    lost with it.
    """

    pattern: str
    at_rest: frozenset[str] = frozenset()
    within: frozenset[str] | None = None
    conversation: bool = False
    server: bool = False

    @property
    def name(self) -> str:
        return self.pattern.removeprefix("sub_sessions/")


FILE_AGENT = (
    # read by the model as text: what a person may have written is no damage
    Row("guideline.md", at_rest=frozenset({"zero_length", "nul_bytes", "missing"}) | AWAY),
    Row("context_window_main.md", at_rest=frozenset({"zero_length", "nul_bytes", "missing"}) | AWAY | RIGHTS),
    Row("journal.jsonl", at_rest=ALL, conversation=True),
    # the changes of one task: the next one begins it anew
    Row("ledger.jsonl", at_rest=frozenset({"cut", "nul_bytes", "wrong_json"}) | AWAY | RIGHTS, within=ALL),
    # while it is known what is equal, the file is written again
    Row("published/files.json", at_rest=ALL - {"missing"}, within=AWAY | RIGHTS, server=True),
    # for people, who may move it away
    Row("logs/operations_*.jsonl", at_rest=ALL - {"cut", "missing"}, within=ALL - {"zero_length", "missing"}),
    Row("logs/agent.log", at_rest=AWAY | RIGHTS),
    Row("storage/history/*.md"),
    Row("storage/offloaded/conversation/index.json", at_rest=ALL - {"missing"}),
    Row("storage/offloaded/conversation/tool_result/*/*.json", at_rest=ALL - {"not_writable"}),
    Row("storage/offloaded/conversation/tool_result/*/*.txt"),
)
NOTHING: frozenset[str] = frozenset()
TREE = (
    # written again at the end of a task
    Row("messages.json", at_rest=ALL, within=AWAY | RIGHTS, conversation=True),
    Row("session_status.json", at_rest=ALL, within=AWAY | RIGHTS, conversation=True),
    Row("steps.jsonl", at_rest=ALL, within=ALL - {"nul_bytes"}, conversation=True),
    Row("ledger.jsonl", at_rest=ALL),
    Row("published/files.json", at_rest=ALL - {"missing"}, within=AWAY | RIGHTS, server=True),
    Row("sub_sessions/a/messages.json", at_rest=ALL, within=AWAY | RIGHTS),
    Row("sub_sessions/a/session_status.json", at_rest=ALL, within=AWAY | RIGHTS),
    Row("sub_sessions/a/steps.jsonl", at_rest=ALL, within=ALL - {"nul_bytes"}),
    # said when that child has another task
    Row("agent_workspace/.cfs/offloaded/a/index.json", at_rest=ALL - {"missing"}, within=NOTHING),
    Row("agent_workspace/.cfs/offloaded/a/tool_result/*/*.json", at_rest=ALL - {"not_writable"}, within=NOTHING),
    Row("agent_workspace/.cfs/offloaded/a/tool_result/*/*.txt"),
)


def cells(rows: tuple[Row, ...], quick: frozenset[str] = ALL) -> list[Any]:
    """Return all cells of a table. Every second one of the `quick` ways is in a plain run, as on a chess board."""
    return [
        pytest.param(row, way, id=f"{row.pattern}-{way}", marks=() if way in fair[number % 2] else pytest.mark.slow)
        for fair in [(sorted(quick)[::2], sorted(quick)[1::2])]
        for number, row in enumerate(rows)
        for way in WAYS
    ]


def only(root: Path, pattern: str) -> Path:
    """Return a file of a row."""
    return min(path for path in root.glob(pattern) if ".aside-" not in path.name)


# -- a user without rights --------------------------------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of a user who is not root, and that user's rights."""
    with tempfile.TemporaryDirectory(prefix="cfs-damaged-") as name:
        if os.geteuid() == 0:
            os.chown(name, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            if os.getuid() == 0:
                os.seteuid(0)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--engine", "scripted") as server:
        yield server.url


def copied(baseline: Path, to: Path) -> Path:
    """Copy a folder as the user of the moment."""
    return Path(shutil.copytree(baseline, to, symlinks=True))


# -- a file agent -----------------------------------------------------------------------------------------------------

LONG = "a long line of a long file\n" * 800


def file_agent(root: Path, *script: Line, **options: Any) -> FileSystemAgent:
    more = options.pop("tools", [])
    config = FileSystemAgentConfig(context_tokens=6_000, offload_token_threshold=500, tools=more)
    return FileSystemAgent(project_root=root, model=ScriptedModel(script), config=config, **options)


async def work_as_file_agent(root: Path, client: AsyncClient) -> None:
    """Leave a file of each row."""
    script = [
        write("long.txt", LONG),
        calls("sync_context", new_context_content=WINDOW),
        calls("read_file", path="long.txt"),
        write("a.txt", "a"),
        write("b.txt", "b"),
        says("All is done."),
    ]
    async with file_agent(root, *script, publish="damaged", client=client) as agent:
        assert (await agent.run("Do it.")).reason == "answered"


@pytest.fixture(scope="module")
def file_agent_folder(url: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cfs-damaged-") as name:
        folder = Path(name) / "agent"

        async def work() -> None:
            async with AsyncClient(url) as client:
                await work_as_file_agent(folder, client)

        asyncio.run(work())
        for path in (Path(name), *Path(name).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield folder


def own_files(folder: Path, work: str) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    names = {path.relative_to(folder).as_posix() for path in paths}
    return {name for name in names if not name.startswith(f"{work}/") or "/.cfs/" in name}


def check_rows(rows: tuple[Row, ...], names: set[str]) -> None:
    for name in names:
        assert [row for row in rows if fnmatch(name, row.pattern)], f"{name} has no row"
    for row in rows:
        assert any(fnmatch(name, row.pattern) for name in names), f"no file is in the row of {row.pattern}"


def test_every_file_of_a_file_agent_has_a_row(file_agent_folder: Path) -> None:
    check_rows(FILE_AGENT, own_files(file_agent_folder, "workspace"))


@pytest.mark.parametrize(("row", "way"), cells(FILE_AGENT))
async def test_a_file_agent_starts_with_a_damaged_file(
    place: Path, file_agent_folder: Path, url: str, row: Row, way: str
) -> None:
    root = copied(file_agent_folder, place / "agent")
    async with file_agent(root) as agent:
        before = [item.message for item in agent.context.context.items[1:]]
    WAYS[way](only(root, row.pattern))
    async with AsyncClient(url) as client:
        options: dict[str, Any] = {"publish": "damaged", "client": client} if row.server else {}
        async with file_agent(root, write("c.txt", "c"), says("Again."), **options) as agent:
            kept = [item.message for item in agent.context.context.items[1:]]
            assert (await agent.run("Again!")).text == "Again."
            said = list(agent.warnings)
        async with file_agent(root, says("Again."), **options) as agent:
            assert (await agent.run("And again!")).text == "Again."
            assert agent.warnings == [], "it is said once"
    assert (root / "workspace/c.txt").read_text() == "c"
    assert kept == before[: len(kept)]
    assert row.conversation or len(kept) == len(before)
    check_said(row, said, expected=way in row.at_rest)


def check_said(row: Row, warnings: Sequence[str], *, expected: bool) -> None:
    """One sentence names the file, and there is no other."""
    assert len(warnings) == expected, warnings
    for sentence in warnings:
        assert any(fnmatch(word, f"{Path(row.pattern).name}*") for word in re.split(r"[ :,/]+", sentence)), warnings


class Damage:
    """A tool that damages a file while a task runs. It fails where the file is gone, as the model then hears."""

    def __init__(self) -> None:
        self.act: Callable[[], None] = lambda: None

    def tool(self) -> Tool:
        async def damage() -> str:
            self.act()
            return "damaged"

        return tool("Damage a file.")(damage)


@pytest.mark.parametrize(("row", "way"), cells(FILE_AGENT, AWAY | {"cut"}))
async def test_a_file_agent_goes_on_while_a_file_is_damaged(
    place: Path, file_agent_folder: Path, url: str, row: Row, way: str
) -> None:
    root, damage = copied(file_agent_folder, place / "agent"), Damage()
    damage.act = lambda: WITHIN[way](only(root, row.pattern))
    script = [write("c.txt", "c"), calls("damage"), write("d.txt", "d"), says("Again.")]
    async with AsyncClient(url) as client:
        options: dict[str, Any] = {"publish": "damaged", "client": client} if row.server else {}
        async with file_agent(root, *script, tools=[damage.tool()], **options) as agent:
            assert (await agent.run("Again!")).text == "Again."
            before = [item.message for item in agent.context.context.items[1:]]
            said = list(agent.warnings)
        async with file_agent(root, says("Again."), **options) as agent:
            kept = [item.message for item in agent.context.context.items[1:]]
            assert (await agent.run("And again!")).text == "Again."
            said += agent.warnings
        async with file_agent(root, says("Again."), **options) as agent:
            assert (await agent.run("And again!")).text == "Again."
            assert agent.warnings == [], "it is said once"
    assert {path.name for path in (root / "workspace").iterdir()} >= {"c.txt", "d.txt"}
    assert kept == before[: len(kept)]
    assert row.conversation or len(kept) == len(before)
    check_said(row, said, expected=way in (row.at_rest if row.within is None else row.within))


# -- a tree of agents -------------------------------------------------------------------------------------------------


def tree_agent(
    folder: Path,
    scripted: ScriptedModels,
    client: AsyncClient | None = None,
    session: str = "main",
    **options: Any,
) -> FibreAgent:
    config = FibreConfig(tick_seconds=0.02, offload_token_threshold=500, context_tokens=6_000, **options)
    return FibreAgent(folder, scripted, config, client=client, session=session)


async def interrupt_a_tree(folder: Path, client: AsyncClient) -> None:
    """Leave a root that waits for two children at work, and a file of each row."""
    read = calls("read_file", path="long.txt")
    scripted = ScriptedModels(
        main=[write("long.txt", LONG), together(spawn("a"), spawn("b")), wait("a"), says("never")],
        a=[read, write("a.txt"), read, late(write("a2.txt"), 1000)],
        b=[late(write("b.txt"), 1000)],
    )
    async with tree_agent(folder, scripted, client) as agent, aclosing(agent.run_stream("Do it.")) as chunks:

        async def read_all() -> None:
            async for _ in chunks:
                pass

        reading = asyncio.create_task(read_all())
        while sum(len(model.asked) for model in scripted.models.values()) < 8:  # noqa: ASYNC110 - they have no event
            await asyncio.sleep(0.01)
        await scripted.clock.until_asleep()
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


@pytest.fixture(scope="module")
def tree_folder(url: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cfs-damaged-") as name:

        async def work() -> None:
            async with AsyncClient(url) as client:
                await interrupt_a_tree(Path(name), client)

        asyncio.run(work())
        for path in (Path(name), *Path(name).rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)
        yield Path(name)


def test_every_file_of_a_tree_has_a_row(tree_folder: Path) -> None:
    names = own_files(tree_folder / "main", "agent_workspace")
    check_rows(TREE, {re.sub("/(b|main)/", "/a/", name) for name in names})


LOCAL = tuple(row for row in TREE if not row.server)
DONE = says("All is done.")
LOST = "it is lost"


def told(agent: FibreAgent) -> int:
    """Count how often the root was told that an agent is lost."""
    return sum(LOST in message.content for message in agent.agents["main"].context.message_manager.messages)


def status_of(agent: FibreAgent, name: str) -> str:
    report = agent.agents[name].report
    assert report is not None
    return report.status


@pytest.mark.parametrize(("row", "way"), cells(LOCAL))
async def test_a_tree_starts_with_a_damaged_file(place: Path, tree_folder: Path, row: Row, way: str) -> None:
    """What a child loses, its parent hears once; the other child and the root go on."""
    folder = copied(tree_folder, place / "agents")
    WAYS[way](only(folder / "main", row.pattern))
    torn = way == "cut" and row.pattern.endswith("steps.jsonl")  # as by a kill: the agent goes on from before it
    lost = row.pattern.startswith("sub_sessions/") and way != "not_writable" and not torn
    answers = [DONE] * 5  # the root goes on at the end of each child and once for those at work, if it answers before
    scripted = ScriptedModels(main=[wait("a"), wait("b"), *answers], a=[finish("done")], b=[finish("done")])
    async with tree_agent(folder, scripted) as agent:
        if row.conversation:
            assert (await agent.run("Again!")).ok
        else:
            assert (await agent.resume()).ok
            assert (status_of(agent, "a"), status_of(agent, "b")) == ("failed" if lost else "success", "success")
            assert told(agent) == lost
        check_said(row, agent.warnings, expected=way in row.at_rest)
    async with tree_agent(folder, ScriptedModels(main=[DONE], a=[], b=[])) as agent:
        assert (await agent.run("And again!")).ok
        assert agent.warnings == [], "it is said once"
        assert told(agent) == lost


@pytest.mark.parametrize(("row", "way"), cells(LOCAL, AWAY | {"cut"}))
async def test_a_tree_goes_on_while_a_file_is_damaged(place: Path, tree_folder: Path, row: Row, way: str) -> None:
    """All of it is still in memory, so nothing is lost, not even of a child."""
    folder, damage = copied(tree_folder, place / "agents"), Damage()
    damage.act = lambda: WITHIN[way](only(folder / "main", row.pattern))
    work = [write("c.txt"), calls("damage"), write("d.txt"), finish("done", "c.txt", "d.txt")]
    scripted = ScriptedModels(main=[wait("a"), wait("b"), DONE], a=work, b=[finish("done")])
    async with tree_agent(folder, scripted, tools=[damage.tool()]) as agent:
        assert (await agent.resume()).summary == DONE.text
        assert (status_of(agent, "a"), status_of(agent, "b")) == ("success", "success")
        said = list(agent.warnings)
        before = {name: each.context.message_manager.messages for name, each in agent.agents.items()}
    async with tree_agent(folder, ScriptedModels(main=[DONE], a=[], b=[])) as agent:
        assert {name: each.context.message_manager.messages for name, each in agent.agents.items()} == before
        assert (await agent.run("Again!")).ok
        said += agent.warnings
        assert told(agent) == 0
    check_said(row, said, expected=way in (row.at_rest if row.within is None else row.within))


@pytest.mark.parametrize(
    ("way", "within"),
    [
        pytest.param(way, within, marks=pytest.mark.slow if (number + within) % 2 else ())
        for number, way in enumerate(WAYS)
        for within in (False, True)
    ],
)
async def test_a_tree_compares_its_files_again(place: Path, url: str, way: str, within: bool) -> None:
    """The file that says which versions were equal on the server."""
    (row,) = (row for row in TREE if row.server)
    session, damage = f"{way}-{within}", Damage()
    path = place / session / row.pattern
    first = [calls("damage")] if within else []
    script = [write("a.txt", "a"), *first, write("b.txt", "b"), DONE, write("c.txt", "c"), DONE, DONE]
    scripted = ScriptedModels(**{session: script})
    said: list[str] = []
    async with AsyncClient(url) as client:
        for order in range(3):
            damage.act = partial(WITHIN[way], path)
            async with tree_agent(place, scripted, client, session=session, tools=[damage.tool()]) as agent:
                assert (await agent.run(f"order {order}")).ok
                said += agent.warnings
            if not within and order == 0:
                WAYS[way](path)
                said.clear()
        assert agent.warnings == []
        files = await client.call(api.files(f"/workspaces/{session}/", "", 10))
    assert [Path(info.path).name for info in files.files] == ["a.txt", "b.txt", "c.txt"]
    check_said(row, said, expected=way in ((row.within or ()) if within else row.at_rest))
