"""Backups of a server at work, their restoration, and the check of a file of sessions."""

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from cfs import api
from cfs.errors import Forbidden, Gone
from cfs.transports.http import Client
from cfs.wire import Message, SettingsPatch, ToolCall
from cfs_filesystem import OPERATIONS
from cfs_filesystem.versions import SqliteVersions
from cfs_server.access import tokens
from cfs_server.access.tokens import TokenGrant
from cfs_server.journal.sqlite_file import checksum
from tests.client.terminal import cfs, ended
from tests.server.support import Process, run_cfs, serving

SCRIPTED = ("--engine", "scripted")
NOBODY = "http://127.0.0.1:9"
CALLS = (
    Message(role="user", content="look"),
    Message(role="assistant", content="", tool_calls=(ToolCall(id="c", name="ls", arguments={}),), thinking="Hm."),
    Message(role="tool", content="a.txt", tool_call_id="c"),
)


def say(server: Process, session: str, text: str) -> httpx.Response:
    url = f"{server.url}/v1/sessions/{session}/messages"
    answer = httpx.post(url, params={"wait": "true"}, content=text.encode(), timeout=30)
    assert answer.status_code == 200, answer.text
    return answer


def text_of(server: Process, session: str) -> str:
    return httpx.get(f"{server.url}/v1/sessions/{session}", headers={"Accept": "text/plain"}, timeout=60).text


def stopped(server: Process) -> None:
    server.signal(signal.SIGTERM)
    assert server.ended()[0] == 0


def fill(server: Process) -> None:
    """Make a conversation, a tree with a renamed session in it, and one that has been deleted."""
    say(server, "chat", "one")
    with Client(server.url) as client:
        client.call(api.create("main/coder", SettingsPatch(system="Be brief."), messages=CALLS))
        client.call(api.create("gone", transcript="User: the secret\nAssistant: quinces\n"))
        client.call(api.delete("gone"))
        client.call(api.rename("main", "tree"))
        client.call(api.fork("tree/coder", "copy"))
        client.call(api.write_file("/workspaces/main/a.txt", b"old"))
        client.call(api.write_file("/workspaces/main/a.txt", b"new"))


def furnish(workspaces: Path) -> None:
    """Change a workspace as programs do: links, permissions, empty folders, names that are bytes, a repository."""
    main = workspaces / "main"
    (workspaces / "empty").mkdir(mode=0o700)
    (main / "none").mkdir()
    (main / ".git/objects").mkdir(parents=True)
    (main / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (main / "link").symlink_to("../outside")
    (main / "run").write_bytes(b"#!/bin/sh\n")
    (main / "run").chmod(0o750)
    (main / os.fsdecode(b"b\xff")).write_bytes(bytes(range(256)) * 50_000)  # in several chunks
    (main / "closed").mkdir()
    (main / "closed/file").write_bytes(b"read-only")
    (main / "closed").chmod(0o555)


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Permissions and content of everything below a folder; of a link its target."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            str(path.readlink())
            if path.is_symlink()
            else hashlib.sha256(path.read_bytes()).hexdigest()
            if path.is_file()
            else "",
        )
        for path in folder.rglob("*")
    }


def pasts(file: Path) -> dict[str, list[tuple[object, ...]]]:
    """Each change of each workspace, with what it left; every content is compared with its digest."""
    with closing(SqliteVersions(file)) as store:
        store.check_integrity()
        return {
            name: [(each.number, each.at, each.author, each.kind, each.entries) for each in store.changes(name)]
            for name in store.workspaces()
        }


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a server, whose workspace `main` programs have changed, too."""
    folder = tmp_path_factory.mktemp("backup")
    with serving(*SCRIPTED, "--data-dir", str(folder / "data")) as server:
        fill(server)
        furnish(folder / "data/workspaces")
        code, output, errors = ended(cfs(server.url, "backup", str(folder / "backup.tar")))
        assert (code, output) == (0, "")
        assert errors.startswith("cfs: 4 sessions and 2 workspaces (")
        assert server.url in errors
        stopped(server)
    return folder / "backup.tar"


@pytest.fixture(scope="module")
def sessions(backup: Path) -> Path:
    """The file of the sessions in it, which was all of a backup in earlier versions."""
    folder = backup.parent / "unpacked"
    folder.mkdir()
    subprocess.run(["tar", "-xf", backup, "-C", folder, "sessions.db"], check=True)
    return folder / "sessions.db"


def test_a_backup_holds_all_that_was_acknowledged_while_others_go_on(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "backup.db"
    with serving(*SCRIPTED, "--data-dir", str(data)) as server, ThreadPoolExecutor(4) as pool:
        for number in range(20):
            say(server, f"s{number}", "x" * 50_000)
        more = [pool.submit(say, server, f"more{number % 4}", f"{number}") for number in range(200)]
        assert cfs(server.url, "backup", str(file)).returncode == 0
        for each in more:
            each.result()
        texts = {f"s{number}": text_of(server, f"s{number}") for number in range(20)}
        assert not list(data.glob(".backup-*")), "the server keeps no copy"
        stopped(server)
    assert file.stat().st_mode & 0o777 == 0o600
    assert run_cfs("store", "check", str(file)).returncode == 0
    assert run_cfs("restore", str(file), "--store", str(tmp_path / "other/sessions.db")).returncode == 0
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "other")) as server:
        assert {name: text_of(server, name) for name in texts} == texts
        for number in range(4):
            assert text_of(server, f"more{number}").count("User: ") in range(51), "a beginning of what was said"


def test_only_who_may_do_everything_gets_the_data_of_everybody(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    everything = [TokenGrant(prefix="/", ops=frozenset(OPERATIONS))]
    readers = [TokenGrant(prefix="/", ops=frozenset({"list", "file", "read"}))]
    tenant = [TokenGrant(prefix=f"/{place}/alice", ops=frozenset(OPERATIONS)) for place in ("sessions", "workspaces")]
    operator, reader, alice = (
        tokens.create(file, name, grants, expires=None, limits=tokens.TokenLimits())
        for name, grants in (("operator", everything), ("reader", readers), ("alice", tenant))
    )
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "data"), "--tokens", str(file)) as server:
        copy = str(tmp_path / "copy.db")
        for secret in (reader, alice):
            code, _, errors = ended(cfs(server.url, "backup", copy, CFS_TOKEN=secret))
            assert (code, errors.count("\n"), "all operations on" in errors) == (1, 1, True)
            with Client(server.url, secret) as client, pytest.raises(Forbidden):
                client.download(api.backup(), bytes)
            assert not Path(copy).exists()
        assert cfs(server.url, "backup", copy, CFS_TOKEN=operator).returncode == 0


def test_sessions_in_memory_have_no_backup(tmp_path: Path) -> None:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "data"), "--store", "memory") as server:
        code, _, errors = ended(cfs(server.url, "backup", str(tmp_path / "copy.db")))
    assert (code, "cfs export" in errors) == (1, True)
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("command", ["backup FILE --store", "restore FILE --store", "store check"])
def test_sessions_in_a_database_are_not_the_work_of_commands_for_files(command: str, tmp_path: Path) -> None:
    words = [word.replace("FILE", str(tmp_path / "copy.db")) for word in command.split()]
    done = run_cfs(*words, "postgresql://cfs:hunter2@localhost/cfs")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "cfs: this command is for files of sessions, so name one. Those in PostgreSQL are backed"
    )
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("how", ["CFS_DATA_DIR", "--store", "without versions"])
def test_without_a_server_the_files_themselves_are_copied(backup: Path, tmp_path: Path, how: str) -> None:
    data, copy, other = tmp_path / "data", tmp_path / "copy.tar", tmp_path / "other"
    shutil.copytree(backup.parent / "data", data, symlinks=True)
    (data / "workspaces/main/since").write_text("the server was stopped")
    (data / "workspaces" / os.fsdecode(b"w\xff")).mkdir()
    (data / "workspaces" / os.fsdecode(b"w\xff") / "file").write_text("in a workspace whose name is bytes")
    if how == "without versions":
        (data / "versions.db").unlink()
    words = ["--store", str(data / "sessions.db")] if how == "--store" else []
    named = str(tmp_path / "none") if how == "--store" else str(data)
    code, _, errors = ended(cfs(NOBODY, "backup", str(copy), *words, CFS_DATA_DIR=named))
    assert (code, errors.startswith("cfs: 4 sessions and 3 workspaces (")) == (0, True), errors
    assert run_cfs("store", "check", str(copy)).returncode == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy.tar", "data"]
    assert run_cfs("restore", str(copy), "--store", str(other / "sessions.db")).returncode == 0
    assert tree(other / "workspaces") == tree(data / "workspaces")


def test_a_restored_folder_has_the_same_files_and_versions(backup: Path, tmp_path: Path) -> None:
    """Each is compared with its digest, and a server that starts there sees no change."""
    data, other = backup.parent / "data", tmp_path / "other"
    assert run_cfs("restore", str(backup), "--store", str(other / "sessions.db")).returncode == 0
    assert tree(other / "workspaces") == tree(data / "workspaces")
    assert (other / "workspaces/empty").stat().st_mode & 0o777 == 0o700
    past = pasts(other / "versions.db")
    assert past == pasts(data / "versions.db")
    assert len(past["main"]) == 3
    with serving(*SCRIPTED, "--data-dir", str(other)) as server:
        url = f"{server.url}/v1/files/workspaces/main/a.txt"
        assert httpx.get(url, params={"at": "1"}, timeout=60).content == b"old"
        assert httpx.get(f"{server.url}/v1/versions/workspaces/main", timeout=60).json()["last"] == 3
        stopped(server)
    assert pasts(other / "versions.db") == past


def test_files_that_are_written_meanwhile_are_those_of_a_version(tmp_path: Path) -> None:
    """What was acknowledged before the backup is in it; of what comes meanwhile a beginning."""
    data, file, other = tmp_path / "data", tmp_path / "backup.tar", tmp_path / "other"
    with serving(*SCRIPTED, "--data-dir", str(data)) as server, ThreadPoolExecutor(4) as pool:
        paths = [f"/workspaces/w{number % 4}/f{number}" for number in range(80)]

        def write(path: str, text: bytes) -> None:
            with Client(server.url) as client:
                client.call(api.write_file(path, text))

        for path in paths[:20]:
            write(path, b"before")
        (data / "workspaces/w0/outside").write_text("by a program")
        more = [pool.submit(write, path, b"meanwhile") for path in paths]
        assert cfs(server.url, "backup", str(file)).returncode == 0
        for each in more:
            each.result()
        stopped(server)
    assert run_cfs("restore", str(file), "--store", str(other / "sessions.db")).returncode == 0
    now, before = pasts(data / "versions.db"), pasts(other / "versions.db")
    assert all(now[name][-len(changes) :] == changes for name, changes in before.items())
    assert (other / "workspaces/w0/outside").read_text() == "by a program"
    assert all((other / path[1:]).read_bytes() in (b"before", b"meanwhile") for path in paths[:20])


def test_a_backup_of_sessions_alone_leaves_the_workspaces(sessions: Path, backup: Path, tmp_path: Path) -> None:
    """Earlier versions wrote such backups."""
    data = tmp_path / "data"
    shutil.copytree(backup.parent / "data", data, symlinks=True)
    files, past = tree(data / "workspaces"), pasts(data / "versions.db")
    done = run_cfs("restore", str(sessions), "--store", str(data / "sessions.db"), "--force")
    assert (done.returncode, done.stderr.startswith("cfs: 4 sessions (")) == (0, True), done.stderr
    assert (tree(data / "workspaces"), pasts(data / "versions.db")) == (files, past)


def test_a_server_does_not_start_in_the_middle_of_a_restore(backup: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = data / "sessions.db"
    assert run_cfs("restore", str(backup), "--store", str(store)).returncode == 0
    (data / "sessions.db.restoring").write_text(str(backup))  # as a kill leaves it
    refused = run_cfs("serve", *SCRIPTED, "--port", "0", "--data-dir", str(data))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"cfs restore --force {backup}" in refused.stderr
    assert run_cfs("restore", str(backup), "--store", str(store), "--force").returncode == 0
    with serving(*SCRIPTED, "--data-dir", str(data)) as server:
        assert text_of(server, "chat") == "User: one\nAssistant: one\n"
        stopped(server)


def test_a_server_at_another_address_is_named(tmp_path: Path) -> None:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server:
        code, _, errors = ended(cfs(NOBODY, "backup", str(tmp_path / "copy.db"), CFS_DATA_DIR=str(tmp_path)))
        assert (code, f"process {server.process.pid}" in errors, "--url" in errors) == (1, True, True)


def test_a_restored_store_has_the_same_sessions_in_another_life(backup: Path, tmp_path: Path) -> None:
    """What clients have seen may never have happened in it, so no cursor, version or handle of theirs is valid."""
    store = tmp_path / "data/sessions.db"
    shutil.copytree(backup.parent / "data", tmp_path / "data", symlinks=True)
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "data")) as server, Client(server.url) as client:
        say(server, "chat", "two")
        before = client.call(api.transcript("chat"))
        life, seen = api.Life(), client.call(api.read("chat"))
        life.saw(before.etag)
        with httpx.stream("GET", f"{server.url}/v1/sessions/chat/events?after=0", timeout=60) as stream:
            cursor = next(line for line in stream.iter_lines() if line.startswith("id: "))[4:]
        stopped(server)
    refused = run_cfs("restore", str(backup), "--store", str(store))
    assert (refused.returncode, "--force" in refused.stderr, "4 sessions" in refused.stderr) == (1, True, True)
    done = run_cfs("restore", str(backup), "--store", str(store), "--force")
    assert (done.returncode, done.stderr.count("\n")) == (0, 4)
    (aside,) = store.parent.glob("sessions.db.replaced-*")
    assert str(aside) in done.stderr
    assert run_cfs("store", "check", str(aside)).returncode == 0
    assert run_cfs("store", "check", str(store)).returncode == 0
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "data")) as server, Client(server.url) as client:
        assert text_of(server, "chat") == "User: one\nAssistant: one\n"
        restored = client.call(api.read("tree/coder"))
        assert (restored.history[: len(CALLS)], restored.settings.system) == (CALLS, "Be brief.")
        say(server, "chat", "another")
        assert client.call(api.read("chat")).messages == seen.messages
        assert client.call(api.transcript("chat")).etag != before.etag
        with pytest.raises(Gone):
            client.call(life.call(api.read("chat")))
        headers = {"Last-Event-ID": cursor}
        with httpx.stream("GET", f"{server.url}/v1/sessions/chat/events", headers=headers, timeout=60) as stream:
            assert next(line for line in stream.iter_lines() if line.startswith("event: ")) == "event: stale"


def test_a_restore_that_is_killed_leaves_a_whole_store(backup: Path, tmp_path: Path) -> None:
    """At each of its steps: the name is that of the old file until it is that of the new one."""
    program = [sys.executable, str(Path(__file__).parent / "killed_restores.py"), str(backup), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.isdigit() and int(done.stdout) > 3) == (0, True), done.stderr


def test_nothing_is_restored_under_a_server_nor_from_what_is_damaged(
    backup: Path, sessions: Path, tmp_path: Path
) -> None:
    store = tmp_path / "data/sessions.db"
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "data")) as server:
        say(server, "chat", "mine")
        refused = run_cfs("restore", str(backup), "--store", str(store), "--force")
        assert (refused.returncode, f"in use by process {server.process.pid}" in refused.stderr) == (1, True)
        stopped(server)
    damaged, junk, cut = tmp_path / "damaged.db", tmp_path / "junk.db", tmp_path / "cut.tar"
    shutil.copy(sessions, damaged)
    with closing(sqlite3.connect(damaged)) as connection, connection:
        connection.execute("UPDATE records SET body = replace(body, 'one', 'two')")
    junk.write_bytes(b"junk" * 1000)
    data = backup.read_bytes()
    cut.write_bytes(data[: len(data) * 2 // 3])
    changed = [tmp_path / f"changed-{at}.tar" for at in (700, 5000, len(data) // 2, len(data) - 20_000)]
    for file in changed:  # a byte of the manifest, of the sessions, of the versions
        at = int(file.stem.partition("-")[2])
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    before, names = store.read_bytes(), sorted(each.name for each in store.parent.iterdir())
    for file in (damaged, junk, cut, *changed, tmp_path / "missing.db"):
        refused = run_cfs("restore", str(file), "--store", str(store), "--force")
        assert (refused.returncode, refused.stderr.count("\n"), str(file) in refused.stderr) == (1, 1, True)
    assert store.read_bytes() == before
    assert sorted(each.name for each in store.parent.iterdir()) == names


def test_a_damaged_store_gives_way_to_a_backup(backup: Path, tmp_path: Path) -> None:
    store = tmp_path / "sessions.db"
    store.write_bytes(b"junk" * 1000)
    assert run_cfs("restore", str(backup), "--store", str(store), "--force").returncode == 0
    assert run_cfs("store", "check", str(store)).returncode == 0
    assert next(tmp_path.glob("sessions.db.replaced-*")).read_bytes() == b"junk" * 1000


def checked(file: Path) -> tuple[bool, list[str]]:
    done = run_cfs("store", "check", str(file), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode == 0) == found["ok"]
    return found["ok"], found["problems"]


def test_the_check_finds_what_was_changed(backup: Path, tmp_path: Path) -> None:
    """A row whose checksum is wrong, and one whose checksum is right but which leads to another state."""
    file = tmp_path / "changed.db"
    shutil.copy(backup.parent / "data/sessions.db", file)  # with the heads that the end of the server has stored
    assert checked(file) == checked(backup) == (True, [])
    with closing(sqlite3.connect(file)) as connection, connection:
        said = "SELECT records.seq, key FROM records JOIN sessions ON id = session WHERE kind = 'message.added'"
        seq, key = connection.execute(f"{said} AND body LIKE '%one%' AND head <> ''").fetchone()
        connection.execute("UPDATE records SET body = replace(body, 'one', 'three') WHERE seq = ?", (seq,))
    assert checked(file) == (False, [f"record {seq} does not match its checksum"])
    with closing(sqlite3.connect(file)) as connection, connection:
        columns = "seq, ?, at, kind, version, author, body, events, number, position"
        row = connection.execute(f"SELECT {columns} FROM records WHERE seq = ?", (key, seq)).fetchone()  # noqa: S608
        connection.execute("UPDATE records SET sum = ? WHERE seq = ?", (checksum(*row), seq))
    sound, problems = checked(file)
    assert not sound
    assert [problem for problem in problems if "'chat'" in problem and "stored state" in problem] == problems


def test_a_text_that_is_no_text_is_found_and_not_shown(sessions: Path, tmp_path: Path) -> None:
    """Python's own error would print the conversation."""
    file = tmp_path / "changed.db"
    shutil.copy(sessions, file)
    file.write_bytes(file.read_bytes().replace(b'"Be brief."', b'"Be \xff\xff\xff\xff\xff."'))
    sound, problems = checked(file)
    assert not sound
    assert all("does not match its checksum" in problem for problem in problems), problems


def test_a_repair_that_is_wanted_looks_at_the_whole_file(tmp_path: Path) -> None:
    """Large files are not read whole at each start, so damage in them may be found late."""
    store = tmp_path / "sessions.db"
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server, Client(server.url) as client:
        for number in range(9):
            text = f"{number}" * 4_000_000
            client.call(api.create(f"s{number}", messages=(Message(role="assistant", content=text),)))
        stopped(server)
    data = store.read_bytes()
    at = data.index(b"5" * 4000)
    store.write_bytes(data[:at] + bytes(8192) + data[at + 8192 :])
    assert len(data) > 32 << 20
    with serving(*SCRIPTED, "--data-dir", str(tmp_path), "--store-repair") as server:
        assert text_of(server, "s4").count("4") == 4_000_000
        stopped(server)
    assert list(tmp_path.glob("sessions.db.damaged-*"))


def test_a_copy_that_a_killed_process_has_left_is_removed_by_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / ".backup-abc"
    left.mkdir()
    (left / "copy").write_text("conversations")
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server:
        assert not left.exists()
        stopped(server)


def test_a_store_that_cannot_be_used_ends_the_start_with_one_line(tmp_path: Path) -> None:
    store = tmp_path / "sessions.db"
    with serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server:
        second = run_cfs("serve", *SCRIPTED, "--port", "0", "--data-dir", str(tmp_path))
        assert (second.returncode, second.stderr.count("\n")) == (2, 1)
        assert f"in use by process {server.process.pid}" in second.stderr
        assert "--data-dir" in second.stderr
        stopped(server)
    store.write_bytes(b"junk" * 1000)
    damaged = run_cfs("serve", *SCRIPTED, "--port", "0", "--data-dir", str(tmp_path))
    assert (damaged.returncode, damaged.stderr.count("\n"), "--store-repair" in damaged.stderr) == (2, 1, True)
    assert store.read_bytes() == b"junk" * 1000
    with serving(*SCRIPTED, "--data-dir", str(tmp_path), "--store-repair") as server:
        say(server, "chat", "hello")
        stopped(server)
