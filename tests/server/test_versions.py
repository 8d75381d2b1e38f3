"""Versions of files of workspaces: what is recorded of each change, how the past is read, and when it is deleted."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs import api
from cfs.errors import Unsupported
from cfs.transports.http import Client
from cfs_filesystem import OPERATIONS, Grant, open_store
from cfs_filesystem.versions import EntryType, Kind, SqliteVersions, VersionRetention, VersionStore
from cfs_server.workspaces.workspaces import DiskWorkspaces, ObjectWorkspaces, Workspaces
from tests.filesystem.support import grant
from tests.server.guests import guests
from tests.server.places import BucketFolder, Folder, everywhere, slow_in_a_bucket
from tests.server.support import Process, ServerHarness, run_cfs, serving, until

HERE = Path(__file__).parent
SCRIPTED = ("--engine", "scripted")
MAIN = "/workspaces/main/"


@pytest.fixture
def workspaces(tmp_path: Path, files: Folder) -> Iterator[Workspaces]:
    """Workspaces in a folder or a bucket, with versions."""
    versions = SqliteVersions(tmp_path / "versions.db")
    if isinstance(files, BucketFolder):
        store = open_store(str(files))
        store.check()
        found: Workspaces = ObjectWorkspaces(store, versions=versions)
    else:
        found = DiskWorkspaces(files, versions=versions)
    with closing(found):
        yield found


def store_of(workspaces: Workspaces) -> VersionStore:
    assert workspaces.history is not None
    return workspaces.history.store


def contents(workspaces: Workspaces, number: int | None = None) -> dict[str, bytes | None]:
    """What the workspace `main` has at a version; None for a folder."""
    store = store_of(workspaces)
    return {
        path: None if entry.type is EntryType.FOLDER else store.read("main", entry)
        for path, entry in store.tree_at("main", number).items()
    }


# -- what is recorded -------------------------------------------------------------------------------------------------


@everywhere
async def test_a_change_by_any_interface_is_a_version_with_its_author(server: ServerHarness, files: Folder) -> None:
    """Of an agent its name and tool call are known, too."""
    agent = {"X-CFS-Agent": "main/coder", "X-CFS-Tool-Call": "call%201"}
    url = f"/v1/files{MAIN}"
    await server.client.put(url + "src/a", content=b"1", headers=agent)
    await server.client.put("/dav" + MAIN + "src/a", content=b"2", headers=agent)
    await server.client.request("MKCOL", "/dav" + MAIN + "empty")
    for method, target in (("COPY", "copy"), ("MOVE", "moved")):
        headers = {"Destination": f"/dav{MAIN}{target}"}
        answer = await server.client.request(method, f"/dav{MAIN}src", headers=headers)
        assert answer.status_code == 201, answer.text
    await server.client.delete(url + "copy/a")
    await server.client.delete("/dav" + MAIN + "moved")
    page = (await server.client.get(f"/v1/versions{MAIN}")).json()
    seen = [
        (change["kind"], change["agent"], change["tool_call"], {file["path"][len(MAIN) :] for file in change["files"]})
        for change in reversed(page["changes"])
    ]
    assert seen == [
        ("write", "main/coder", "call 1", {"src", "src/a"}),
        ("write", "main/coder", "call 1", {"src/a"}),
        ("folder", None, None, {"empty"}),
        ("copy", None, None, {"copy", "copy/a"}),
        ("move", None, None, {"src", "src/a", "moved", "moved/a"}),
        ("delete", None, None, {"copy/a", "copy"} if isinstance(files, BucketFolder) else {"copy/a"}),
        ("delete", None, None, {"moved", "moved/a"}),
    ]
    assert {change["principal"] for change in page["changes"]} == {"local"}
    assert (page["oldest"], page["last"], page["next"]) == (0, 7, None)


@everywhere
def test_what_a_program_changed_is_recorded_before_it_is_overwritten(workspaces: Workspaces, files: Folder) -> None:
    handle = workspaces.create_handle([grant(MAIN, *OPERATIONS)])
    handle.write(MAIN + "a", "ours")
    handle.write(MAIN + "b", "ours")
    for name in "ab":
        (files / "main" / name).write_text("theirs")
    handle.write(MAIN + "a", "ours again")
    handle.delete(MAIN + "b")
    changes = list(reversed(store_of(workspaces).changes("main")))
    assert [change.kind for change in changes[2:]] == [Kind.OUTSIDE, Kind.WRITE, Kind.OUTSIDE, Kind.DELETE]
    assert changes[2].author.principal == ""
    assert contents(workspaces, 3)["a"] == contents(workspaces, 5)["b"] == b"theirs"


@everywhere
def test_a_workspace_older_than_its_versions_begins_with_all_of_it(workspaces: Workspaces, files: Folder) -> None:
    folder = files / "main"
    folder.mkdir(parents=True)
    (folder / "old").write_text("there before")
    workspaces.create_handle([grant(MAIN, *OPERATIONS)]).write(MAIN + "new", "x")
    assert contents(workspaces, 1) == {"old": b"there before"}
    assert contents(workspaces, 2) == {"old": b"there before", "new": b"x"}


def test_what_a_user_would_miss_is_kept(workspaces: Workspaces, tmp_path: Path) -> None:
    """Links, permissions, empty folders, repositories and any names, but not what programs make again."""
    folder = tmp_path / "workspaces/main"
    for name in ("empty", ".git/objects", "node_modules/lib", "sub/__pycache__"):
        (folder / name).mkdir(parents=True)
    (folder / ".git/HEAD").write_text("ref")
    (folder / "node_modules/lib/index.js").write_text("made again")
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("run.sh")
    (folder / "away").symlink_to("/nowhere")
    (folder / os.fsdecode(b"caf\xe9")).write_text("latin")
    (folder / "twin").hardlink_to(folder / "run.sh")
    os.mkfifo(folder / "pipe")
    assert workspaces.history is not None
    workspaces.history.look("main")
    tree = store_of(workspaces).tree_at("main")
    assert {path: (entry.type, entry.mode) for path, entry in tree.items() if entry.type is not EntryType.FOLDER} == {
        ".git/HEAD": (EntryType.FILE, 0o644),
        "run.sh": (EntryType.FILE, 0o755),
        "twin": (EntryType.FILE, 0o755),
        "link": (EntryType.LINK, 0o777),
        "away": (EntryType.LINK, 0o777),
        "caf\udce9": (EntryType.FILE, 0o644),
    }
    assert store_of(workspaces).read("main", tree["away"]) == b"/nowhere"
    assert {path for path, entry in tree.items() if entry.type is EntryType.FOLDER} == {
        *("empty", ".git", ".git/objects", "sub")
    }
    (folder / "run.sh").chmod(0o700)
    workspaces.history.look("main")
    assert store_of(workspaces).tree_at("main")["run.sh"].mode == 0o700
    assert store_of(workspaces).last("main") == 2
    workspaces.history.look("main")
    assert store_of(workspaces).last("main") == 2, "nothing has changed"


def test_a_touched_file_is_no_new_version(workspaces: Workspaces, tmp_path: Path) -> None:
    handle = workspaces.create_handle([grant(MAIN, *OPERATIONS)])
    handle.write(MAIN + "a", "same")
    os.utime(tmp_path / "workspaces/main/a", (1, 1))
    (tmp_path / "workspaces/main/a").write_text("same")
    handle.write(MAIN + "a", "next")
    assert [change.kind for change in store_of(workspaces).changes("main")] == [Kind.WRITE, Kind.WRITE]


@everywhere
def test_a_refused_change_is_no_version(workspaces: Workspaces) -> None:
    handle = workspaces.create_handle([grant(MAIN, *OPERATIONS)])
    handle.write(MAIN + "a", "1")
    with pytest.raises(Exception, match="exists"):
        handle.write(MAIN + "a", "2", overwrite=False)
    with pytest.raises(Exception, match="does not have the version"):
        handle.delete(MAIN + "a", version="other")
    assert store_of(workspaces).last("main") == 1


@everywhere
def test_a_large_file_is_recorded_in_chunks(workspaces: Workspaces) -> None:
    data = os.urandom(9 << 20)
    handle = workspaces.create_handle([grant(MAIN, *OPERATIONS)])
    for content in (data, b"begins" + data):
        handle.write_from(MAIN + "big", iter([content[: 1 << 20], content[1 << 20 :]]))
    assert contents(workspaces, 1) == {"big": data}
    assert contents(workspaces, 2) == {"big": b"begins" + data}
    assert store_of(workspaces).usage("main") < len(data) + (2 << 20)
    assert store_of(workspaces).changes("main")[0].kind is Kind.WRITE


@slow_in_a_bucket
def test_many_threads_change_one_workspace(workspaces: Workspaces) -> None:
    """Each file reads back at each of its versions, and the newest tree is what is on the disk."""
    handle = workspaces.create_handle([grant(MAIN, *OPERATIONS)])

    def write(worker: int) -> None:
        for number in range(30):
            handle.write(f"{MAIN}{worker % 3}/f{number % 2}", f"{worker} {number}" * 50)
            if number % 10 == 9:
                handle.copy(f"{MAIN}{worker % 3}", f"{MAIN}copies/{worker}-{number}")

    handle.write(f"{MAIN}copies/x", "")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    store_of(workspaces).check_integrity()
    assert workspaces.history is not None
    before = store_of(workspaces).last("main")
    workspaces.history.look("main")
    assert store_of(workspaces).last("main") == before, "all of it was recorded already"


@pytest.mark.parametrize("kills", [pytest.param(8), pytest.param(60, marks=pytest.mark.slow)])
def test_no_acknowledged_version_is_lost_when_the_process_is_killed(tmp_path: Path, kills: int) -> None:
    program = [sys.executable, "-m", "tests.server.killed_history", str(tmp_path), str(kills)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen["versions"] > kills
    assert (seen["wrong"], seen["current"]) == ([], True)


# -- reading the past -------------------------------------------------------------------------------------------------


@everywhere
async def test_a_file_is_read_as_it_was_in_every_way(server: ServerHarness) -> None:
    url = f"/v1/files{MAIN}note.txt"
    for text in ("first line\nsecond\n", "changed\n"):
        await server.client.put(url, content=text.encode())
    old = {"at": "1"}
    first = await server.client.get(url, params=old)
    assert (first.text, first.headers["etag"] != "") == ("first line\nsecond\n", True)
    assert (await server.client.get(url, params=old, headers={"Range": "bytes=6-9"})).text == "line"
    assert (
        await server.client.get(url, params=old, headers={"If-None-Match": first.headers["etag"]})
    ).status_code == 304
    lines = await server.client.get(url, params=old | {"view": "text", "index": "1", "line": "1"})
    assert lines.text == "second\n"
    matches = await server.client.get(url, params=old | {"view": "matches", "pattern": "[a-z]+ond"})
    assert matches.json()["matches"] == ["second"]
    meta = await server.client.get(url, params=old | {"view": "meta"})
    assert meta.json()["size"] == len(first.content)
    assert (await server.client.get(url)).text == "changed\n"


@everywhere
async def test_a_listing_is_that_of_a_number_or_a_time(server: ServerHarness) -> None:
    await server.client.put(f"/v1/files{MAIN}a", content=b"1")
    await server.client.put("/v1/files/workspaces/other/x", content=b"1")
    after = datetime.now(UTC).isoformat()
    await server.client.delete(f"/v1/files{MAIN}a")
    await server.client.put(f"/v1/files{MAIN}b", content=b"1")

    async def listed(**params: str) -> list[str]:
        answer = await server.client.get("/v1/files", params=params)
        assert answer.status_code == 200, answer.text
        return [file["path"] for file in answer.json()["files"]]

    assert await listed(prefix=MAIN, at="1") == [MAIN + "a"]
    assert await listed(prefix=MAIN, at="2") == []
    assert await listed(at=after) == [MAIN + "a", "/workspaces/other/x"]
    assert await listed(prefix=MAIN, at="2000-01-01") == []


@pytest.mark.parametrize(
    ("path", "at", "words"),
    [
        (f"/v1/files{MAIN}a", "7", "there is no version 7 of 'main': the last is 1"),
        (f"/v1/files{MAIN}a", "x", "neither the number of a change nor a time"),
        (f"/v1/files{MAIN}a", "-1", "neither the number of a change nor a time"),
        ("/v1/files", "1", "name it"),
        ("/v1/files/sessions/main", "1", "not of sessions"),
    ],
)
async def test_a_version_that_is_none_is_refused_in_words(
    server: ServerHarness, path: str, at: str, words: str
) -> None:
    await server.client.put(f"/v1/files{MAIN}a", content=b"1")
    answer = await server.client.get(path, params={"at": at})
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


@everywhere
async def test_changes_are_listed_in_pages_and_for_one_path(server: ServerHarness) -> None:
    for number in range(5):
        await server.client.put(f"/v1/files{MAIN}src/f{number % 2}", content=b"%d" % number)

    async def page(path: str, **params: str) -> Any:
        return (await server.client.get(f"/v1/versions{path}", params=params)).json()

    first = await page(MAIN + "src/f0", limit="2")
    assert [change["number"] for change in first["changes"]] == [5, 3]
    rest = await page(MAIN + "src/f0", limit="2", before=str(first["next"]))
    assert ([change["number"] for change in rest["changes"]], rest["next"]) == ([1], None)
    assert len((await page(MAIN + "src"))["changes"]) == 5
    assert (await page("/workspaces/nothing"))["changes"] == []


def test_the_sdk_reads_the_past(tmp_path: Path) -> None:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server, Client(server.url) as client:
        with api.acting_as("main/coder", "c1"):
            client.call(api.write_file(MAIN + "a", b"1"))
        now = datetime.now(UTC)
        client.call(api.write_file(MAIN + "a", b"2 "))
        assert client.call(api.read_file(MAIN + "a", at=1)).content == b"1"
        assert client.call(api.read_file(MAIN + "a", at=now)).content == b"1"
        assert client.call(api.file(MAIN + "a", at="1")).size == 1
        assert [info.size for info in client.call(api.files(MAIN, at=2)).files] == [2]
        changes = client.call(api.file_changes(MAIN + "a")).changes
        assert [(change.number, change.agent) for change in changes] == [(2, None), (1, "main/coder")]
        client.call(api.forget_versions("/workspaces/main"))
        assert client.call(api.file_changes(MAIN)).last == 1, "what is there is recorded again"
        assert client.call(api.read_file(MAIN + "a")).content == b"2 "


# -- rights -----------------------------------------------------------------------------------------------------------


@everywhere
async def test_the_rights_of_the_present_hold_for_the_past(server: ServerHarness) -> None:
    """Of a change, a caller sees the files that it may see; what it may not is as if it were not there."""
    everything = grant("/", *OPERATIONS)
    async with guests(server, alice=[everything], bob=[grant(MAIN + "shared/", "file", "list", "read")]) as callers:
        alice, bob = callers["alice"].client, callers["bob"].client
        await alice.put(f"/v1/files{MAIN}secret/plans", content=b"hers")
        await alice.put(f"/v1/files{MAIN}shared/note", content=b"1")
        await alice.request("COPY", f"/dav{MAIN}secret", headers={"Destination": f"/dav{MAIN}shared/copy"})
        await alice.put("/v1/files/workspaces/own/x", content=b"1")
        hidden = await bob.get(f"/v1/files{MAIN}secret/plans", params={"at": "1"})
        assert hidden.status_code == 404
        assert (
            hidden.json()["type"] == (await bob.get(f"/v1/files{MAIN}secret/none", params={"at": "1"})).json()["type"]
        )
        assert (await bob.get(f"/v1/files{MAIN}shared/note", params={"at": "2"})).text == "1"
        page = (await bob.get(f"/v1/versions{MAIN}shared/")).json()
        assert [[file["path"] for file in change["files"]] for change in page["changes"]] == [
            [MAIN + "shared/copy", MAIN + "shared/copy/plans"],
            [MAIN + "shared/note"],
        ]
        all_of_it = (await bob.get(f"/v1/versions{MAIN}")).json()
        assert "secret" not in json.dumps(all_of_it)
        assert (await bob.get("/v1/versions/workspaces/own")).status_code == 404
        assert (await bob.delete("/v1/versions/workspaces/main")).status_code in (403, 404)
        listed = (await bob.get("/v1/files", params={"at": datetime.now(UTC).isoformat()})).json()["files"]
        assert [file["path"] for file in listed] == [MAIN + "shared/copy/plans", MAIN + "shared/note"]
        callers["bob"].may()
        assert (await bob.get(f"/v1/files{MAIN}shared/note", params={"at": "2"})).status_code in (401, 404)


# -- what is deleted --------------------------------------------------------------------------------------------------


def holds(folder: Path, data: bytes) -> bool:
    return any(data in file.read_bytes() for file in folder.glob("versions.db*"))


@pytest.mark.parametrize("how", ["session", "workspace", "versions"])
def test_with_what_is_deleted_its_past_is_gone(tmp_path: Path, how: str) -> None:
    """From the file, too. A deleted session leaves the files of its workspace."""
    secret = os.urandom(3000)
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server:
        url = f"{server.url}/v1/files{MAIN}a"
        httpx.put(url, content=secret)
        httpx.put(url, content=b"new")
        httpx.put(f"{server.url}/v1/files/workspaces/other/a", content=b"stays")
        httpx.post(f"{server.url}/v1/sessions", json={"id": "main"})
        assert holds(tmp_path, secret[1000:1100])
        if how == "session":
            assert run_cfs("rm", "main", "--url", server.url).returncode == 0
        elif how == "workspace":
            assert httpx.delete(f"{server.url}/dav/workspaces/main/").status_code == 204
        else:
            assert httpx.delete(f"{server.url}/v1/versions/workspaces/main").status_code == 204
        for _ in range(600):
            if not holds(tmp_path, secret[1000:1100]):
                break
            httpx.get(f"{server.url}/health")
        assert not holds(tmp_path, secret[1000:1100])
        assert httpx.get(url).status_code == (404 if how == "workspace" else 200)
        other = httpx.get(f"{server.url}/v1/files/workspaces/other/a", params={"at": "1"})
        assert other.text == "stays"


async def test_the_past_of_a_session_that_is_over_goes_with_it(server: ServerHarness) -> None:
    """`keep` deletes sessions like `cfs rm`; those below them have no workspace of their own."""
    await server.create("main")
    await server.create("main/coder")
    await server.client.put(f"/v1/files{MAIN}a", content=b"1")
    await server.client.delete("/v1/sessions/main/coder")
    history = server.parts.workspaces.history
    assert history is not None
    assert await asyncio.to_thread(history.store.last, "main") == 1
    server.store.delete("main")
    await until(lambda: not server.parts.store.journal or not server.parts.store.journal.kept("versions.forget"))
    assert await asyncio.to_thread(history.store.last, "main") == 0


def test_the_oldest_versions_make_room_within_a_quota(tmp_path: Path) -> None:
    """The files themselves fill the quota as they do without versions."""
    with serving(*SCRIPTED, "--data-dir", str(tmp_path), "--token-bytes", "200000") as server:
        url = f"{server.url}/v1/files{MAIN}a"
        for _ in range(30):
            assert httpx.put(url, content=os.urandom(60_000)).status_code in (200, 201)
        assert httpx.put(f"{server.url}/v1/files{MAIN}b", content=os.urandom(130_000)).status_code == 201
        assert httpx.put(f"{server.url}/v1/files{MAIN}c", content=os.urandom(20_000)).status_code == 507
        page = httpx.get(f"{server.url}/v1/versions{MAIN}").json()
        assert page["oldest"] > 0
        assert httpx.get(url, params={"at": str(page["oldest"])}).status_code == 200


def test_versions_have_the_limits_of_the_settings(tmp_path: Path) -> None:
    with closing(
        DiskWorkspaces(
            tmp_path / "w", versions=SqliteVersions(tmp_path / "v.db"), retention=VersionRetention(changes=3)
        )
    ) as workspaces:
        handle = workspaces.create_handle([Grant(prefix=MAIN, ops=OPERATIONS)])
        for number in range(10):
            handle.write(MAIN + "a", f"{number}")
        assert workspaces.history is not None
        workspaces.history.prune()
        assert store_of(workspaces).oldest("main") == 7


# -- restarts, and servers without versions -------------------------------------------------------------------------


def test_versions_are_there_after_a_restart(tmp_path: Path) -> None:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server:
        httpx.put(f"{server.url}/v1/files{MAIN}a", content=b"1")
        stop(server)
    assert (tmp_path / "versions.db").stat().st_mode & 0o777 == 0o600
    (tmp_path / "workspaces/main/a").write_text("by hand")
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server:
        httpx.put(f"{server.url}/v1/files{MAIN}a", content=b"3")
        texts = [httpx.get(f"{server.url}/v1/files{MAIN}a", params={"at": f"{at}"}).text for at in (1, 2, 3)]
        assert texts == ["1", "by hand", "3"]


def test_a_server_without_versions_says_so(tmp_path: Path) -> None:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path), "--no-versions") as server, Client(server.url) as client:
        client.call(api.write_file(MAIN + "a", b"1"))
        with pytest.raises(Unsupported, match="versions of files are not kept here: the setting `versions` is off"):
            client.call(api.file_changes(MAIN))
        with pytest.raises(Unsupported):
            client.call(api.read_file(MAIN + "a", at=1))
        assert not (tmp_path / "versions.db").exists()


def stop(server: Process) -> None:
    server.signal(signal.SIGTERM)
    assert server.ended()[0] == 0


# -- the shell --------------------------------------------------------------------------------------------------------


def test_the_shell_lists_prints_and_compares_versions(tmp_path: Path) -> None:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server:

        def cfs(*arguments: str) -> tuple[int, str]:
            ended = run_cfs("files", *arguments, "--url", server.url)
            return ended.returncode, ended.stdout

        for text in ("one\ntwo\n", "one\n2\n"):
            httpx.put(f"{server.url}/v1/files{MAIN}src/a@2x", content=text.encode())
        assert cfs("show", "main/src/a@2x@1") == (0, "one\ntwo\n")
        assert cfs("show", "main/src/a@2x") == (0, "one\n2\n")
        code, log = cfs("log", "main")
        assert (code, [line.split()[:1] for line in log.splitlines()]) == (0, [["2"], ["1"]])
        assert log.splitlines()[1].endswith("src/, src/a@2x")
        assert cfs("diff", "main@1", "main@2") == (
            1,
            "--- main/src/a@2x\t1\n+++ main/src/a@2x\t2\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n",
        )
        assert cfs("diff", "main@2") == (0, "")
        assert cfs("ls", "main@1")[1].split()[0] == "8"
        assert json.loads(cfs("log", "main", "--limit", "1", "--json")[1])["number"] == 2
        assert cfs("show", "main/src/a@2x@9")[0] == 1
        unknown = run_cfs("files", "ls", "mian", "--url", server.url)
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "there are no files at mian" in unknown.stderr
