"""A server whose disk is full, fails, or is not fit for its sessions (P2, H7)."""

import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from cfs.contract.transcript import parse
from cfs_server.journal.sqlite_file import SCHEMA
from tests.disks import Mount, break_disk, ext4, fill, mount
from tests.fuse.support import mounting, reason_to_skip, until
from tests.server.support import TEXT, Process, run_cfs, serving

__all__ = ["mount"]

SCRIPTED = ("--engine", "scripted")


def post(server: Process, text: str, session: str = "chat") -> httpx.Response:
    """Send a message that needs no reply."""
    content = {"content": text, "generate": False}
    return httpx.post(f"{server.url}/v1/sessions/{session}/messages", json=content, timeout=30)


def messages(server: Process) -> list[str]:
    """Read a session."""
    answer = httpx.get(f"{server.url}/v1/sessions/chat", headers=TEXT, timeout=30)
    assert answer.status_code == 200, answer.text
    return [turn.content for turn in parse(answer.text)]


def stop(server: Process) -> None:
    """End a server as an operator does."""
    server.signal(signal.SIGTERM)
    status, log = server.ended()
    assert status == 0, log


def write_until_refused(server: Process) -> tuple[list[str], httpx.Response]:
    """Send long messages until one is refused. Return those that were acknowledged, and the refusal."""
    acknowledged: list[str] = []
    while (answer := post(server, f"{len(acknowledged)} {'x' * 100_000}")).status_code == 202:
        acknowledged.append(f"{len(acknowledged)} {'x' * 100_000}")
    return acknowledged, answer


def test_a_full_disk_is_said_and_is_over_when_there_is_room(mount: Mount, tmp_path: Path) -> None:
    """H7: writes are answered with 507 and reads with 200; without a restart, writes go on when there is room."""
    disk = mount("disk", "-t", "tmpfs", "-o", "size=8m", "tmpfs")
    flags = (*SCRIPTED, "--data-dir", str(tmp_path / "data"), "--store", str(disk / "sessions.db"))
    with serving(*flags) as server:
        assert post(server, "first").status_code == 202
        filler = fill(disk)
        os.truncate(filler, filler.stat().st_size - (2 << 20))
        acknowledged, refusal = write_until_refused(server)
        assert (refusal.status_code, refusal.json()["type"]) == (507, "urn:cfs:error:storage-full")
        assert "disk of the server is full" in refusal.json()["detail"]
        assert len(acknowledged) > 2
        assert messages(server)[: len(acknowledged) + 1] == ["first", *acknowledged]
        assert post(server, "refused").status_code == 507
        assert httpx.put(f"{server.url}/dav/sessions/new", content=b"refused", timeout=60).status_code == 507
        assert httpx.get(f"{server.url}/dav/sessions/chat", timeout=60).status_code == 200
        filler.unlink()
        until(lambda: post(server, "later").status_code == 202)
        assert messages(server)[-1] == "later"
        stop(server)
    with serving(*flags) as server:
        found = messages(server)
        assert found[: len(acknowledged) + 1] == ["first", *acknowledged]
        assert found[-1] == "later"
        assert "refused" not in found


def test_a_full_disk_is_emptied_by_deletions(mount: Mount, tmp_path: Path) -> None:
    """Sessions and files of workspaces, on each interface, also after a restart, which is read-only and says so."""
    disk = mount("disk", "-t", "tmpfs", "-o", "size=32m", "tmpfs")
    flags = (*SCRIPTED, "--data-dir", str(disk))
    with serving(*flags) as server:
        for name in ("chat", "one", "two", "three"):
            for _ in range(8):
                assert post(server, "x" * 100_000, name).status_code == 202
        for name in ("a", "b"):
            url = f"{server.url}/v1/files/workspaces/main/{name}"
            assert httpx.put(url, content=bytes(1 << 16), timeout=30).status_code == 201
        fill(disk)
        write_until_refused(server)
        assert httpx.put(f"{server.url}/v1/files/workspaces/main/c", content=b"c").status_code == 507
        assert httpx.delete(f"{server.url}/v1/sessions/one", timeout=60).status_code == 204
        assert httpx.get(f"{server.url}/v1/sessions/one").status_code == 404
        assert httpx.delete(f"{server.url}/v1/files/workspaces/main/a", timeout=60).status_code == 204
        stop(server)
    with serving(*flags) as server:  # all that was deleted has left the disk
        fill(disk, "again")
        write_until_refused(server)
        stop(server)
    fill(disk, "more")
    doctor = run_cfs("doctor", CFS_DATA_DIR=str(disk))
    assert "the disk is full" in doctor.stdout
    with serving(*flags) as server:
        ready = httpx.get(f"{server.url}/readyz")
        assert (ready.status_code, "full, so it only reads and deletes" in ready.json()["detail"]) == (503, True)
        assert httpx.get(f"{server.url}/v1/sessions/one").status_code == 404
        before = messages(server)
        assert post(server, "refused").status_code == 507
        assert messages(server) == before
        gone = httpx.delete(f"{server.url}/dav/sessions/two", timeout=60)
        assert gone.status_code == 204, gone.text
        assert httpx.delete(f"{server.url}/dav/workspaces/main/b", timeout=60).status_code == 204
        assert list((disk / "workspaces/main").iterdir()) == []
        for name in ("filler", "again", "more"):
            (disk / name).unlink()
        until(lambda: post(server, "later").status_code == 202)
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        assert messages(server) == [*before, "later"]
        server.signal(signal.SIGTERM)
        _, log = server.ended()
        assert "only reads and deletes" in log


def test_a_disk_that_fails_leaves_a_server_that_answers_reads(mount: Mount, tmp_path: Path) -> None:
    """Writes are answered with 503 until the restart; all that was acknowledged is on the disk."""
    disk = ext4(mount, tmp_path / "image", 32)
    flags = (*SCRIPTED, "--data-dir", str(tmp_path / "data"), "--store")
    with serving(*flags, str(disk / "sessions.db")) as server:
        acknowledged = [f"{number}" for number in range(20) if post(server, f"{number}").status_code == 202]
        break_disk(disk)
        for _ in range(3):
            refusal = post(server, "lost")
            assert refusal.status_code == 503, refusal.text
            assert "only answers reads; restart it" in refusal.json()["detail"]
            assert messages(server)[:20] == acknowledged
        stop(server)
    for part in disk.glob("sessions.db*"):
        shutil.copy(part, tmp_path)
    with serving(*flags, str(tmp_path / "sessions.db")) as server:
        assert messages(server) == acknowledged


def test_a_second_server_names_the_process_of_the_first(tmp_path: Path) -> None:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server:
        second = run_cfs("serve", *SCRIPTED, "--data-dir", str(tmp_path), "--port", "0")
        assert (second.returncode, second.stdout) == (2, "")
        assert f"sessions.db is in use by process {server.process.pid}; only one server can use it" in second.stderr
        assert post(server, "unharmed").status_code == 202


def test_a_damaged_store_is_refused_and_repaired_on_request(tmp_path: Path) -> None:
    """The line says what to do. The repair keeps what can be read, and the damaged file."""
    store = tmp_path / "sessions.db"
    flags = (*SCRIPTED, "--data-dir", str(tmp_path), "--port", "0", "--store", str(store))
    with serving(*flags) as server:
        for number in range(50):
            assert post(server, f"{number} {'x' * 1_000}").status_code == 202
        stop(server)
    data = store.read_bytes()
    at = data.index(b"7 xxx")
    damaged = data[:at] + b"8" + data[at + 1 :]
    store.write_bytes(damaged)
    refused = run_cfs("serve", *flags)
    assert refused.returncode == 2
    assert "does not match its checksum. Start with --store-repair" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert store.read_bytes() == damaged
    with serving(*flags, "--store-repair") as server:
        found = messages(server)
        assert 45 <= len(found) < 50
        stop(server)
    (aside,) = tmp_path.glob("sessions.db.damaged-*[0-9]")
    assert aside.read_bytes() == damaged
    with serving(*flags) as server:
        assert messages(server) == found


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server:
        stop(server)
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as store:
        store.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    refused = run_cfs("serve", *SCRIPTED, "--data-dir", str(tmp_path), "--port", "0")
    assert refused.returncode == 2
    assert "has been written by a newer CFS" in refused.stderr


@pytest.mark.skipif(reason_to_skip() is not None, reason=f"{reason_to_skip()}")
def test_a_store_on_a_network_file_system_is_refused(tmp_path: Path) -> None:
    """A mount of FUSE, which may be one of another machine."""
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "data")) as server, mounting(server.url, tmp_path / "mnt"):
        store = tmp_path / "mnt" / "sessions.db"
        flags = (*SCRIPTED, "--data-dir", str(tmp_path / "other"), "--port", "0", "--store", str(store))
        refused = run_cfs("serve", *flags)
        assert refused.returncode == 2
        assert "file system, where locks do not exclude other machines: use a local disk" in refused.stderr
        assert not store.exists()
