"""`cfs doctor` says what is there and what to do about what is not (C10)."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import make_random_gguf
from cfs import api
from cfs.api import Call, Request
from cfs.transports.http import Client
from ports import free_port
from tests.client.harness import HttpHarness
from tests.client.terminal import cfs, ended
from tests.server.support import Process, run_cfs, serving

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def model_server() -> Iterator[Process]:
    """`cfs serve` with the embedded model."""
    with serving() as process:
        yield process


@pytest.fixture(scope="module")
def recurrent_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of recurrent layers with random weights."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "recurrent.gguf", "recurrent")


def examined(url: str, **env: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the checks by name."""
    code, output, errors = ended(cfs(url, "doctor", "--json", data=b"", **env))
    assert errors == ""
    found = json.loads(output)
    assert found["ok"] == (code == 0)
    return code, {check["name"]: check for check in found["checks"]}


def test_a_machine_that_can_serve_is_healthy_without_a_server() -> None:
    code, checks = examined(NOBODY, CFS_PORT=str(free_port()))
    assert code == 0
    assert checks["llama.cpp"]["found"].startswith("runs the embedded model cfs-demo: attention, kept as ranges, ")
    assert {checks[name]["status"] for name in ("Python", "packages for cfs serve", "llama.cpp")} == {"ok"}
    assert checks["server"]["status"] == "warning"
    assert "cfs serve" in checks["server"]["advice"]
    assert {"libfuse", "/dev/fuse", "davfs2", "disk space"} <= set(checks)
    assert all(check["advice"] for check in checks.values() if check["status"] != "ok")


def test_a_configured_model_is_described_without_loading_it(recurrent_model: Path) -> None:
    code, checks = examined(NOBODY, CFS_PORT=str(free_port()), CFS_MODEL=str(recurrent_model))
    assert code == 0
    assert checks["model"]["found"].endswith("(0 MiB): recurrent, 92,096 parameters, context of 2,048 tokens")


def test_a_damaged_model_is_an_error(recurrent_model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(recurrent_model.read_bytes()[:5000])
    code, checks = examined(NOBODY, CFS_PORT=str(free_port()), CFS_MODEL=str(damaged))
    assert (code, checks["model"]["found"]) == (1, f"{damaged}: the file is truncated or damaged")


def test_the_folder_of_the_engines_state_is_looked_at(tmp_path: Path) -> None:
    """Nothing is made in it; one that cannot be used is a warning, for the engine does without it then."""
    folder = tmp_path / "state"
    code, checks = examined(NOBODY, CFS_PORT=str(free_port()), CFS_ENGINE_DISK=str(folder), CFS_ENGINE_DISK_BYTES="1")
    assert (code, checks["engine disk"]["status"]) == (0, "ok")
    assert checks["engine disk"]["found"].endswith("MiB in 0 files")
    assert not folder.exists()
    folder.touch()
    code, checks = examined(NOBODY, CFS_PORT=str(free_port()), CFS_ENGINE_DISK=str(folder), CFS_KV_TYPE="q8_0")
    assert "MiB of q8_0," in checks["llama.cpp"]["found"]
    assert (code, checks["engine disk"]["status"]) == (0, "warning")
    assert "this is no folder" in checks["engine disk"]["found"]


def test_a_server_keeps_state_where_it_is_told_to(tmp_path: Path) -> None:
    """And says in `/metrics` how much may be there."""
    with (
        serving("--engine-disk", str(tmp_path), "--engine-disk-bytes", "1000000") as process,
        Client(process.url) as client,
    ):
        metrics = client.call(Call(Request("GET", "/metrics"), lambda answer: answer.body.decode()))
        assert 'cfs_engine_gauge{name="disk_limit_bytes"} 1e+06' in metrics
        assert 'cfs_engine_gauge{name="disk_files"} 0.0' in metrics
    assert (tmp_path / "cfs-engine-state").is_dir()


def test_a_running_server_is_asked(model_server: Process) -> None:
    port = model_server.url.rpartition(":")[2]
    code, checks = examined(model_server.url, CFS_PORT=port)
    assert code == 0
    assert checks[f"port {port}"]["found"].startswith("CFS ")
    assert checks["ready"]["found"].startswith("cfs-demo, context of ")
    assert checks["token"]["found"].startswith("you are local")
    assert "cells total" in checks["engine"]["found"]


def test_a_port_that_somebody_else_has_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        code, checks = examined(NOBODY, CFS_PORT=str(port))
    assert (code, checks[f"port {port}"]["status"]) == (1, "error")
    assert "cfs serve --port" in checks[f"port {port}"]["advice"]


@pytest.mark.parametrize(
    ("env", "name", "found"),
    [
        ({"CFS_MODEL": "/no/such.gguf"}, "model", "no such file"),
        ({"CFS_MODEL": "hf:a/b:c.gguf"}, "model", "there is no local copy"),
        ({"CFS_PORT": "many"}, "settings", "'port'"),
    ],
)
def test_what_keeps_the_server_from_starting_is_an_error(
    env: dict[str, str], name: str, found: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A model is not fetched for that."""
    server = str(tmp_path_factory.mktemp("hub"))
    code, checks = examined(NOBODY, HF_HOME=server, HF_ENDPOINT=NOBODY, **{"CFS_PORT": str(free_port())} | env)
    assert (code, checks[name]["status"]) == (1, "error")
    assert found in checks[name]["found"]


def test_people_get_a_line_for_each_thing_and_advice(http_harness: HttpHarness) -> None:
    code, output, errors = ended(cfs(http_harness.url, "doctor", CFS_PORT=str(free_port())))
    assert (code, errors) == (0, "")
    assert "ok Python" in output
    assert "ok server" in output
    assert "\x1b" not in output


def test_something_else_that_speaks_http_is_no_server() -> None:
    code, output, _ = ended(cfs("http://127.0.0.1:9/elsewhere", "doctor", "--json", CFS_PORT=str(free_port())))
    assert (code, json.loads(output)["checks"][-1]["status"]) == (0, "warning")


def test_the_file_of_the_sessions_is_shown(tmp_path: Path) -> None:
    """Its place, size, contents, the free space, who uses it, and what a restore has set aside."""
    env = {"CFS_DATA_DIR": str(tmp_path), "CFS_PORT": str(free_port())}
    with serving("--engine", "scripted", CFS_DATA_DIR=str(tmp_path)) as process:
        with Client(process.url) as client:
            client.call(api.create("chat"))
        assert cfs(process.url, "backup", str(tmp_path / "b.db")).returncode == 0
        found = examined(process.url, **env)[1]["sessions"]
        assert (found["status"], f"in use by process {process.process.pid}" in found["found"]) == ("ok", True)
    found = examined(NOBODY, **env)[1]["sessions"]
    assert found["status"] == "ok"
    assert re.fullmatch(rf"{tmp_path}/sessions.db: \d+\.\d MiB, \d+\.\d GiB free, 1 session", found["found"])
    assert run_cfs("restore", str(tmp_path / "b.db"), "--force", CFS_DATA_DIR=str(tmp_path)).returncode == 0
    aside = examined(NOBODY, **env)[1]["old sessions"]
    assert (aside["status"], "sessions.db.replaced-" in aside["found"]) == ("warning", True)
    assert "workspaces" not in aside["found"]
    (tmp_path / "sessions.db").write_bytes(b"junk" * 1000)
    code, checks = examined(NOBODY, **env)
    assert (code, checks["sessions"]["status"], "--store-repair" in checks["sessions"]["advice"]) == (1, "error", True)


def test_workspaces_that_a_restore_has_set_aside_are_listed(tmp_path: Path) -> None:
    """Also those of a folder elsewhere, and the versions of their files."""
    places = {"CFS_DATA_DIR": str(tmp_path / "data"), "CFS_WORKSPACES": str(tmp_path / "files" / "work")}
    with serving("--engine", "scripted", **places) as process, Client(process.url) as client:
        client.call(api.create("chat"))
        client.call(api.write_file("/workspaces/chat/notes", b"text", new=True))
        assert cfs(process.url, "backup", str(tmp_path / "b.tar")).returncode == 0
    assert run_cfs("restore", str(tmp_path / "b.tar"), "--force", **places).returncode == 0
    aside = examined(NOBODY, CFS_PORT=str(free_port()), **places)[1]["old sessions"]
    names = re.findall(r"([a-z.]+)\.replaced-\w+", aside["found"])
    assert sorted(names) == ["sessions.db", "versions.db", "work"]
    assert str(tmp_path / "data") in aside["advice"]
    assert str(tmp_path / "files") in aside["advice"]


def test_sessions_in_memory_are_said_to_end_with_the_server() -> None:
    found = examined(NOBODY, CFS_PORT=str(free_port()), CFS_STORE="memory")[1]["sessions"]
    assert (found["status"], "memory" in found["found"]) == ("ok", True)
