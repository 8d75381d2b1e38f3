"""The files of a copy are merged back into the original, three-way, and no content is lost (S14)."""

import random
import threading
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs import api
from cfs.transports.http import Client
from cfs.wire import NewMessage
from tests.access.support import gated, make
from tests.server.places import BucketFolder, Folder, digests, everywhere, slow_in_a_bucket
from tests.server.restarting import Restarting, send_once
from tests.server.support import ServerHarness
from tests.server.test_forked_files import fork
from tests.server.test_rewound_files import put, redo, remove, rewind, said, stored, tree

TEXT = "1\n2\n3\n4\n5\n"


@pytest.fixture
async def server(tmp_path: Path, files: Folder) -> AsyncIterator[ServerHarness]:
    """A server that keeps sessions and versions in a folder, and files there or in a bucket."""
    async with stored(tmp_path, files) as running:
        yield running


async def merge(server: ServerHarness, target: str, source: str, *, dry_run: bool = False) -> dict[str, Any]:
    answer = await asked(server, target, source, dry_run=dry_run)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def asked(server: ServerHarness, target: str, source: str, **how: object) -> httpx.Response:
    return await server.client.post(f"/v1/versions/workspaces/{target}", json={"source": source, **how})


def contents(folder: Folder) -> dict[str, str]:
    if isinstance(folder, BucketFolder):
        return {name: data.decode() for name, data in folder.objects().items()}
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


async def test_changes_of_both_come_together(server: ServerHarness, tmp_path: Path) -> None:
    """Files that the original has not changed, and lines of the same file; links, permissions and removals, too."""
    main, copy = tmp_path / "workspaces/main", tmp_path / "workspaces/main-2"
    await said(server, "main", "first")
    for name in ("both.txt", "copy.txt", "main.txt", "gone.txt"):
        await put(server, f"main/{name}", TEXT)
    await fork(server)
    await put(server, "main/both.txt", TEXT.replace("1", "one"))
    await put(server, "main/main.txt", "of main\n")
    await put(server, "main-2/both.txt", TEXT.replace("5", "five"), "main-2")
    await put(server, "main-2/copy.txt", "of the copy\n", "main-2")
    await put(server, "main-2/new/file.txt", "new\n", "main-2")
    (copy / "link").symlink_to("copy.txt")
    (copy / "main.txt").chmod(0o755)
    (copy / "gone.txt").unlink()
    before, other = tree(main), tree(copy)
    planned = await merge(server, "main", "main-2", dry_run=True)
    assert (planned["number"], tree(main)) == (None, before)
    done = await merge(server, "main", "main-2")
    assert {file["path"]: file["change"] for file in done["files"]} == {
        "both.txt": "merged",
        "copy.txt": "changed",
        "gone.txt": "removed",
        "link": "added",
        "main.txt": "changed",
        "new": "added",
        "new/file.txt": "added",
    }
    assert (planned["files"], done["conflicts"], done["left"]) == (done["files"], [], [])
    assert (main / "both.txt").read_text() == "one\n2\n3\n4\nfive\n"
    assert ((main / "main.txt").read_text(), (main / "main.txt").stat().st_mode & 0o777) == ("of main\n", 0o755)
    assert ((main / "link").readlink(), (main / "gone.txt").exists()) == (Path("copy.txt"), False)
    assert tree(copy) == other
    (newest, *_) = (await server.client.get("/v1/versions/workspaces/main")).json()["changes"]
    assert (newest["number"], newest["kind"], newest["agent"]) == (done["number"], "merge", "main")
    assert newest["tool_call"].startswith("main-2@")
    again = await merge(server, "main", "main-2")
    assert (again["files"], again["number"]) == ([], None)


@everywhere
async def test_a_conflict_keeps_both_sides(server: ServerHarness, files: Folder) -> None:
    await said(server, "main", "first")
    await put(server, "main/a.txt", TEXT)
    await fork(server)
    await put(server, "main/a.txt", "of main\n")
    await put(server, "main-2/a.txt", "of the copy\n", "main-2")
    names = ["a.txt", "a.txt.conflict-main", "a.txt.conflict-main-2"]
    done = await merge(server, "main", "main-2")
    assert done["conflicts"] == [{"path": "a.txt", "reason": "changed", "files": names}]
    assert contents(files / "main") == dict(zip(names, ("of main\n", "of main\n", "of the copy\n"), strict=True))


@everywhere
async def test_a_copy_without_any_file_is_merged(server: ServerHarness, files: Folder) -> None:
    """A bucket has nothing of it but its past. Into it, too."""
    await said(server, "main", "first")
    await put(server, "main/a.txt", TEXT)
    await fork(server)
    await remove(server, "main-2/a.txt", "main-2")
    assert [file["change"] for file in (await merge(server, "main", "main-2"))["files"]] == ["removed"]
    assert contents(files / "main") == {}
    await put(server, "main-2/b.txt", TEXT, "main-2")
    await merge(server, "main", "main-2")
    assert contents(files / "main") == {"b.txt": TEXT}


@everywhere
async def test_a_later_merge_has_what_was_merged_as_its_base(server: ServerHarness, files: Folder) -> None:
    """In both directions: what came over is no conflict any more."""
    await said(server, "main", "first")
    await put(server, "main/a.txt", TEXT)
    await fork(server)
    await put(server, "main-2/a.txt", TEXT.replace("1", "one"), "main-2")
    await merge(server, "main", "main-2")
    await put(server, "main-2/a.txt", TEXT.replace("1", "eins"), "main-2")
    await put(server, "main/a.txt", TEXT.replace("1", "one").replace("5", "five"))
    assert (await merge(server, "main", "main-2"))["conflicts"] == []
    assert (files / "main/a.txt").read_text() == "eins\n2\n3\n4\nfive\n"
    await put(server, "main/a.txt", "uno\n2\n3\n4\nfive\n")
    back = await merge(server, "main-2", "main")
    assert back["conflicts"] == []
    assert (files / "main-2/a.txt").read_text() == "uno\n2\n3\n4\nfive\n"


@everywhere
async def test_a_merge_can_be_taken_back_redone_and_done_again(server: ServerHarness, files: Folder) -> None:
    main = files / "main"
    version = await said(server, "main", "first")
    await put(server, "main/a.txt", TEXT)
    await fork(server)
    version = await said(server, "main", "second")
    before = contents(main)
    await put(server, "main-2/a.txt", "changed\n", "main-2")
    await put(server, "main-2/new.txt", "new\n", "main-2")
    await merge(server, "main", "main-2")
    after = contents(main)
    assert (await rewind(server, "main", version)).status_code == 200
    assert contents(main) == before
    assert (await redo(server, "main")).status_code == 200
    assert contents(main) == after
    assert (await rewind(server, "main", version)).status_code == 200
    await merge(server, "main", "main-2")
    assert contents(main) == after


@everywhere
async def test_a_copy_of_an_earlier_time_has_this_as_its_base(server: ServerHarness, files: Folder) -> None:
    await put(server, "main/a.txt", TEXT)
    await said(server, "main", "first")
    await put(server, "main/a.txt", TEXT.replace("5", "five"))
    await put(server, "main/later.txt", "later\n")
    await said(server, "main", "second")
    await fork(server, messages=2)
    await put(server, "main-2/a.txt", TEXT.replace("1", "one"), "main-2")
    await merge(server, "main", "main-2")
    merged = {"a.txt": "one\n2\n3\n4\nfive\n", "later.txt": "later\n"}
    assert contents(files / "main") == merged


async def test_only_a_copy_and_its_original_are_merged(server: ServerHarness) -> None:
    await put(server, "main/a.txt", "one")
    await put(server, "other/a.txt", "one")
    refused = await asked(server, "main", "other")
    assert (refused.status_code, refused.json()["detail"]) == (
        404,
        "'other' and 'main' have no past in common that is kept: only a copy and its original can be merged",
    )
    for target, source in (("main", "missing"), ("missing", "main")):
        assert (await asked(server, target, source)).status_code == 404
    for target, source in (("main", "main"), ("main/sub", "main"), ("main", "main/sub")):
        assert (await asked(server, target, source)).status_code == 422


@pytest.mark.parametrize(
    ("grants", "status"),
    [
        (["/workspaces/"], 200),
        (["/workspaces/main/", "/workspaces/main-2/=read_binary"], 200),
        (["/workspaces/main/"], 404),
        (["/workspaces/main/", "/workspaces/main-2/sub/"], 403),
        (["/workspaces/main/=read,write,file,list", "/workspaces/main-2/"], 403),
    ],
)
async def test_a_merge_needs_rights_to_all_of_both(tmp_path: Path, grants: list[str], status: int) -> None:
    tokens = tmp_path / "tokens.json"
    secrets = {"owner": make(tokens, "owner", "/"), "other": make(tokens, "other", *grants)}
    async with gated(tokens, secrets, data_dir=tmp_path, may_block=True) as gate:
        await gate["owner"].post("/v1/sessions", json={"id": "main"})
        assert (await gate["owner"].put("/v1/files/workspaces/main/a.txt", content="one")).status_code == 201
        assert (await gate["owner"].post("/v1/sessions/main/fork")).status_code == 201
        answer = await gate["other"].post("/v1/versions/workspaces/main", json={"source": "main-2"})
        assert answer.status_code == status, answer.text


async def test_a_merge_beyond_the_quota_changes_nothing(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    async with gated(tokens, {"a": make(tokens, "a", "/", bytes=5000)}, data_dir=tmp_path, may_block=True) as gate:
        client = gate["a"]
        await client.post("/v1/sessions", json={"id": "main"})
        assert (await client.put("/v1/files/workspaces/main/a.txt", content="x")).status_code == 201
        assert (await client.post("/v1/sessions/main/fork")).status_code == 201
        assert (await client.put("/v1/files/workspaces/main-2/b.txt", content="x" * 3000)).status_code == 201
        assert (await client.post("/v1/versions/workspaces/main", json={"source": "main-2"})).status_code == 507
        assert contents(tmp_path / "workspaces/main") == {"a.txt": "x"}


@slow_in_a_bucket
async def test_a_random_walk_of_copies_and_merges_agrees_with_a_model(server: ServerHarness, files: Folder) -> None:
    """Each side changes files of its own; the model merges them by name. Files of both conflict."""
    chance, number = random.Random(11), count()
    await said(server, "main", "first")
    await put(server, "main/start.txt", "start")
    trees = {"main": {"start.txt": "start"}}
    bases: dict[frozenset[str], dict[str, str]] = {}
    for _ in range(120):
        name = chance.choice(sorted(trees))
        other = chance.choice(sorted(trees))
        action = chance.choices(["write", "remove", "fork", "merge"], [6, 1, 1, 3])[0]
        path = f"{name}-{chance.randint(0, 4)}.txt" if chance.random() < 0.9 else "start.txt"
        if action == "write":
            trees[name][path] = f"{next(number)}"
            await put(server, f"{name}/{path}", trees[name][path], name)
        elif action == "remove" and path in trees[name] and path != "start.txt":
            del trees[name][path]
            answer = await server.client.delete(f"/v1/files/workspaces/{name}/{path}")
            assert answer.status_code == 204
        elif action == "fork" and len(trees) < 5:
            copy = (await server.client.post(f"/v1/sessions/{name}/fork")).json()["id"]
            trees[copy] = dict(trees[name])
            bases[frozenset({name, copy})] = dict(trees[name])
        elif action == "merge" and (base := bases.get(frozenset({name, other}))) is not None:
            await merge(server, name, other)
            expected = merged(base, trees[name], trees[other], name, other)
            bases[frozenset({name, other})] = dict(trees[other])
            trees[name] = expected
    for name, expected in trees.items():
        assert contents(files / name) == expected
    assert len(trees) > 2


def merged(
    base: dict[str, str], target: dict[str, str], source: dict[str, str], name: str, other: str
) -> dict[str, str]:
    """Merge files of one line."""
    result = dict(target)
    for path in sorted({*base, *source}):
        was, here, there = base.get(path), target.get(path), source.get(path)
        if there in (was, here):
            continue
        if here == was or here is None:
            if there is None:
                del result[path]
            else:
                result[path] = there
        elif there is not None:
            for side, content in ((name, here), (other, there)):
                for number in count(1):
                    beside = f"{path}.conflict-{side}" + (f".{number}" if number > 1 else "")
                    if {result.get(beside, content), source.get(beside, content)} == {content}:
                        result[beside] = content
                        break
    return result


@pytest.mark.external
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", [3, pytest.param(500, marks=pytest.mark.slow)])
@slow_in_a_bucket
def test_all_files_are_merged_or_none(here: Restarting, files: Folder, kills: int) -> None:
    """The server is killed at random moments of merges; the next start finishes what has begun."""
    chance, main, seen = random.Random(5), files / "main", set()
    with Client(here.process.url) as client:
        for number in range(20):
            client.call(api.write_file(f"/workspaces/main/f{number}.txt", TEXT.encode()))
        client.call(api.post("main", NewMessage(content="first", role="assistant")))
        client.call(api.fork("main", "copy"))
    for step in range(kills):
        with Client(here.process.url) as client:
            for number in range(0, 20, 2):
                client.call(api.write_file(f"/workspaces/copy/f{number}.txt", f"{step}\n".encode()))
        before = digests(main)
        after = {**before, **digests(files / "copy")}
        asking = threading.Thread(target=send_once, args=(here.process.url, api.merge_files("copy", "main")))
        asking.start()
        while step % 3 and asking.is_alive() and digests(main) == before:
            time.sleep(0.001)
        if step % 3 == 0:
            time.sleep(chance.uniform(0, 0.05))
        here.kill()
        asking.join()
        here.start()
        now = digests(main)
        assert now in (before, after)
        with Client(here.process.url) as client:
            kinds = [change.kind for change in client.call(api.file_changes("/workspaces/main")).changes]
            assert (kinds[0] == "merge") is (now == after or step > 0), kinds[:3]
            client.call(api.merge_files("copy", "main"))
        assert digests(main) == after
        seen.add(now == after)
    assert True in seen
