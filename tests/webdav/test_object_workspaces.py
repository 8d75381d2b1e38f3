"""Workspaces in a bucket as folders: what WebDAV clients do there, and what a bucket does not have (W3)."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from lxml import etree

from tests.buckets import NAME, Bucket, bucket_server
from tests.server.support import Process, serving
from tests.webdav.test_rclone import Rclone

DAV = "/dav/workspaces/main"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with bucket_server() as bucket:
        yield bucket


@pytest.fixture
def server(bucket: Bucket, request: pytest.FixtureRequest) -> Iterator[Process]:
    with serving("--engine", "scripted", "--workspaces", f"s3://{NAME}/{request.node.name}") as process:
        httpx.request("MKCOL", process.url + DAV).raise_for_status()
        yield process


def asked(server: Process, method: str, path: str, **headers: str) -> httpx.Response:
    if "Destination" in headers:
        headers["Destination"] = f"{server.url}{DAV}/{headers['Destination']}"
    content = b"content" if method == "PUT" else None
    return httpx.request(method, f"{server.url}{DAV}/{path}", headers=headers, content=content, timeout=60)


def listed(server: Process, path: str = "") -> dict[str, str | None]:
    """Return the members of a folder, and the time of each."""
    answer = asked(server, "PROPFIND", path, Depth="1")
    assert answer.status_code == 207, answer.text
    found = {}
    for response in etree.fromstring(answer.content).iter("{DAV:}response"):
        href = response.findtext("{DAV:}href").removeprefix(f"{DAV}/")
        found[href] = response.findtext(".//{DAV:}getlastmodified")
    del found[path]
    return found


def test_files_and_folders_are_made_moved_copied_and_deleted(server: Process) -> None:
    assert asked(server, "PUT", "a.txt").status_code == 201
    assert asked(server, "MKCOL", "empty").status_code == 201
    assert asked(server, "MKCOL", "deep").status_code == 201
    assert asked(server, "PUT", "deep/b.txt").status_code == 201
    found = listed(server)
    assert (sorted(found), found["a.txt"] is not None) == (["a.txt", "deep/", "empty/"], True)
    assert asked(server, "MOVE", "a.txt", Destination="deep/a.txt").status_code == 201
    assert asked(server, "COPY", "deep/", Destination="copy/").status_code == 201
    assert asked(server, "MOVE", "deep", Destination="moved").status_code == 201
    assert sorted(listed(server)) == ["copy/", "empty/", "moved/"]
    for folder in ("copy/", "moved/"):
        assert sorted(listed(server, folder)) == [f"{folder}a.txt", f"{folder}b.txt"]
        assert asked(server, "GET", f"{folder}a.txt").text == "content"
    assert asked(server, "MOVE", "copy/a.txt", Destination="moved/a.txt", Overwrite="F").status_code == 412
    for folder in ("copy", "moved", "empty"):
        assert asked(server, "DELETE", folder).status_code == 204
    assert listed(server) == {}


def test_a_folder_that_nobody_made_ends_with_its_last_file(server: Process, bucket: Bucket) -> None:
    """Files of other programs have such folders. They have no time, and are deleted as others are."""
    name = next(key for key in bucket.stored() if key.endswith("main/")).removesuffix("main/")
    client = bucket.client()
    for key in ("main/theirs/x", "main/theirs/deeper/y", "main/theirs/no*path"):
        client.put_object(Bucket=NAME, Key=name + key, Body=b"x")
    assert listed(server) == {"theirs/": None}
    assert sorted(listed(server, "theirs/")) == ["theirs/deeper/", "theirs/x"]
    assert asked(server, "DELETE", "theirs/deeper").status_code == 204
    assert asked(server, "GET", "theirs/deeper").status_code == 404
    assert sorted(listed(server, "theirs/")) == ["theirs/x"]


@pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")
def test_rclone_copies_a_tree_both_ways(server: Process, tmp_path: Path) -> None:
    rclone = Rclone(server.url + DAV, tmp_path)
    tree = tmp_path / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "er" / "数据").write_bytes(bytes(range(256)) * 4096)
    (tree / "empty").touch()
    rclone.done("copy", "tree", ":webdav:")
    rclone.done("copy", ":webdav:", "back")
    assert "0 differences" in rclone("check", "back", "tree").stderr
    rclone.done("moveto", ":webdav:deep", ":webdav:other")
    assert sorted(rclone.done("lsf", "-R", ":webdav:").split()) == ["empty", "other/", "other/er/", "other/er/数据"]
