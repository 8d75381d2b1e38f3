"""Lines stay those of their authors through rewinds, redos, forks and merges, as in a git repository (S17, S14).

In the repository a rewind and a redo are resets, a fork is a branch, and a merge is one: plain git blame decides.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cfs.cli.actions.file_lineage import FileLineage
from cfs.transports.http import Client
from tests.server.support import ServerHarness, run_cfs
from tests.server.test_blame import git
from tests.server.test_forked_files import fork
from tests.server.test_merged_files import merge
from tests.server.test_rewound_files import put, redo, remove, rewind, said, stored

NAMES = ("a", "src/b", "c")
STEPS = 60
LINES = 40
PART = 10
"""Lines that only one workspace changes: those at the beginning are of the original."""
_IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@t")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerHarness]:
    """A server that keeps sessions, files and versions in a folder."""
    async with stored(tmp_path / "data") as running:
        yield running


async def last(server: ServerHarness, workspace: str) -> int:
    """The number of the last change."""
    number: int = (await server.client.get(f"/v1/versions/workspaces/{workspace}")).json()["last"]
    return number


async def blamed(server: ServerHarness, workspace: str, name: str) -> list[tuple[str, int]]:
    """The workspace and the number of the change that brought each line."""
    at = str(await last(server, workspace))

    def lines() -> list[tuple[str, int]]:
        with Client(server.url) as client:
            result = FileLineage(client).lines(f"/workspaces/{workspace}/{name}", at)
        return [(line.version.workspace, line.version.change.number) for line in result]

    return await asyncio.to_thread(lines)


class Twin:
    """A session with its files, its fork, and the git repository that has the same history, with its branches."""

    def __init__(self, server: ServerHarness, repository: Path, seed: int) -> None:
        self.server = server
        self.repository = repository
        self.random = random.Random(seed)
        self.changes: dict[str, tuple[str, int]] = {}
        """The workspace and the number of the change of each commit."""
        self.versions: dict[int, str] = {}
        """The commits of the versions of the session."""
        self.undone: list[str] = []
        self.forks: list[str] = []

    async def begin(self) -> None:
        """Make files and a first version."""
        self.repository.mkdir()
        git(self.repository, "init", "-q", "-b", "main")
        for name in NAMES:
            await self.write("main", name, [self.line() for _ in range(LINES)])
        await self.say()

    def line(self) -> str:
        return f"line {self.random.getrandbits(40)}"

    def head(self) -> str:
        return git(self.repository, "rev-parse", "HEAD").strip()

    async def write(self, workspace: str, name: str, lines: list[str] | None) -> None:
        """Write or remove a file on both sides."""
        git(self.repository, "checkout", "-q", workspace) if self.changes else None
        path = self.repository / name
        if lines is None:
            await remove(self.server, f"{workspace}/{name}", workspace)
            await asyncio.to_thread(path.unlink)
        else:
            text = "\n".join(lines) + "\n"
            await put(self.server, f"{workspace}/{name}", text, workspace)
            path.parent.mkdir(exist_ok=True)
            await asyncio.to_thread(path.write_text, text)
        git(self.repository, "add", "-A")
        git(self.repository, *_IDENTITY, "commit", "-q", "-m", name)
        self.changes[self.head()] = workspace, await last(self.server, workspace)

    async def edit(self, workspace: str) -> None:
        """Change some lines of a file, or remove it."""
        git(self.repository, "checkout", "-q", workspace)
        name = self.random.choice(NAMES)
        path = self.repository / name
        if not path.exists():
            await self.write(workspace, name, [self.line() for _ in range(LINES)])
        elif workspace == "main" and self.random.random() < 0.1 and not self.forks:
            await self.write(workspace, name, None)
        else:
            lines = (await asyncio.to_thread(path.read_text)).splitlines()
            first = PART * ["main", *self.forks].index(workspace)
            for number in self.random.sample(range(first + 1, first + PART - 1), 3):
                lines[number] = self.line()
            await self.write(workspace, name, lines)

    async def say(self) -> None:
        """Add a version of the session."""
        self.undone = []
        git(self.repository, "checkout", "-q", "main")
        self.versions[await said(self.server, "main", "next")] = self.head()

    async def rewind(self, version: int) -> None:
        git(self.repository, "checkout", "-q", "main")
        before = self.head()
        answer = await rewind(self.server, "main", version)
        assert answer.status_code == 200, answer.text
        git(self.repository, "reset", "-q", "--hard", self.versions[version])
        self.undone = [before]

    async def redo(self) -> None:
        if self.undone:
            answer = await redo(self.server, "main")
            assert answer.status_code == 200, answer.text
            git(self.repository, "checkout", "-q", "main")
            git(self.repository, "reset", "-q", "--hard", self.undone.pop())

    async def fork(self) -> None:
        name = f"main-{len(self.forks) + 2}"
        assert (await fork(self.server))["id"] == name
        git(self.repository, "branch", "-q", name, "main")
        self.forks.append(name)

    async def merge(self) -> None:
        name = self.random.choice(self.forks)
        done = await merge(self.server, "main", name)
        git(self.repository, "checkout", "-q", "main")
        git(self.repository, *_IDENTITY, "merge", "-q", "--no-ff", "-m", "merge", name)
        assert not done["conflicts"]
        self.changes[self.head()] = "main", await last(self.server, "main")

    async def step(self) -> None:
        act = self.random.random()
        if act < 0.45:
            self.undone = []
            await self.edit("main")
        elif act < 0.6:
            await self.say()
        elif act < 0.72:
            await self.rewind(self.random.choice(list(self.versions)))
        elif act < 0.8:
            await self.redo()

    async def check(self, workspace: str) -> None:
        """Compare each line of each file."""
        git(self.repository, "checkout", "-q", workspace)
        for name in NAMES:
            if not (self.repository / name).exists():
                continue
            output = git(self.repository, "blame", "--root", "-l", "-s", workspace, "--", name).splitlines()
            theirs = [self.changes[line.split()[0].lstrip("^")] for line in output]
            ours = [self.of_original(*origin) for origin in await blamed(self.server, workspace, name)]
            assert ours == theirs, f"{workspace}/{name}"

    def of_original(self, workspace: str, number: int) -> tuple[str, int]:
        """A fork has the changes of its original, with their numbers."""
        return (workspace, number) if (workspace, number) in self.changes.values() else ("main", number)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.timeout(300)
async def test_lines_are_those_of_git_blame_through_rewinds_and_redos(
    server: ServerHarness, tmp_path: Path, seed: int
) -> None:
    twin = Twin(server, tmp_path / "repository", seed)
    await twin.begin()
    for number in range(STEPS):
        await twin.step()
        if number % 10 == 0:
            await twin.check("main")
    await twin.check("main")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.timeout(300)
async def test_lines_are_those_of_git_blame_through_forks_and_merges(
    server: ServerHarness, tmp_path: Path, seed: int
) -> None:
    """A merge may be taken back, and made again."""
    twin = Twin(server, tmp_path / "repository", seed)
    await twin.begin()
    for _ in range(3):
        await twin.fork()
        for _ in range(4):
            await twin.edit("main")
            await twin.edit(twin.random.choice(twin.forks))
        await twin.say()
        await twin.merge()
        await twin.check("main")
        await twin.rewind(max(twin.versions))
        await twin.check("main")
        await twin.merge()
        await twin.edit("main")
        for workspace in ("main", *twin.forks):
            await twin.check(workspace)


async def test_a_merged_line_names_the_change_of_the_copy_while_it_can_be_read(
    server: ServerHarness, tmp_path: Path
) -> None:
    """If the copy is gone, it is a line of the merge."""
    await put(server, "main/a.txt", "one\n")
    await said(server, "main", "first")
    await fork(server)
    await put(server, "main-2/a.txt", "one\ntwo\n", "main-2")
    await merge(server, "main", "main-2")

    async def shown(*flags: str) -> str:
        ended = await asyncio.to_thread(run_cfs, "files", "blame", "main/a.txt", *flags, "--url", server.url)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    assert [line.split()[0] for line in (await shown()).splitlines()[:2]] == ["1", "main-2@2"]
    lines = [json.loads(line) for line in (await shown("--json")).splitlines()]
    assert [(line["workspace"], line["number"], line["agent"]) for line in lines] == [
        ("main", 1, "main"),
        ("main-2", 2, "main-2"),
    ]
    await server.client.delete("/v1/files/workspaces/main-2/", params={"recursive": "true"})
    assert (await server.client.delete("/v1/sessions/main-2")).status_code == 204
    lines = [json.loads(line) for line in (await shown("--json")).splitlines()]
    assert [(line["workspace"], line["number"], line["kind"]) for line in lines] == [
        ("main", 1, "write"),
        ("main", 2, "merge"),
    ]
