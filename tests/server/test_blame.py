"""`cfs files blame` and `cfs files git`: what brought each line, as plain git says it (real server, real git)."""

import asyncio
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cfs import Session, api
from cfs.transports.http import Client
from cfs.versions.blame import BlamedLine, blame
from cfs_filesystem import OPERATIONS
from tests.filesystem.support import grant
from tests.server.guests import guests
from tests.server.support import Process, ServerHarness, run_cfs, serving

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


def refused(server: Process, *arguments: str, **env: str) -> str:
    """The one line with which a command refuses."""
    ended = run_cfs("files", *arguments, "--url", server.url, **env)
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
def running(tmp_path: Path) -> Iterator[Process]:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "data")) as started:
        yield started


class Walk:
    """Random changes of text files by the server, and of their permissions on its disk."""

    NAMES = ("a", "src/b", "src/c", "src/deep/d", "e f", "ü", "g", "h/i")

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
        elif act < 0.82:
            assert self.client.delete(f"/v1/files{MAIN}{name}").status_code == 204
            del self.files[name]
        elif act < 0.94:
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


def test_git_and_cfs_agree_on_each_line_of_random_versions(
    running: Process, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server, repository = running, tmp_path / "repository"
    third = 66 if request.config.getoption("--slow") else 25
    with httpx.Client(base_url=server.url) as client:
        walk = Walk(client, tmp_path / "data/workspaces/main", 32)
        while (last := client.get(f"/v1/versions{MAIN}").json()["last"]) < 3 * third:
            walk.step()
            if last == 2 * third:
                cfs(server, "git", "main", str(repository))
    cfs(server, "git", "main", str(repository))
    git(repository, "fsck", "--strict")
    by_number = {number: commit for commit, number in commits(repository).items()}
    assert sorted(by_number) == list(range(1, last + 1)), "one commit a change"
    for number in (third, 2 * third, last):
        files = git(repository, "ls-tree", "-r", "-z", "--name-only", by_number[number]).split("\0")[:-1]
        for name in files:
            ours = numbers(server, f"main/{name}@{number}")
            assert ours == blamed(repository, name, by_number[number]), f"{name} at {number}"
    assert set(files) == set(walk.files)
    for first, second in ((1, third), (third, 2 * third), (2 * third, last), (last - 1, last)):
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


def put(server: Process, name: str, content: bytes) -> None:
    answer = httpx.put(f"{server.url}/v1/files{MAIN}{name}", content=content)
    assert answer.status_code in (200, 201), answer.text


def move(server: Process, name: str, target: str) -> None:
    answer = httpx.request("MOVE", f"{server.url}/dav{MAIN}{name}", headers={"Destination": f"/dav{MAIN}{target}"})
    assert answer.status_code == 201, answer.text


# -- blame ------------------------------------------------------------------------------------------------------------


def test_each_line_has_its_author_and_the_message_that_was_answered(running: Process) -> None:
    """Also after a rewind: then the message that it brings back."""
    with Session("main", url=running.url) as session, Client(running.url) as client:

        def write(text: bytes) -> None:
            with api.acting_as("main", "c1"):
                client.call(api.write_file(MAIN + "a.txt", text))

        client.call(api.write_file(MAIN + "a.txt", b"by hand\n"))
        session.send("\nFirst, add one.\nMore of it.")
        write(b"by hand\none\n")
        session.send("Now two.")
        write(b"by hand\none\ntwo\n")
        assert run_cfs("rewind", "main", "--to", "2", "--chat", "--url", running.url).returncode == 0
        write(b"by hand\none\ntwo\nthree")
    lines = [json.loads(line) for line in cfs(running, "blame", "main/a.txt", "--json").splitlines()]
    assert [(line["line"], line["text"], line["number"], line["agent"], line["tool_call"]) for line in lines] == [
        (1, "by hand", 1, None, None),
        (2, "one", 2, "main", "c1"),
        (3, "two", 3, "main", "c1"),
        (4, "three", 4, "main", "c1"),
    ]
    assert [line["prompt"] for line in lines] == [None, "First, add one.", "Now two.", "First, add one."]
    shown = cfs(running, "blame", "main/a.txt@2").splitlines()
    assert [line.split()[:1] + line.split()[3:] for line in shown[:2]] == [
        ["1", "local", "1", "by", "hand"],
        ["2", "local", "main", "c1", "2", "one"],
    ]
    assert shown[2:] == ["", "     2  answers: First, add one."]


async def test_who_may_not_read_the_session_sees_the_author_alone(server: ServerHarness) -> None:
    """Who may not read the file sees what it would see of a file that is not there."""
    readable = [grant(MAIN + "shared/", *OPERATIONS)]
    async with guests(server, alice=[grant("/", *OPERATIONS)], bob=readable) as callers:
        alice = callers["alice"]
        await alice.create("main", "User: the secret plan\n")
        for path in ("shared/a", "hidden"):
            headers = {"X-CFS-Agent": "main", "X-CFS-Tool-Call": "c1"}
            await alice.client.put(f"/v1/files{MAIN}{path}", content=b"x\n", headers=headers)

        async def run(who: str, path: str) -> tuple[int, str]:
            words = ("files", "blame", f"main/{path}", "--json", "--url", server.url)
            ended = await asyncio.to_thread(run_cfs, *words, CFS_TOKEN=f"cfs_{who}")
            return ended.returncode, ended.stdout + ended.stderr

        code, output = await run("bob", "shared/a")
        assert (code, json.loads(output)["agent"], json.loads(output)["prompt"]) == (0, "main", None)
        hidden, missing = await run("bob", "hidden"), await run("bob", "nothing")
        assert hidden[0] != 0
        assert hidden[1].replace("hidden", "nothing") == missing[1]
        code, output = await run("alice", "shared/a")
        assert (code, json.loads(output)["agent"]) == (0, "main")


def test_renames_are_followed_as_git_does(running: Process, tmp_path: Path) -> None:
    put(running, "old/src/a", b"1\n2\n")
    put(running, "old/a", b"other\n")
    put(running, "old/src/a", b"1\n2\n3\n")
    move(running, "old", "new")
    put(running, "new/src/a", b"0\n1\n2\n3\n")
    move(running, "new/src/a", "b")
    assert numbers(running, "main/b") == [5, 1, 1, 3]
    cfs(running, "git", "main", str(tmp_path / "repository"))
    assert blamed(tmp_path / "repository", "b") == [5, 1, 1, 3]
    httpx.delete(f"{running.url}/v1/files{MAIN}b")
    put(running, "b", b"1\n2\n")
    assert numbers(running, "main/b") == [8, 8], "a file that was deleted and made again is new"


def test_lines_older_than_the_versions_have_no_author(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path / "data"), "--versions-changes", "2")
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "data")) as server:
        for text in (b"1\n", b"1\n2\n", b"1\n2\n3\n", b"1\n2\n3\n4\n"):
            put(server, "a", text)
        put(server, "b", b"b\n")
    with serving(*SCRIPTED, *flags) as server:
        assert httpx.get(f"{server.url}/v1/versions{MAIN}").json()["oldest"] == 3
        lines = [json.loads(line) for line in cfs(server, "blame", "main/a", "--json").splitlines()]
        assert [(line["number"], line["kind"]) for line in lines] == [*[(3, "write")] * 3, (4, "write")]
        put(server, "c", b"c\n")
        put(server, "c", b"d\n")
        cfs(server, "git", "main", str(tmp_path / "repository"))
        assert blamed(tmp_path / "repository", "a") == [3, 3, 3, 4]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("main/bin", "main/bin is a binary file"),
        ("main/none", "/workspaces/main/none"),
        ("main/text@9", "there is no version 9 of 'main': the last is 3"),
        ("main/bin@1", "/workspaces/main/bin"),
        ("main/folder", "/workspaces/main/folder"),
        ("main", "name a file in it"),
    ],
)
def test_what_has_no_lines_is_refused_in_one(running: Process, place: str, words: str) -> None:
    put(running, "text", b"x\n")
    put(running, "bin", b"\0\1")
    put(running, "folder/x", b"x")
    assert words in refused(running, "blame", place)


def test_a_comparison_with_what_never_was_is_refused(running: Process) -> None:
    """A name beside a workspace, as in other tools, is not taken for an empty workspace."""
    put(running, "compared.txt", b"one")
    assert "there is nothing at compared.txt" in refused(running, "diff", "main", "compared.txt")
    assert "there is nothing at main/other.txt" in refused(running, "diff", "main/other.txt")


def test_lines_end_at_newlines_only_and_no_version_is_read_in_vain() -> None:
    def versions() -> Iterator[tuple[int, bytes]]:
        yield 3, b"a\r\x0cb\xff\nnew"
        yield 2, b"a\r\x0cb\xff\n"
        yield 1, b""
        raise AssertionError("each line has its version")

    assert blame(versions()) == [BlamedLine(2, 0, b"a\r\x0cb\xff\n"), BlamedLine(3, 1, b"new")]
    assert blame([(1, b"")]) == []


# -- git --------------------------------------------------------------------------------------------------------------


def test_git_has_what_it_can_hold_and_the_rest_is_said(running: Process, tmp_path: Path) -> None:
    disk, repository = tmp_path / "data/workspaces/main", tmp_path / "repository"
    with api.acting_as("main/coder", "c1"), Client(running.url) as client:
        client.call(api.write_file(MAIN + "run.sh", b"#!/bin/sh\n"))
    (disk / "run.sh").chmod(0o755)
    (disk / "link").symlink_to("run.sh")
    (disk / "empty").mkdir()
    (disk / "sub/.git").mkdir(parents=True)
    (disk / "sub/.git/HEAD").write_text("ref: refs/heads/main\n")
    (disk / os.fsdecode(b"caf\xe9")).write_text("latin")
    ended = run_cfs("files", "git", "main", str(repository), "--url", running.url)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines() == [
        f"2 commits were added to {repository}, up to change 2",
        "Left out, paths with a name that REST does not have: caf\\xe9",
        "Left out, paths below a nested .git, or with a name that git takes for one: sub/.git/HEAD",
        "Left out, empty folders: empty, sub, sub/.git",
    ]
    git(repository, "fsck", "--strict")
    tree = git(repository, "ls-tree", "-r", "--format=%(objectmode) %(path)", "main").splitlines()
    assert tree == ["120000 link", "100755 run.sh"]
    assert git(repository, "show", "main:link") == "run.sh"
    log = git(repository, "log", "--reverse", "--format=%an <%ae> %ct %s|%(trailers:key=CFS-Call,valueonly)")
    changes = httpx.get(f"{running.url}/v1/versions{MAIN}").json()["changes"]
    first, second = (int(change["at"]) for change in reversed(changes))
    lines = [line for line in log.splitlines() if line]
    assert lines[0] == f"main/coder <main/coder@cfs> {first} write run.sh|c1"
    assert lines[1].startswith(f"outside <outside@cfs> {second} outside ")


def test_a_second_run_adds_what_is_new_and_files_become_folders(running: Process, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    put(running, "a", b"1")
    cfs(running, "git", "main", str(repository))
    before = git(repository, "rev-parse", "main")
    again = run_cfs("files", "git", "main", str(repository), "--url", running.url)
    assert again.stderr == f"0 commits were added to {repository}, up to change 1\n"
    assert git(repository, "rev-parse", "main") == before
    httpx.delete(f"{running.url}/v1/files{MAIN}a")
    put(running, "a/b", b"2")
    disk = tmp_path / "data/workspaces/main"
    (disk / "a/b").unlink()
    (disk / "a").rmdir()
    (disk / "a").write_text("a file")
    cfs(running, "git", "main", str(repository))
    assert git(repository, "merge-base", "main", before.strip()) == before
    assert sorted(commits(repository).values()) == [1, 2, 3, 4]
    assert git(repository, "show", "main:a") == "a file"
    assert git(repository, "show", "main~1:a/b") == "2"
    git(repository, "fsck", "--strict")


def test_another_folder_is_refused_and_stays(running: Process, tmp_path: Path) -> None:
    put(running, "a", b"1")
    httpx.put(f"{running.url}/v1/files/workspaces/other/a", content=b"1")
    other, full, file, mine = (tmp_path / name for name in ("other", "full", "file", "mine"))
    cfs(running, "git", "other", str(other))
    full.mkdir()
    (full / "HEAD").write_text("mine")
    file.write_text("mine")
    subprocess.run(["git", "init", "-q", mine], check=True)
    for target in (other, full, file, mine, mine / ".git"):
        assert "name a new folder" in refused(running, "git", "main", str(target))
    assert [(full / "HEAD").read_text(), file.read_text()] == ["mine", "mine"]
    for name in ("none", "main/a", "main@1"):
        assert "workspace" in refused(running, "git", name, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    httpx.delete(f"{running.url}/v1/versions/workspaces/other")
    httpx.put(f"{running.url}/v1/files/workspaces/other/b", content=b"1")
    assert "name a new folder" in refused(running, "git", "other", str(other))
