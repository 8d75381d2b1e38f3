"""`cfs files blame` and `cfs files git`: what brought each line, as plain git says it (real server, real git)."""

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.support import Process, run_cfs, serving

SCRIPTED = ("--engine", "scripted")
MAIN = "/workspaces/main/"


def git(repository: Path, *arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", "-C", str(repository), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def cfs(server: Process, *arguments: str) -> str:
    ended = run_cfs("files", *arguments, "--url", server.url)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def refused(server: Process, *arguments: str) -> str:
    """The one line with which a command refuses."""
    ended = run_cfs("files", *arguments, "--url", server.url)
    assert (ended.returncode != 0, ended.stdout, len(ended.stderr.splitlines())) == (True, "", 1), ended.stderr
    return ended.stderr


def numbers(server: Process, place: str) -> list[int]:
    """The change that brought each line, as we say it."""
    return [json.loads(line)["number"] for line in cfs(server, "blame", place, "--json").splitlines()]


def commits(repository: Path) -> dict[str, int]:
    """The number of the change of each commit."""
    log = git(repository, "log", "--format=%H %(trailers:key=CFS-Change,valueonly,separator=%x20)")
    return {commit: int(number) for commit, number in (line.split() for line in log.splitlines())}


def blamed(repository: Path, path: str, revision: str = "main") -> list[int]:
    """The change that brought each line, as git says it."""
    known = commits(repository)
    lines = git(repository, "blame", "--root", "-l", "-s", revision, "--", path).splitlines()
    return [known[line.split()[0].lstrip("^")] for line in lines]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "data")) as started:
        yield started


class Walk:
    """Random changes of text files by the server, and of their permissions on its disk."""

    NAMES = ("a", "src/b", "src/c", "src/deep/d", "e f", "ü")

    def __init__(self, client: httpx.Client, disk: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.client = client
        self.disk = disk
        self.files: dict[str, list[str]] = {}

    def step(self) -> None:
        name = self.random.choice(self.NAMES)
        act = self.random.random()
        if name not in self.files or act < 0.75:
            self.write(name)
        elif act < 0.8:
            assert self.client.delete(f"/v1/files{MAIN}{name}").status_code == 204
            del self.files[name]
        elif act < 0.92:
            self.move(name, self.random.choice(self.NAMES))
        else:
            (self.disk / name).chmod(self.random.choice((0o644, 0o755, 0o600, 0o700)))
            assert self.client.get(f"/v1/versions{MAIN}").status_code == 200

    def write(self, name: str) -> None:
        lines = self.files.setdefault(name, [])
        for _ in range(self.random.randint(1, 3)):
            first = self.random.randint(0, len(lines))
            count = 0 if self.random.random() < 0.6 else self.random.randint(0, 4)
            lines[first : first + count] = [self.line() for _ in range(self.random.randint(0 if count else 1, 5))]
        end = "" if self.random.random() < 0.1 else "\n"
        written = self.client.put(f"/v1/files{MAIN}{name}", content=("\n".join(lines) + end).encode())
        assert written.status_code in (200, 201), written.text

    def line(self) -> str:
        return f"line {self.random.getrandbits(40)}"

    def move(self, name: str, target: str) -> None:
        if target == name:
            return
        headers = {"Destination": f"/dav{MAIN}{target}".replace(" ", "%20").replace("ü", "%C3%BC")}
        moved = self.client.request("MOVE", f"/dav{MAIN}{name}", headers=headers)
        if moved.status_code in (201, 204):
            self.files[target] = self.files.pop(name)


def test_git_and_cfs_agree_on_each_line_of_random_versions(server: Process, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    with httpx.Client(base_url=server.url) as client:
        walk = Walk(client, tmp_path / "data/workspaces/main", 32)
        while (last := client.get(f"/v1/versions{MAIN}").json()["last"]) < 200:
            walk.step()
            if last == 100:
                cfs(server, "git", "main", str(repository))
    cfs(server, "git", "main", str(repository))
    git(repository, "fsck", "--strict")
    by_number = {number: commit for commit, number in commits(repository).items()}
    assert sorted(by_number) == list(range(1, last + 1)), "one commit a change"
    for number in (60, 130, last):
        files = git(repository, "ls-tree", "-r", "-z", "--name-only", by_number[number]).split("\0")[:-1]
        for name in files:
            ours = numbers(server, f"main/{name}@{number}")
            assert ours == blamed(repository, name, by_number[number]), f"{name} at {number}"
    assert set(files) == set(walk.files)
    for first, second in ((1, 40), (40, 130), (130, last), (199, last)):
        theirs = set()
        names = git(
            repository, "diff", "--raw", "--no-renames", "--abbrev=40", "-z", by_number[first], by_number[second]
        )
        fields = names.split("\0")[:-1]
        for state, name in zip(fields[::2], fields[1::2], strict=True):
            if state.split()[2] != state.split()[3]:  # other than its permissions
                theirs.add(name)
        shown = run_cfs("files", "diff", f"main@{first}", f"main@{second}", "--url", server.url).stdout
        heads = [line for line in shown.splitlines() if line.startswith(("--- main/", "+++ main/"))]
        assert {line[len("--- main/") :].split("\t")[0] for line in heads} == theirs
