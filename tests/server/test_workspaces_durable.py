"""An acknowledged change of a workspace is on the disk: seen in the server's system calls, not in its own word."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from cfs.api import AGENT
from tests import disk_trace
from tests.server.support import CFS, environment

FILES, DAV = "/v1/files/workspaces/main", "/dav/workspaces/main"
CHANGES = [
    ("PUT", f"{FILES}/deep/er/note", {}),
    ("PUT", f"{FILES}/deep/er/note", {}),
    ("PUT", f"{FILES}/large", {}),
    ("PUT", f"{FILES}/new", {"If-None-Match": "*"}),
    ("DELETE", f"{FILES}/new", {}),
    ("PUT", f"{DAV}/paper", {}),
    ("PUT", f"{DAV}/paper", {}),
    ("MKCOL", f"{DAV}/folder", {}),
    ("COPY", f"{DAV}/paper", {"Destination": f"{DAV}/folder/copy"}),
    ("MOVE", f"{DAV}/paper", {"Destination": f"{DAV}/folder/moved"}),
    ("MOVE", f"{DAV}/folder", {"Destination": f"{DAV}/deep/folder"}),
    ("DELETE", f"{DAV}/deep/folder/copy", {}),
    ("DELETE", f"{DAV}/deep", {}),
]


@contextmanager
def traced_server(log: Path, data: Path) -> Iterator[str]:
    """Run `cfs serve` under strace."""
    command = [str(CFS), "serve", "--port", "0", "--engine", "scripted", "--data-dir", str(data)]
    process = subprocess.Popen(
        disk_trace.traced(log, command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().removeprefix("listening on ").strip()
    finally:
        disk_trace.signal_traced(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.mark.skipif(not disk_trace.works(), reason="needs strace")
def test_no_change_is_acknowledged_before_it_is_on_the_disk(tmp_path: Path) -> None:
    log, data = tmp_path / "calls", tmp_path / "data"
    with traced_server(log, data) as url, httpx.Client(base_url=url, timeout=60) as client:
        for method, path, headers in CHANGES:
            body = os.urandom(3 << 20) if path.endswith("large") else b"text" if method == "PUT" else b""
            found = {name: url + value if name == "Destination" else value for name, value in headers.items()}
            answer = client.request(method, path, content=body, headers=found)
            assert answer.is_success, (method, path, answer.text)
    said = disk_trace.acknowledgements(log, data / "workspaces", "HTTP/1.1 2")
    # What is put aside has gone with the flush of its folder; the next start removes what a power loss leaves of it.
    dirty = [{path for path in each.dirty if "/.cfs-write-" not in path} for each in said]
    assert dirty == [set()] * len(CHANGES)
    assert disk_trace.changes(log, data / "workspaces") > 2 * len(CHANGES)


@pytest.mark.skipif(not disk_trace.works(), reason="needs strace")
def test_no_rewind_is_acknowledged_before_its_files_are_on_the_disk(tmp_path: Path) -> None:
    """Also those in folders that come back."""
    log, data = tmp_path / "calls", tmp_path / "data"
    names = [f"{folder}file-{number}" for folder in ("", "gone/", "gone/deep/") for number in range(12)]
    with traced_server(log, data) as url, httpx.Client(base_url=url, timeout=60) as client:
        message = {"content": "go", "role": "assistant", "generate": False}
        for content in (b"old", b"new"):
            for name in names:
                client.put(f"{FILES}/{name}", content=content, headers={AGENT: "main"}).raise_for_status()
            client.post("/v1/sessions/main/messages", json=message).raise_for_status()
        for name in names:
            if name.startswith("gone"):
                client.delete(f"{FILES}/{name}", headers={AGENT: "main"}).raise_for_status()
        client.post("/v1/sessions/main/rewind", json={"to": 1}).raise_for_status()
    assert {(data / "workspaces/main" / name).read_bytes() for name in names} == {b"old"}
    assert disk_trace.acknowledgements(log, data / "workspaces", "HTTP/1.1 2")[-1].dirty == set()
