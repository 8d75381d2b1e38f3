"""How `cfs serve` starts, and how it refuses to (E2, G9, P3)."""

import asyncio
import json
import os
import re
import signal
import socket
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import httpx
import pytest
import sniffio

from cfs_server.config.settings import ConfigurationError, ServerSettings, load
from cfs_server.engine.contract.interface import ModelLoadError
from cfs_server.http.middleware import is_loopback
from cfs_server.main.serve import bind, listen_on, on_asyncio
from ports import free_port
from tests.fuse.support import until
from tests.server.support import CFS, environment, run_cfs, serving

SCRIPTED = ("--engine", "scripted")
MODEL = resources.files("cfs_server.models") / "cfs-demo.gguf"


def nobody_listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def bad_models(folder: Path) -> dict[str, Path]:
    whole = MODEL.read_bytes()
    contents = {
        "empty": b"",
        "text": b"I am no model at all, but long enough to be read.\n" * 4,
        "truncated": whole[: len(whole) // 2],
        "head only": whole[:24],
        "another version": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
        "noise behind the head": whole[:24] + os.urandom(100_000),
    }
    found = {"missing": folder / "missing.gguf", "folder": folder}
    for name, content in contents.items():
        found[name] = folder / f"{name.replace(' ', '-')}.gguf"
        found[name].write_bytes(content)
    return found


@pytest.mark.parametrize(
    "kind",
    ["missing", "folder", "empty", "text", "truncated", "head only", "another version", "noise behind the head"],
)
def test_a_model_that_cannot_be_loaded_is_told_in_one_line_before_anything_listens(tmp_path: Path, kind: str) -> None:
    path = bad_models(tmp_path)[kind]
    port = free_port()
    ready = tmp_path / "ready"
    ended = run_cfs("serve", "--model", str(path), "--port", str(port), "--ready-file", str(ready))
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("20")]  # without the log's lines
    assert (ended.returncode, ended.stdout, len(lines)) == (2, "", 1), ended.stderr
    assert lines[0].startswith(f"cfs: {path}: ")
    assert nobody_listens(port)
    assert not ready.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_port_in_use_is_told_in_one_line_before_a_model_is_looked_for(host: str) -> None:
    """The model that is named does not exist, and nothing is said about it."""
    address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(address[0]) as taken:
        try:
            taken.bind(address[4])
        except OSError as error:
            pytest.skip(f"this machine has no {host}: {error}")
        taken.listen()
        port = taken.getsockname()[1]
        ended = run_cfs("serve", "--model", "/no/such/model.gguf", "--host", host, "--port", str(port))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"cfs: cannot listen on {host}:{port}: ")
    assert ended.stderr.count("\n") == 1


def test_an_address_of_another_machine_is_told_before_a_model_is_looked_for() -> None:
    flags = ("--model", "/no/such/model.gguf", "--allow-remote")
    for host in ("192.0.2.1", "no-such-host.invalid"):
        ended = run_cfs("serve", *flags, "--host", host)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.splitlines()[-1].startswith(f"cfs: cannot listen on {host}")


@pytest.mark.server
def test_a_port_that_another_begins_to_use_meanwhile_is_told_in_one_line() -> None:
    """Two that have taken it and do not listen yet do not see each other."""
    with bind("127.0.0.1", 0, 30) as first, bind("127.0.0.1", first.getsockname()[1], 30) as second:
        listen_on(first)
        with pytest.raises(ConfigurationError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*choose another --port"):
            listen_on(second)


def test_nobody_can_connect_before_the_model_is_there(tmp_path: Path) -> None:
    """A hub that does not answer stands for a model that takes long."""
    log = tmp_path / "log"
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as hub, log.open("w") as err:
        endpoint = f"http://127.0.0.1:{hub.getsockname()[1]}"
        starting = subprocess.Popen(
            [CFS, "serve", "--model", "hf:maker/model:slow.gguf", "--port", str(port)],
            stderr=err,
            env=environment(HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path)),
        )
        try:
            hub.accept()[0].close()  # the port was taken before the model was asked for
            assert nobody_listens(port)
            assert starting.wait(60) == 2
        finally:
            starting.kill()
            starting.wait()
    assert log.read_text().count("cannot be reached and there is no local copy") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])  # noqa: S104 - refused, that is the point
def test_other_addresses_than_loopback_are_refused_as_long_as_there_are_no_tokens(host: str) -> None:
    ended = run_cfs("serve", *SCRIPTED, "--host", host)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "--allow-remote" in ended.stderr


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_the_risk_can_be_accepted_and_is_told_loudly(how: str) -> None:
    flags = ["--allow-remote"] if how == "flag" else []
    env = {"CFS_ALLOW_REMOTE_WITHOUT_TOKENS": "1"} if how == "environment" else {}
    with serving(*SCRIPTED, "--host", "0.0.0.0", *flags, **env) as process:  # noqa: S104
        port = process.url.rpartition(":")[2]
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60).status_code == 200
        process.signal()
        assert "NO ACCESS CONTROL" in process.ended()[1]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("10.0.0.1", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_an_output_that_cannot_be_written_does_not_end_the_server(tmp_path: Path) -> None:
    """/dev/full is a log on a full disk."""
    ready = tmp_path / "ready"
    command = f"exec {CFS} serve --engine scripted --data-dir temporary --port 0 --ready-file {ready} >/dev/full 2>&1"
    process = subprocess.Popen(["sh", "-c", command], env=environment())
    try:
        until(lambda: (ready.exists() and ready.read_text().endswith("\n")) or process.poll() is not None)
        assert httpx.get(f"{ready.read_text().strip()}/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_a_proxy_of_an_upstream_that_cannot_be_used_is_said_in_one_line() -> None:
    upstream = ("--upstream", "http://upstream.example/v1", "--upstream-model", "m", "--port", "0")
    ended = run_cfs("serve", *upstream, "--data-dir", "temporary", ALL_PROXY="socks5://127.0.0.1:9")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "the proxy socks5://127.0.0.1:9 needs another package" in ended.stderr


def test_a_free_port_is_said_on_stdout_and_in_the_ready_file_which_goes_with_the_server(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with serving(*SCRIPTED, "--ready-file", str(ready)) as process:
        assert httpx.get(f"{process.url}/readyz", timeout=60).json()["model"]["name"] == "scripted"
        assert ready.read_text() == process.url + "\n"
        process.signal(signal.SIGINT)
        assert process.ended()[0] == 0
    assert not ready.exists()


def test_the_first_screen_says_what_a_user_needs(tmp_path: Path) -> None:
    """Where it listens, with which model, and where sessions are kept: no internals of the engine, no empty lists."""
    shown = tmp_path / "shown"
    with shown.open("w") as err:
        command = [str(CFS), "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment())
        assert process.stdout
        assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
        process.terminate()
        process.communicate(timeout=30)
    note, *events = [line.split("]", 1)[1].split() for line in shown.read_text().splitlines()]
    assert note[:5] == ["cfs-demo", "is", "a", "toy", "of"]
    assert [words[0] for words in events] == ["ready", "stopping", "stopped"]
    assert not re.search(r"plan=|[{}]|\[\]", shown.read_text())


def test_json_logs_are_json_line_by_line() -> None:
    with serving(*SCRIPTED, "--log-format", "json") as process:
        httpx.get(f"{process.url}/v1/sessions/caf%C3%A9", headers={"X-Request-ID": "r1"}, timeout=60)
        process.signal()
        lines = [json.loads(line) for line in process.ended()[1].splitlines()]
    (request,) = [line for line in lines if line["event"] == "request"]
    assert (request["id"], request["method"], request["path"], request["status"]) == (
        "r1",
        "GET",
        "/v1/sessions/caf%C3%A9",
        404,
    )
    assert request["ms"] >= 0
    assert {"ready", "stopping", "stopped"} <= {line["event"] for line in lines}


def test_a_flag_goes_before_the_environment_the_environment_before_the_file_the_file_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cfs.toml"
    file.write_text('port = 1\nping = 1.5\nmax_sessions = 1\nmodel = "file.gguf"\n')
    monkeypatch.setenv("CFS_PORT", "2")
    monkeypatch.setenv("CFS_PING", "2.5")
    monkeypatch.setenv("CFS_URL", "ignored: it belongs to the clients")
    monkeypatch.setenv("CFS_MODEL", "")
    settings = load({"port": 3}, file)
    assert (settings.port, settings.ping, settings.max_sessions, settings.model) == (3, 2.5, 1, "file.gguf")
    assert settings.shutdown_grace == ServerSettings.model_fields["shutdown_grace"].default
    assert settings.limits.sessions == 1


@pytest.mark.parametrize(
    ("store", "folder", "file"),
    [
        ("default", "/data", "/data/sessions.db"),
        ("fast", "/data", "/data/sessions.db"),
        ("memory", "/data", None),
        ("/else/where", "/data", "/else/where"),
        ("default", "temporary", None),
        ("fast", "temporary", None),
        ("/else/where", "temporary", "/else/where"),
    ],
)
def test_the_store_and_the_data_folder_say_where_sessions_are_kept(store: str, folder: str, file: str | None) -> None:
    settings = load({"store": store, "data_dir": folder})
    assert settings.store_file == (file and Path(file))


def test_an_embedded_server_keeps_nothing_and_a_served_one_keeps_sessions_in_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (ServerSettings().data_dir, ServerSettings().store_file) == (None, None)
    monkeypatch.delenv("CFS_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/share")
    assert load().store_file == Path("/share/cfs/sessions.db")


def test_the_same_holds_for_the_program(tmp_path: Path) -> None:
    file = tmp_path / "cfs.toml"
    file.write_text('host = "0.0.0.0"\nengine = "scripted"\nport = 70000\n')
    refused = run_cfs("serve", CFS_CONFIG=str(file))
    assert (refused.returncode, refused.stderr.count("\n"), "port" in refused.stderr) == (2, 1, True)
    refused = run_cfs("serve", "--config", str(file), "--port", "0")
    assert (refused.returncode, "--allow-remote" in refused.stderr) == (2, True)
    with serving(CFS_CONFIG=str(file), CFS_HOST="127.0.0.1") as process:
        assert process.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("colour = 1", "colour"),
        ("port = 'x'", "port"),
        ("port = ", "cfs.toml"),
        ("ping = -1", "ping"),
        ("max_streams = 0", "max_streams"),
        ("keep = '90'", "keep"),
        ("store = 'mysql://here'", "mysql"),
        ("store = 'postgresql://here nowhere'", "white space"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_told_by_name(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "cfs.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=said) as refused:
        load({}, file)
    assert "\n" not in str(refused.value)


def test_a_configuration_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such configuration file"):
        load({}, tmp_path / "none.toml")


def test_errors_of_the_engine_and_of_the_configuration_are_told_apart_from_defects() -> None:
    assert not issubclass(ModelLoadError, ConfigurationError)


def test_anyio_knows_the_loop_of_the_server_without_a_search() -> None:
    """Every time limit of anyio asks which loop runs. The server's thread has the answer, also outside of a task."""

    async def between_tasks() -> str:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[str] = loop.create_future()
        loop.call_soon(lambda: found.set_result(sniffio.current_async_library()))
        return await found

    with on_asyncio():
        assert asyncio.run(between_tasks()) == "asyncio"
        with ThreadPoolExecutor(1) as pool, pytest.raises(sniffio.AsyncLibraryNotFoundError):
            pool.submit(sniffio.current_async_library).result()
    with pytest.raises(sniffio.AsyncLibraryNotFoundError):
        sniffio.current_async_library()
