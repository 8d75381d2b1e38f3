"""Files go back with the sessions whose agents have changed them, and come back with `redo` (S17)."""

import json
import os
import random
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs import Session, api
from cfs.api import AGENT
from cfs.transports.http import Client
from cfs.wire import NewMessage, RedoRequest, RewindRequest
from cfs_filesystem.versions import SqliteVersions, VersionRetention
from cfs_server.journal.journal import Journal
from cfs_server.journal.sqlite import SqliteBackend
from tests.access.support import make
from tests.server.places import BucketFolder, Folder, digests, everywhere, slow_in_a_bucket
from tests.server.restarting import Restarting, send_once
from tests.server.support import ServerHarness, running_server, serving


@asynccontextmanager
async def stored(folder: Path, files: Folder | None = None) -> AsyncIterator[ServerHarness]:
    journal = Journal(SqliteBackend(folder / "sessions.db"))
    await journal.open()
    workspaces = str(files) if isinstance(files, BucketFolder) else None
    try:
        async with running_server(journal=journal, data_dir=folder, workspaces=workspaces, may_block=True) as server:
            yield server
    finally:
        await journal.close()


@pytest.fixture
async def server(tmp_path: Path, files: Folder) -> AsyncIterator[ServerHarness]:
    """A server that keeps sessions and versions in a folder, and files there or in a bucket."""
    async with stored(tmp_path, files) as running:
        yield running


async def put(server: ServerHarness, path: str, content: str, agent: str | None = "main") -> None:
    """Write a file as an agent, or as the user."""
    headers = {} if agent is None else {AGENT: agent}
    answer = await server.client.put(f"/v1/files/workspaces/{path}", content=content, headers=headers)
    assert answer.status_code < 300, answer.text


async def remove(server: ServerHarness, path: str, agent: str = "main") -> None:
    answer = await server.client.delete(f"/v1/files/workspaces/{path}", headers={AGENT: agent})
    assert answer.status_code < 300, answer.text


async def said(server: ServerHarness, session: str, text: str) -> int:
    """Add a message; return its version."""
    assert (await server.say(session, text, wait="true")).status_code == 200
    return server.store.get(session).history.version


async def rewind(server: ServerHarness, session: str, to: int, **how: Any) -> httpx.Response:
    return await server.client.post(f"/v1/sessions/{session}/rewind", json={"to": to, **how})


async def redo(server: ServerHarness, session: str, **how: Any) -> httpx.Response:
    return await server.client.post(f"/v1/sessions/{session}/redo", json=how)


def tree(folder: Folder) -> dict[str, Any]:
    """Everything below a folder, with contents, permissions and targets of links."""
    if isinstance(folder, BucketFolder):
        return folder.tree()
    result: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            result[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            result[name] = ("folder", path.stat().st_mode & 0o777)
        else:
            result[name] = ("file", path.stat().st_mode & 0o777, path.read_bytes())
    return result


@everywhere
async def test_files_go_back_with_the_messages_and_come_back(server: ServerHarness, files: Folder) -> None:
    workspace = files / "main"
    await put(server, "main/a.txt", "one")
    await put(server, "main/gone.txt", "was here")
    there = await said(server, "main", "first")
    before = tree(workspace)
    await put(server, "main/a.txt", "two")
    await put(server, "main/sub/b.txt", "new")
    await remove(server, "main/gone.txt")
    await said(server, "main", "second")
    after = tree(workspace)
    planned = (await rewind(server, "main", there, dry_run=True)).json()
    assert tree(workspace) == after
    done = (await rewind(server, "main", there)).json()
    assert tree(workspace) == before
    assert (
        done["files"]
        == planned["files"]
        == [
            {"path": "/workspaces/main/a.txt", "change": "restored"},
            {"path": "/workspaces/main/gone.txt", "change": "restored"},
            {"path": "/workspaces/main/sub", "change": "removed"},
            {"path": "/workspaces/main/sub/b.txt", "change": "removed"},
        ]
    )
    back = (await redo(server, "main")).json()
    assert (tree(workspace), len(back["files"])) == (after, 4)
    assert (await server.client.get("/v1/sessions/main")).json()["messages"] == 4


async def test_what_has_gone_back_is_found_and_what_has_left_is_not(server: ServerHarness) -> None:
    async def hits(word: str) -> int:
        answer = await server.client.get("/v1/search", params={"q": word})
        return sum(result["kind"] == "file" for result in answer.json()["results"])

    await put(server, "main/a.txt", "apricot")
    there = await said(server, "main", "first")
    await put(server, "main/a.txt", "banana")
    await said(server, "main", "second")
    assert (await hits("apricot"), await hits("banana")) == (0, 1)
    assert (await rewind(server, "main", there)).status_code == 200
    assert (await hits("apricot"), await hits("banana")) == (1, 0)


@everywhere
async def test_only_files_or_only_messages_go_back(server: ServerHarness, files: Folder) -> None:
    workspace = files / "main"
    await put(server, "main/a.txt", "one")
    there = await said(server, "main", "first")
    await put(server, "main/a.txt", "two")
    await said(server, "main", "second")
    assert (await rewind(server, "main", there, messages=False)).status_code == 200
    assert ((workspace / "a.txt").read_text(), await count(server)) == ("one", 4)
    assert (await redo(server, "main")).status_code == 200
    assert ((workspace / "a.txt").read_text(), await count(server)) == ("two", 4)
    assert (await rewind(server, "main", there, files=False)).status_code == 200
    assert ((workspace / "a.txt").read_text(), await count(server)) == ("two", 2)
    assert (await rewind(server, "main", there, files=False, messages=False)).status_code == 422


async def count(server: ServerHarness) -> int:
    """The number of messages of the session."""
    messages: int = (await server.client.get("/v1/sessions/main")).json()["messages"]
    return messages


@pytest.mark.parametrize("other", [None, "main/helper", "outside"])
@everywhere
async def test_what_somebody_else_has_changed_since_is_refused_with_a_list(
    server: ServerHarness, files: Folder, other: str | None
) -> None:
    """A user, another agent, or a program on the disk; then theirs stays, or goes back as well."""
    workspace = files / "main"
    await put(server, "main/shared.txt", "one")
    await put(server, "main/own.txt", "one")
    there = await said(server, "main", "first")
    await put(server, "main/shared.txt", "two")
    await put(server, "main/own.txt", "two")
    if other == "outside":
        (workspace / "shared.txt").write_text("two, and mine")
    else:
        await put(server, "main/shared.txt", "two, and mine", other)
    before, messages = tree(workspace), await count(server)
    refused = await rewind(server, "main", there)
    assert (refused.status_code, refused.json()["files"]) == (409, ["shared.txt"])
    assert "theirs" in refused.json()["detail"]
    assert (tree(workspace), await count(server)) == (before, messages)
    left = (await rewind(server, "main", there, others="theirs")).json()
    assert left["left"] == ["/workspaces/main/shared.txt"]
    assert ((workspace / "shared.txt").read_text(), (workspace / "own.txt").read_text()) == ("two, and mine", "one")
    assert (await redo(server, "main")).status_code == 200
    assert tree(workspace) == before
    assert (await rewind(server, "main", there, others="ours")).status_code == 200
    assert (workspace / "shared.txt").read_text() == "one"
    assert (await redo(server, "main")).status_code == 200
    assert tree(workspace) == before


@everywhere
async def test_a_file_that_somebody_has_put_in_place_of_a_folder_is_in_the_way(
    server: ServerHarness, files: Folder
) -> None:
    """It stays, and what was in the folder with it, or it goes back as well."""
    workspace = files / "main"
    await put(server, "main/own.txt", "one")
    await put(server, "main/d/a.txt", "one")
    there = await said(server, "main", "first")
    first = tree(workspace)
    await put(server, "main/own.txt", "two")
    await remove(server, "main/d/a.txt")
    await put(server, "main/d", "mine", None)
    before = tree(workspace)
    refused = await rewind(server, "main", there)
    assert (refused.status_code, refused.json()["files"]) == (409, ["d"])
    left = (await rewind(server, "main", there, others="theirs")).json()
    assert left["left"] == ["/workspaces/main/d", "/workspaces/main/d/a.txt"]
    assert {name: entry[2] for name, entry in tree(workspace).items()} == {"own.txt": b"one", "d": b"mine"}
    assert (await redo(server, "main")).status_code == 200
    assert tree(workspace) == before
    assert (await rewind(server, "main", there, others="ours")).json()["left"] == []
    assert tree(workspace) == first
    assert (await redo(server, "main")).status_code == 200
    assert tree(workspace) == before


@everywhere
async def test_the_work_of_others_in_other_files_stays(server: ServerHarness, files: Folder) -> None:
    """Of a user, and of three children of which one is rewound."""
    workspace = files / "main"
    children = {f"main/{name}": await said(server, f"main/{name}", "go") for name in "abc"}
    for name in children:
        await put(server, f"{name}.txt", name, name)
        await said(server, name, "more")
    await put(server, "main/user.txt", "mine", None)
    before = tree(workspace)
    assert (await rewind(server, "main/b", children["main/b"])).status_code == 200
    assert tree(workspace) == {name: entry for name, entry in before.items() if name != "b.txt"}
    assert (await redo(server, "main/b")).status_code == 200
    assert tree(workspace) == before


@everywhere
async def test_a_rewind_names_the_files_of_sub_sessions_that_stay(server: ServerHarness, files: Folder) -> None:
    """Not those that are as they were, and with the sub-sessions they go back."""
    there = await said(server, "main", "first")
    await said(server, "main/a", "go")
    await put(server, "main/a.txt", "one", "main/a")
    await put(server, "main/passing.txt", "one", "main/a")
    await remove(server, "main/passing.txt", "main/a")
    await put(server, "main/other.txt", "one", "mainland")
    await said(server, "main", "second")
    preview = (await rewind(server, "main", there, dry_run=True)).json()
    assert preview["lasting"] == [
        "Files that sub-sessions have changed stay: a.txt (by main/a). A rewind with sub-sessions takes them back."
    ]
    await put(server, "main/a.txt", "two")
    refused = await rewind(server, "main", there)
    assert (refused.status_code, "or rewind the sub-sessions, too" in refused.text) == (409, True)
    done = (await rewind(server, "main", there, sub_sessions=True)).json()
    assert (done["lasting"], sorted(tree(files / "main"))) == ([], ["other.txt"])


@everywhere
async def test_a_turn_that_changed_nothing_undone_changes_nothing(server: ServerHarness, files: Folder) -> None:
    await put(server, "main/a.txt", "one")
    there = await said(server, "main", "first")
    await said(server, "main", "only words")
    await put(server, "main/user.txt", "mine", None)
    before = tree(files / "main")
    done = (await rewind(server, "main", there)).json()
    assert (tree(files / "main"), done["files"], done["left"]) == (before, [], [])


async def test_links_permissions_and_empty_folders_come_back(server: ServerHarness, tmp_path: Path) -> None:
    """What commands make on the disk is seen when an agent's request follows, and goes back byte for byte."""
    workspace = tmp_path / "workspaces/main"
    await put(server, "main/script.sh", "echo hello")
    (workspace / "script.sh").chmod(0o755)
    (workspace / "empty").mkdir()
    (workspace / "link").symlink_to("script.sh")
    (workspace / os.fsdecode(b"\xff\xfe")).write_bytes(b"odd name")
    await server.client.get("/v1/versions/workspaces/main")  # which records what programs have made
    there = await said(server, "main", "first")
    before = tree(workspace)
    await put(server, "main/script.sh", "echo other")
    await remove(server, "main/script.sh")
    await put(server, "main/script.sh", "a new one")
    assert (await rewind(server, "main", there)).status_code == 200
    assert tree(workspace) == before


async def test_without_the_right_to_the_files_only_the_messages_go_back(tmp_path: Path) -> None:
    """The answer says so. Only files is refused."""
    tokens = tmp_path / "tokens.toml"
    owner, writer = make(tokens, "owner", "/"), make(tokens, "writer", "/sessions")
    async with running_server(may_block=True, tokens=tokens) as server:
        server.client.headers["Authorization"] = f"Bearer {owner}"
        await put(server, "main/a.txt", "one")
        there = await said(server, "main", "first")
        await put(server, "main/a.txt", "two")
        await said(server, "main", "second")
        server.client.headers["Authorization"] = f"Bearer {writer}"
        refused = await rewind(server, "main", there, messages=False)
        assert (refused.status_code, "a.txt" in refused.text) == (403, False)
        done = (await rewind(server, "main", there)).json()
        assert (done["files"], [sentence[:16] for sentence in done["lasting"]]) == ([], ["Files stay as th"])
        server.client.headers["Authorization"] = f"Bearer {owner}"
        assert (await server.client.get("/v1/files/workspaces/main/a.txt")).text == "two"
        assert await count(server) == 2


async def test_files_go_back_without_a_store_and_not_without_versions() -> None:
    async with running_server(may_block=True) as server:  # which keeps no folder, and versions in memory
        await put(server, "main/a.txt", "one")
        there = await said(server, "main", "first")
        await put(server, "main/a.txt", "two")
        await said(server, "main", "second")
        assert (await rewind(server, "main", there)).json()["files"] != []
        assert (await server.client.get("/v1/files/workspaces/main/a.txt")).text == "one"
    async with running_server(versions=False) as server:
        await put(server, "main/a.txt", "one")
        there = await said(server, "main", "first")
        await put(server, "main/a.txt", "two")
        refused = await rewind(server, "main", there, messages=False)
        assert (refused.status_code, "versions of files are not kept" in refused.json()["detail"]) == (501, True)


async def plan(folder: Path, workspace: str, path: str, *, to: int) -> None:
    """Note a rewind as a server does that is killed before the files follow."""
    journal = Journal(SqliteBackend(folder / "sessions.db"))
    await journal.open()
    by = {"agent": workspace, "principal": "local"}
    noted = {"workspace": workspace, "to": to, "before": to + 1, "paths": [path], **by}
    journal.keep("workspaces.rewind", "operation", json.dumps(noted))
    await journal.close()


async def test_a_rewind_that_cannot_be_finished_does_not_concern_others(tmp_path: Path) -> None:
    """The disk refuses one of its paths."""
    async with stored(tmp_path) as server:
        await put(server, "other/a.txt", "one")
    await plan(tmp_path, "other", "x" * 300, to=1)
    async with stored(tmp_path) as server:
        await put(server, "main/a.txt", "one")
        there = await said(server, "main", "first")
        await put(server, "main/a.txt", "two")
        done = await rewind(server, "main", there)
        assert (done.status_code, (tmp_path / "workspaces/main/a.txt").read_text()) == (200, "one"), done.text


async def test_a_rewind_whose_past_is_gone_does_not_prevent_the_start(tmp_path: Path) -> None:
    """The server was killed before the files followed, and then lost the versions that it needs."""
    async with stored(tmp_path) as server:
        for text in ("one", "two"):
            await put(server, "main/a.txt", text)
    with closing(SqliteVersions(tmp_path / "versions.db")) as versions:
        versions.prune("main", VersionRetention(changes=0))
    await plan(tmp_path, "main", "a.txt", to=1)
    async with stored(tmp_path) as server:
        there = await said(server, "main", "first")
        await put(server, "main/a.txt", "three")
        assert (await rewind(server, "main", there)).status_code == 200
        assert (tmp_path / "workspaces/main/a.txt").read_text() == "two"


@pytest.mark.external
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [6, pytest.param(1000, marks=pytest.mark.slow)])
@slow_in_a_bucket
def test_files_and_messages_are_both_as_before_or_both_as_after(here: Restarting, files: Folder, kills: int) -> None:
    """The server is killed as a rewind or redo begins, when files change, after the answer, and at random moments."""
    chance, workspace = random.Random(5), files / "main"
    names = [f"f{number}.txt" for number in range(20)]
    write(here, names, "old")
    here.direct.call(api.post("main", NewMessage(content="first", role="assistant")))
    write(here, [*names[10:], "new/x.txt"], "new")
    here.direct.call(api.post("main", NewMessage(content="second", role="assistant")))
    seen = set()
    for number in range(kills):
        state, before = (messages(here), tree(workspace)), digests(workspace)
        call = api.rewind("main", RewindRequest(to=1)) if state[0] == 2 else api.redo("main", RedoRequest())
        asking = threading.Thread(target=send_once, args=(here.process.url, call))
        asking.start()
        while number % 4 == 1 and asking.is_alive() and digests(workspace) == before:
            time.sleep(0.001)
        if number % 4 == 2:
            asking.join()
        if number % 4 == 3:
            time.sleep(chance.uniform(0, 0.06))
        here.kill()
        asking.join()
        here.start()
        now = (messages(here), tree(workspace))
        seen.add(now == state)
        contents = {entry[2] for name, entry in now[1].items() if name in names[10:]}
        assert contents == ({b"new"} if now[0] == 2 else {b"old"})
        assert ("new/x.txt" in now[1]) is (now[0] == 2)
    assert seen == {True, False}, "the kills came too early or too late"


def write(here: Restarting, names: list[str], content: str) -> None:
    """Write files as the agent of the session."""
    with api.acting_as("main"), Client(here.process.url) as client:
        for name in names:
            client.call(api.write_file(f"/workspaces/main/{name}", content.encode()))


def messages(here: Restarting) -> int:
    """The number of messages of the session."""
    with Session("main", url=here.process.url) as session:
        return len(session.history)


TURNED_CLOCK = Path(__file__).with_name("turned_clock")


def test_files_go_back_when_the_clock_was_set_back_since(tmp_path: Path) -> None:
    """Changes have no earlier time than the message before them."""
    clock = tmp_path / "clock"
    turn(clock, 0)
    env = {"PYTHONPATH": str(TURNED_CLOCK), "CLOCK_FILE": str(clock)}
    flags = ("--engine", "scripted", "--data-dir", str(tmp_path / "data"))
    with serving(*flags, **env) as server, httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:

        def write(name: str, content: str) -> None:
            headers = {AGENT: "main"}
            client.put(f"/v1/files/workspaces/main/{name}", content=content, headers=headers).raise_for_status()

        write("a.txt", "one")
        client.post("/v1/sessions/main/messages?wait=true", content=b"first").raise_for_status()
        there = client.get("/v1/sessions/main/versions").json()["versions"][-1]["number"]
        turn(clock, -3600)
        write("a.txt", "two")
        write("b.txt", "new")
        client.post("/v1/sessions/main/rewind", json={"to": there}).raise_for_status()
        files = {path.name: path.read_text() for path in (tmp_path / "data/workspaces/main").iterdir()}
        assert files == {"a.txt": "one"}


def turn(clock: Path, seconds: int) -> None:
    """Let the clock of the server be wrong by some seconds."""
    new = clock.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(clock)
