"""A copy of a session has a copy of its files, with their past, or says why not (S14)."""

import os
import random
import threading
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from anyio import create_task_group

from cfs import api
from cfs.transports.http import Client
from cfs.wire import NewMessage
from tests.access.support import gated, make
from tests.server.places import Folder, everywhere, slow_in_a_bucket
from tests.server.restarting import Restarting, send_once
from tests.server.support import ServerHarness
from tests.server.test_rewound_files import put, remove, rewind, said, stored, tree


@pytest.fixture
async def server(tmp_path: Path, files: Folder) -> AsyncIterator[ServerHarness]:
    """A server that keeps sessions and versions in a folder, and files there or in a bucket."""
    async with stored(tmp_path, files) as running:
        yield running


async def fork(server: ServerHarness, **how: object) -> dict[str, object]:
    answer = await server.client.post("/v1/sessions/main/fork", json=how)
    assert answer.status_code == 201, answer.text
    result: dict[str, object] = answer.json()
    return result


async def numbers(server: ServerHarness, workspace: str) -> list[int]:
    """The changes of a workspace, the newest first."""
    answer = await server.client.get(f"/v1/versions/workspaces/{workspace}")
    return [change["number"] for change in answer.json()["changes"]]


async def test_a_copy_has_everything_in_the_folder_and_is_independent(server: ServerHarness, tmp_path: Path) -> None:
    """Also what no version has: ignored folders. Links, permissions, bytes in names and empty folders stay."""
    await said(server, "main", "first")
    await put(server, "main/a.txt", "one")
    await put(server, "main/a.txt", "two")
    folder = tmp_path / "workspaces/main"
    (folder / "node_modules").mkdir()
    (folder / "node_modules/x.js").write_text("x")
    (folder / "empty").mkdir(mode=0o750)
    (folder / "link").symlink_to("a.txt")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / os.fsdecode(b"\xff.bin")).write_bytes(bytes(100_000))
    os.link(folder / "a.txt", folder / "second-name")
    before = tree(folder)
    assert (await fork(server))["warnings"] == []
    copy = tmp_path / "workspaces/main-2"
    assert tree(copy) == before == tree(folder)
    assert await numbers(server, "main-2") == await numbers(server, "main")
    past = await server.client.get("/v1/files/workspaces/main-2/a.txt", params={"at": 1})
    assert past.text == "one"
    await put(server, "main-2/a.txt", "its own", agent="main-2")
    assert ((copy / "a.txt").read_text(), (folder / "a.txt").read_text()) == ("its own", "two")
    assert not list((tmp_path / "workspaces").glob(".cfs*"))


@everywhere
async def test_a_copy_of_the_first_messages_has_the_files_of_that_time(server: ServerHarness, files: Folder) -> None:
    """It can be taken back like any session; what the original did later is a past that it shares."""
    await put(server, "main/a.txt", "one")
    await put(server, "main/gone.txt", "was here")
    await said(server, "main", "first")
    before = tree(files / "main")
    await put(server, "main/a.txt", "two")
    await put(server, "main/new.txt", "new")
    assert (await server.client.delete("/v1/files/workspaces/main/gone.txt")).status_code == 204
    await said(server, "main", "second")
    assert (await fork(server, messages=2))["warnings"] == []
    copy = files / "main-2"
    assert tree(copy) == before
    await put(server, "main-2/a.txt", "three", agent="main-2")
    await said(server, "main-2", "third")
    assert (await rewind(server, "main-2", 0)).status_code == 200
    assert tree(copy) == before


@everywhere
async def test_a_copy_of_the_past_has_files_of_which_none_is_left(server: ServerHarness, files: Folder) -> None:
    """A bucket has nothing of such a workspace but its past."""
    await put(server, "main/a.txt", "one")
    await said(server, "main", "first")
    await remove(server, "main/a.txt")
    await said(server, "main", "second")
    assert (await fork(server, messages=2))["warnings"] == []
    assert (files / "main-2/a.txt").read_text() == "one"


async def test_files_stay_where_they_are_if_they_are_not_wanted(server: ServerHarness, tmp_path: Path) -> None:
    await said(server, "main", "first")
    await put(server, "main/a.txt", "one")
    assert (await fork(server, files=False))["warnings"] == []
    assert not (tmp_path / "workspaces/main-2").exists()


@everywhere
async def test_files_of_the_name_stay_and_the_copy_says_so(server: ServerHarness, files: Folder) -> None:
    """Without a name the copy gets one that no files have."""
    await said(server, "main", "first")
    await put(server, "main/a.txt", "one")
    await put(server, "main-2/a.txt", "another")
    copy = await fork(server, id="main-2")
    assert copy["warnings"] == ["files are not copied: /workspaces/main-2 exists already"]
    assert (files / "main-2/a.txt").read_text() == "another"
    await server.client.delete("/v1/sessions/main-2")
    assert (await fork(server))["id"] == "main-3"


@everywhere
async def test_a_copy_gets_the_name_of_a_deleted_session_and_none_of_its_past(
    server: ServerHarness, files: Folder
) -> None:
    """Its empty folder makes room, also at once after the deletion. The name of a session that is there does not."""
    await said(server, "main", "first")
    await put(server, "main/a.txt", "one")
    for _ in range(5):
        await fork(server, id="main-2")
        await put(server, "main-2/secret.txt", "of the old one", "main-2")
        for name in ("secret.txt", "a.txt"):
            await remove(server, f"main-2/{name}", "main-2")
        refused = await server.client.post("/v1/sessions/main/fork", json={"id": "main-2"})
        assert refused.status_code == 409, refused.text
        assert await numbers(server, "main-2") == [4, 3, 2, 1]
        assert (await server.client.delete("/v1/sessions/main-2")).status_code == 204
    copy = await fork(server, id="main-2")
    assert copy["warnings"] == []
    assert (files / "main-2/a.txt").read_text() == "one"
    changes = (await server.client.get("/v1/versions/workspaces/main-2")).json()["changes"]
    assert "secret.txt" not in str(changes)
    assert [change["kind"] for change in changes] == ["write"]


@everywhere
async def test_copies_made_at_the_same_time_get_names_of_their_own(server: ServerHarness, files: Folder) -> None:
    await said(server, "main", "first")
    await put(server, "main/a.txt", "one")
    async with create_task_group() as group:
        for _ in range(5):
            group.start_soon(fork, server)
    names = sorted(path.name for path in files.iterdir())
    assert names == ["main", *(f"main-{number}" for number in range(2, 7))]


async def test_a_name_is_taken_while_the_files_of_a_copy_are_made(server: ServerHarness) -> None:
    """Otherwise the session would be made without them, and the other copy would remove its own."""
    await said(server, "main", "first")
    await put(server, "main/a.txt", "one")
    forks = server.parts.forks
    assert forks is not None
    async with forks.forked("main", "main-2", None, lambda _: nullcontext(), vacant=True) as missing:
        assert missing == ""
        answer = await server.client.post("/v1/sessions/main/fork", json={"id": "main-2"})
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:cfs:error:already-exists")
        assert (await server.client.post("/v1/sessions/main/fork", json={})).json()["id"] == "main-3"
    assert (await server.client.get("/v1/files/workspaces/main-3/a.txt")).text == "one"


async def test_a_copy_of_a_sub_session_gets_a_name_beside_it(server: ServerHarness) -> None:
    """It shares the workspace of its root."""
    await said(server, "main", "first")
    await said(server, "main/coder", "first")
    await put(server, "main/a.txt", "one")
    answer = await server.client.post("/v1/sessions/main/coder/fork", json={})
    assert (answer.json()["id"], answer.json()["warnings"]) == ("main/coder-2", [])


@everywhere
async def test_a_copy_that_fails_leaves_no_files(server: ServerHarness, files: Folder) -> None:
    await said(server, "main", "first")
    await put(server, "main/a.txt", "one")
    assert (await server.say("copy", "there is one")).status_code < 300
    assert (await server.client.post("/v1/sessions/main/fork", json={"id": "copy"})).status_code == 409
    assert (await server.client.post("/v1/sessions/main/fork", json={"id": "n", "messages": 9})).status_code == 409
    assert sorted(path.name for path in files.iterdir()) == ["main"]
    assert (await numbers(server, "n"), await numbers(server, "copy")) == ([], [])


@everywhere
async def test_webdav_copies_the_files(server: ServerHarness, files: Folder) -> None:
    await said(server, "main", "first")
    await put(server, "main/a.txt", "one")
    target = {"Destination": f"{server.url}/dav/sessions/dav"}
    assert (await server.client.request("COPY", "/dav/sessions/main", headers=target)).status_code == 201
    assert (files / "dav/a.txt").read_text() == "one"


@pytest.mark.parametrize(
    ("grants", "reason"),
    [
        ([], None),
        (["/workspaces/main/sub/"], "that takes the right to read all of /workspaces/main"),
        (["/workspaces/main/"], "that takes the right to write all of /workspaces/copy"),
        (["/workspaces/main/=read,file,list", "/workspaces/copy/"], ""),
    ],
)
async def test_files_need_rights_to_all_of_both_workspaces(
    tmp_path: Path, grants: list[str], reason: str | None
) -> None:
    """Who has no right at all to the files learns nothing of them."""
    file = tmp_path / "tokens.json"
    secrets = {"owner": make(file, "owner", "/"), "other": make(file, "other", "/sessions/", *grants)}
    async with gated(file, secrets, data_dir=tmp_path, may_block=True) as gate:
        answer = await gate["owner"].put("/v1/files/workspaces/main/sub/a.txt", content="one")
        assert answer.status_code == 201
        await gate["owner"].post("/v1/sessions", json={"id": "main"})
        copied = (await gate["other"].post("/v1/sessions/main/fork", json={"id": "copy"})).json()
        assert copied["warnings"] == ([f"files are not copied: {reason}"] if reason else [])
        assert (tmp_path / "workspaces/copy/sub/a.txt").exists() is (reason == "")


async def test_files_beyond_the_quota_make_no_copy(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    async with gated(file, {"a": make(file, "a", "/", bytes=5000)}, data_dir=tmp_path, may_block=True) as gate:
        client = gate["a"]
        await client.post("/v1/sessions", json={"id": "main"})
        assert (await client.put("/v1/files/workspaces/main/a.txt", content="x" * 3000)).status_code == 201
        refused = await client.post("/v1/sessions/main/fork", json={"id": "copy"})
        assert refused.status_code == 507, refused.text
        assert (await client.get("/v1/sessions/copy")).status_code == 404
        assert not (tmp_path / "workspaces/copy").exists()
        alone = await client.post("/v1/sessions/main/fork", json={"id": "copy", "files": False})
        assert alone.json()["warnings"] == []


@pytest.mark.external
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [6, pytest.param(1000, marks=pytest.mark.slow)])
@slow_in_a_bucket
def test_session_and_files_are_both_there_or_neither(here: Restarting, files: Folder, kills: int) -> None:
    """The server is killed at random moments of forks, just when the files are there, and after the answer."""
    chance, folder = random.Random(7), files
    with Client(here.process.url) as client:
        for number in range(20):
            client.call(api.write_file(f"/workspaces/main/f{number}.txt", b"content"))
        client.call(api.post("main", NewMessage(content="first", role="assistant")))
    whole, seen = tree(folder / "main"), set()
    for number in range(kills):
        asking = threading.Thread(target=send_once, args=(here.process.url, api.fork("main", f"copy{number}")))
        asking.start()
        if number % 3 == 0:
            time.sleep(chance.uniform(0, 0.08))
        while number % 3 == 1 and asking.is_alive() and not (folder / f"copy{number}").exists():
            time.sleep(0.001)
        if number % 3 == 2:
            asking.join()
        here.kill()
        asking.join()
        here.start()
        copy = folder / f"copy{number}"
        with Client(here.process.url) as client:
            names = {session.id for session in client.call(api.list_sessions(limit=1000)).sessions}
            changes = client.call(api.file_changes(f"/workspaces/copy{number}")).changes
        made = f"copy{number}" in names
        assert (tree(copy) if copy.exists() else None) == (whole if made else None)
        assert bool(changes) is made
        assert not [path.name for path in folder.iterdir() if path.name.startswith(".cfs")]
        seen.add(made)
    assert seen == {True, False}, "the kills came too early or too late"
