"""`cfs://` as pandas, pyarrow, dask and programs of one's own use it, against a real server (C11)."""

import asyncio
import io
import json
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dask.bag
import dask.dataframe
import fsspec
import pandas as pd
import pyarrow.csv
import pyarrow.dataset
import pyarrow.json
import pyarrow.parquet
import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem

from cfs import Session, api
from cfs.errors import Unauthorized
from cfs.transports.http import Client
from cfs.wire import Message, ToolCall
from cfs_fsspec import CFSFileSystem, FileChangedError
from pytest_cfs import ScriptedServer
from tests.access.support import make
from tests.server.support import running_server

NOTES = "workspaces/main/notes.txt"


@pytest.fixture
def fs(cfs_server: ScriptedServer) -> Iterator[CFSFileSystem]:
    """The file system of the server; pandas and the others get the same object by its options."""
    CFSFileSystem.clear_instance_cache()
    fs = fsspec.filesystem("cfs", base_url=cfs_server.url)
    yield fs
    fs.close()
    CFSFileSystem.clear_instance_cache()


@pytest.fixture
def options(fs: CFSFileSystem, cfs_server: ScriptedServer) -> dict[str, Any]:
    """What pandas calls storage options."""
    return {"base_url": cfs_server.url}


@pytest.fixture
def talks(cfs_server: ScriptedServer) -> None:
    """Two sessions and a sub-session, with calls of tools whose arguments have different types."""
    with Session("alice", url=cfs_server.url) as session:
        session.send("你好")
    with Client(cfs_server.url) as client:
        for name, value in (("bob", 1), ("bob/coder", "one")):
            call = ToolCall(id="1", name="look", arguments={"at": value})
            made = (
                Message(role="user", content="look"),
                Message(role="assistant", content="", tool_calls=(call,), thinking="so"),
                Message(role="tool", content="nothing", tool_call_id="1", name="look"),
            )
            client.call(api.create(name, messages=made))


def test_pandas_reads_a_transcript(talks: None, options: dict[str, Any]) -> None:
    table = pd.read_json("cfs://sessions/alice/transcript.jsonl", lines=True, storage_options=options)
    assert list(table.role) == ["user", "assistant"]
    assert list(table.content) == ["你好", "你好"]
    assert list(table["index"]) == [0, 1]
    assert table.time.notna().all()


def test_pyarrow_reads_transcripts_with_calls(talks: None, fs: CFSFileSystem) -> None:
    """Rows of all sessions have the same columns, whatever the arguments of their calls are."""
    tables = []
    for name in fs.glob("sessions/**/transcript.jsonl"):
        with fs.open(name) as file:
            tables.append(pyarrow.json.read_json(file))
    table = pyarrow.concat_tables(tables, promote_options="permissive")
    calls = [call for row in table["tool_calls"].to_pylist() for call in row]
    assert {call["arguments"] for call in calls} == {'{"at": 1}', '{"at": "one"}'}
    assert set(table["session"].to_pylist()) == {"alice", "bob", "bob/coder"}
    assert set(table["tool_call_id"].to_pylist()) == {"", "1"}


def test_dask_reads_all_transcripts(talks: None, options: dict[str, Any]) -> None:
    """In threads of its own, each with a copy of the file system."""
    lines = dask.bag.read_text("cfs://sessions/*/transcript.jsonl", storage_options=options).map(json.loads)
    assert sorted(lines.pluck("session").compute(scheduler="threads")) == ["alice"] * 2 + ["bob"] * 3
    frame = dask.dataframe.read_json("cfs://sessions/*/transcript.jsonl", lines=True, storage_options=options)
    counts = frame.compute(scheduler="threads").role.value_counts()
    assert (counts["user"], counts["tool"]) == (2, 1)


def test_tables_are_kept_in_a_workspace(options: dict[str, Any], fs: CFSFileSystem) -> None:
    """Written by one program and read by the others: CSV, Parquet and a dataset of many files."""
    table = pd.DataFrame({"x": range(1000), "y": [f"row {n}" for n in range(1000)]})
    table.to_csv("cfs://workspaces/main/data.csv", index=False, storage_options=options)
    table.to_parquet("cfs://workspaces/main/data.parquet", storage_options=options)
    assert pd.read_csv("cfs://workspaces/main/data.csv", storage_options=options).equals(table)
    assert pd.read_parquet("cfs://workspaces/main/data.parquet", storage_options=options, columns=["x"]).x.sum() == (
        table.x.sum()
    )
    arrow = PyFileSystem(FSSpecHandler(fs))
    with arrow.open_input_stream("workspaces/main/data.csv") as stream:
        assert pyarrow.csv.read_csv(stream).num_rows == 1000
    pyarrow.dataset.write_dataset(
        pyarrow.Table.from_pandas(table), "workspaces/main/parts", format="parquet", filesystem=arrow,
        max_rows_per_file=250, max_rows_per_group=250,
    )  # fmt: skip
    parts = pyarrow.dataset.dataset("workspaces/main/parts", filesystem=arrow)
    assert len(parts.files) == 4
    assert parts.to_table(filter=pyarrow.dataset.field("x") >= 900).num_rows == 100
    frame = dask.dataframe.read_csv("cfs://workspaces/main/data.csv", storage_options=options, blocksize=4000)
    assert frame.npartitions > 1
    assert frame.x.sum().compute(scheduler="threads") == table.x.sum()
    frame.to_csv("cfs://workspaces/main/out-*.csv", index=False, storage_options=options)
    assert len(fs.glob("workspaces/main/out-*.csv")) == frame.npartitions


def test_sessions_are_folders_with_three_files(talks: None, fs: CFSFileSystem) -> None:
    assert fs.ls("cfs://", detail=False) == ["sessions", "workspaces"]
    assert fs.ls("sessions", detail=False) == ["sessions/alice", "sessions/bob"]
    assert fs.ls("/sessions/bob/", detail=False) == [
        "sessions/bob/coder",
        "sessions/bob/session.json",
        "sessions/bob/transcript.jsonl",
        "sessions/bob/transcript.txt",
    ]
    assert fs.cat("cfs://sessions/alice/transcript.txt").decode() == "User: 你好\nAssistant: 你好\n"
    assert json.loads(fs.cat("sessions/bob/coder/session.json"))["id"] == "bob/coder"
    for name in fs.find("sessions/bob"):
        content = fs.cat_file(name)
        assert fs.info(name)["size"] == len(content)
        assert fs.cat_file(name, 3, -2) == content[3:-2]
        with fs.open(name) as file:
            file.seek(5)
            assert file.read() == content[5:]
    with fs.open("sessions/alice/transcript.txt", "r", encoding="utf-8") as lines:
        assert lines.readline() == "User: 你好\n"


def test_a_file_of_a_session_has_a_version(talks: None, fs: CFSFileSystem, cfs_server: ScriptedServer) -> None:
    path = "sessions/alice/transcript.jsonl"
    before, key = fs.info(path), fs.ukey(path)
    with Session("alice", url=cfs_server.url) as session:
        session.send("again")
    after = fs.info(path)
    assert (before["etag"] != after["etag"], key != fs.ukey(path)) == (True, True)
    assert fs.modified(path) > datetime.fromtimestamp(before["mtime"], UTC)


def test_sessions_can_only_be_read(talks: None, fs: CFSFileSystem) -> None:
    changes: list[Callable[[], object]] = [
        lambda: fs.pipe_file("sessions/alice/transcript.txt", b"x"),
        lambda: fs.open("sessions/alice/transcript.txt", "ab"),
        lambda: fs.rm("sessions/alice", recursive=True),
        lambda: fs.mv("sessions/alice/transcript.txt", "workspaces/main/x"),
        lambda: fs.mkdir("sessions/new"),
        lambda: fs.pipe_file("workspaces/file", b"x"),
    ]
    for change in changes:
        with pytest.raises(PermissionError):
            change()
    assert fs.exists("sessions/alice")


def test_what_is_not_there_is_not_found(fs: CFSFileSystem) -> None:
    for path in ("sessions/none", "sessions/none/transcript.txt", "sessions/none/x.txt", "workspaces/none", "else"):
        assert not fs.exists(path)
        with pytest.raises(FileNotFoundError):
            fs.ls(path)
        with pytest.raises(FileNotFoundError):
            fs.open(path)
    with pytest.raises(FileNotFoundError):
        fs.rm("workspaces/main/none")


def test_files_are_written_listed_and_read_in_parts(fs: CFSFileSystem, cfs_server: ScriptedServer) -> None:
    """What is written here is what REST shows, and the other way round."""
    with fs.open(f"cfs://{NOTES}", "wb") as file:
        file.write(b"0123456789")
    with Client(cfs_server.url) as client:
        assert client.call(api.read_file(f"/{NOTES}")).content == b"0123456789"
        info = client.call(api.write_file("/workspaces/main/deep/er/b.txt", b"b")).info
    assert fs.info(NOTES)["size"] == 10
    assert fs.info("workspaces/main/deep/er/b.txt")["version"] == info.version
    assert fs.ls("workspaces", detail=False) == ["workspaces/main"]
    assert fs.ls("workspaces/main", detail=False) == ["workspaces/main/deep", NOTES]
    assert fs.find("workspaces") == ["workspaces/main/deep/er/b.txt", NOTES]
    assert fs.glob("workspaces/*/*.txt") == [NOTES]
    assert fs.glob("workspaces/**/b.*") == ["workspaces/main/deep/er/b.txt"]
    assert fs.isdir("workspaces/main/deep/er")
    assert [*fs.walk("workspaces/main", maxdepth=1)] == [("workspaces/main", ["deep"], ["notes.txt"])]
    assert fs.cat_ranges([NOTES] * 4, [0, 3, -2, 20], [2, None, None, 30]) == [b"01", b"3456789", b"89", b""]
    assert fs.head(NOTES, 3) + fs.tail(NOTES, 3) == b"012789"
    assert fs.du("workspaces/main") == 11
    fs.touch("workspaces/main/empty")
    with fs.open("workspaces/main/empty") as empty:
        assert empty.read() == b""


def test_files_are_moved_copied_and_deleted(fs: CFSFileSystem) -> None:
    fs.makedirs("workspaces/main/a/b", exist_ok=True)
    fs.pipe({"workspaces/main/a/1": b"1", "workspaces/main/a/b/2": b"2"})
    with pytest.raises(FileExistsError):
        fs.mkdir("workspaces/main/a")
    fs.mv("workspaces/main/a/1", "workspaces/main/c")
    assert fs.find("workspaces/main") == ["workspaces/main/a/b/2", "workspaces/main/c"]
    fs.cp("workspaces/main/a/", "workspaces/main/d/", recursive=True)
    assert fs.cat("workspaces/main/d/b/2") == b"2"
    with pytest.raises(IsADirectoryError):
        fs.rm("workspaces/main/a")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("workspaces/main/a")
    fs.rm("workspaces/main/a", recursive=True)
    assert fs.find("workspaces/main") == ["workspaces/main/c", "workspaces/main/d/b/2"]


def test_a_change_by_another_program_is_not_lost(fs: CFSFileSystem, cfs_server: ScriptedServer) -> None:
    """Neither between the opening and the closing of a file, nor between a read and a write."""
    fs.pipe_file(NOTES, b"first")
    known = fs.info(NOTES)["etag"]
    for mode in ("wb", "ab"):
        file = fs.open(NOTES, mode)
        file.write(b"mine")
        fs.pipe_file(NOTES, f"theirs in {mode}".encode())
        with pytest.raises(FileChangedError, match="has changed"):
            file.close()
        assert fs.cat(NOTES) == f"theirs in {mode}".encode()
    with pytest.raises(FileChangedError):
        fs.pipe_file(NOTES, b"mine", etag=known)
    with pytest.raises(FileChangedError):
        fs.rm_file(NOTES, etag=known)
    with pytest.raises(FileChangedError), fs.open(NOTES, "wb", etag=known) as file:
        file.write(b"mine")
    fs.pipe_file(NOTES, b"mine", etag=fs.info(NOTES)["etag"])
    assert fs.cat(NOTES) == b"mine"


def test_a_file_that_another_program_makes_first_is_kept(fs: CFSFileSystem) -> None:
    for mode, error in (("wb", FileChangedError), ("xb", FileExistsError)):
        path = f"workspaces/main/{mode}"
        file = fs.open(path, mode)
        file.write(b"mine")
        fs.pipe_file(path, b"theirs")
        with pytest.raises(error):
            file.close()
        assert fs.cat(path) == b"theirs"


def test_a_file_that_changes_while_it_is_read_is_an_error(fs: CFSFileSystem) -> None:
    """Never the beginning of one version and the end of another."""
    fs.pipe_file(NOTES, b"a" * 100)
    with fs.open(NOTES, block_size=10, cache_options={}) as file:
        assert file.read(5) == b"aaaaa"
        fs.pipe_file(NOTES, b"b" * 100)
        file.seek(90)
        with pytest.raises(FileChangedError):
            file.read(5)


def test_a_transaction_stores_all_at_its_end_or_nothing(fs: CFSFileSystem) -> None:
    with fs.transaction:
        with fs.open(NOTES, "wb") as file:
            file.write(b"kept")
        assert not fs.exists(NOTES)
    assert fs.cat(NOTES) == b"kept"
    with pytest.raises(ZeroDivisionError), fs.transaction, fs.open(NOTES, "wb") as file:
        file.write(b"%d" % (1 // 0))
    assert fs.cat(NOTES) == b"kept"


def test_files_come_and_go_from_this_machine(fs: CFSFileSystem, tmp_path: Path) -> None:
    data = bytes(range(256)) * 20_000
    (tmp_path / "big").write_bytes(data)
    fs.put_file(str(tmp_path / "big"), "workspaces/main/big")
    fs.get_file("workspaces/main/big", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == data
    buffer = io.BytesIO()
    fs.get_file("workspaces/main/big", buffer)
    assert buffer.getvalue() == data
    with fs.open("workspaces/main/big", block_size=100_000) as file:
        file.seek(1_000_000)
        assert file.read(300_000) == data[1_000_000:1_300_000]


async def test_it_is_used_with_coroutines(cfs_server: ScriptedServer) -> None:
    """Many requests at once in the loop of the caller."""
    fs = CFSFileSystem(base_url=cfs_server.url, asynchronous=True, skip_instance_cache=True)
    names = [f"workspaces/main/{n:02}" for n in range(50)]
    await asyncio.gather(*(fs._pipe_file(name, name.encode()) for name in names))
    assert await fs._find("workspaces/main") == names
    assert await fs._cat(names) == {name: name.encode() for name in names}
    await fs.aclose()


def test_it_can_be_sent_to_another_process(fs: CFSFileSystem) -> None:
    again = pickle.loads(pickle.dumps(fs))  # noqa: S301 - our own
    again.pipe_file(NOTES, b"hello")
    assert fs.cat(NOTES) == b"hello"
    again.close()


async def test_rights_are_those_of_the_token(tmp_path: Path) -> None:
    """Without one nothing is read; what a token does not cover is not there."""
    tokens = tmp_path / "tokens.toml"
    secret = make(tokens, "alice", "/sessions/alice", "/workspaces/alice")
    async with running_server(tokens=tokens) as server:
        fs = CFSFileSystem(base_url=server.url, token=secret, asynchronous=True, skip_instance_cache=True)
        await fs._pipe_file("workspaces/alice/a", b"a")
        assert await fs._ls("workspaces", detail=False) == ["workspaces/alice"]
        with pytest.raises(FileNotFoundError):
            await fs._cat_file("workspaces/bob/a")
        with pytest.raises((PermissionError, FileNotFoundError)):
            await fs._pipe_file("workspaces/bob/a", b"a")
        await fs.aclose()
        bare = CFSFileSystem(base_url=server.url, token=secret[:-1], asynchronous=True, skip_instance_cache=True)
        with pytest.raises(PermissionError) as refused:
            await bare._ls("sessions")
        assert isinstance(refused.value.__cause__, Unauthorized)
        await bare.aclose()
