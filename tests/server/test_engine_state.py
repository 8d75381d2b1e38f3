"""What the engine has computed survives the server by default, and goes with the session (issue: warm restarts)."""

import shutil
import signal
import threading
from pathlib import Path

import httpx

from cfs_server.engine.kvcache.state_folder import NAME
from tests.server.support import Process, serving

LONG = "My name is Alice. " * 40


def turn(server: Process, session: str, content: str) -> dict[str, int]:
    """Run a turn; returns its usage."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        answer = client.post(
            f"/v1/sessions/{session}/messages?wait=60",
            json={"content": content, "settings": {"max_tokens": 4, "temperature": 0}},
        )
        assert answer.status_code == 200, answer.text
        usage: dict[str, int] = answer.json()["usage"]
        return usage


def state(data: Path) -> list[Path]:
    """List the files of state, whole or not."""
    return sorted((data / "engine" / NAME).rglob("*.*t*"))


def until_state(server: Process, data: Path, count: int) -> list[Path]:
    """Wait until so many files are written and the engine has nothing else to do with them."""
    while True:
        metrics = httpx.get(f"{server.url}/metrics").text
        written = 'name="disk_pending_bytes"} 0.0' in metrics and f'name="disk_files"}} {float(count)}' in metrics
        if written and len(files := state(data)) == count:
            return files
        threading.Event().wait(0.05)


def test_a_session_is_warm_after_the_server_was_killed(tmp_path: Path) -> None:
    """By default: only `--data-dir` is given. The deletion of the session removes the state at once."""
    with serving("--data-dir", str(tmp_path)) as server:
        first = turn(server, "s", LONG)
        assert first["cached_tokens"] == 0
        until_state(server, tmp_path, 1)
        server.signal(signal.SIGKILL)
        server.process.wait()
    with serving("--data-dir", str(tmp_path)) as server:
        again = turn(server, "s", "And now?")
        assert again["prompt_tokens"] - again["cached_tokens"] <= again["prompt_tokens"] / 5
        assert httpx.delete(f"{server.url}/v1/sessions/s").status_code == 204
        until_state(server, tmp_path, 0)


def test_state_that_outlived_its_session_is_removed_at_the_start(tmp_path: Path) -> None:
    """As when the machine stops between the two."""
    data, aside = tmp_path / "data", tmp_path / "aside"
    with serving("--data-dir", str(data)) as server:
        turn(server, "gone", LONG)
        until_state(server, data, 1)
        turn(server, "stays", f"Hello. {LONG}")
        until_state(server, data, 3)  # one is what both begin with
        shutil.copytree(data / "engine", aside)
        assert httpx.delete(f"{server.url}/v1/sessions/gone").status_code == 204
        until_state(server, data, 2)
        server.signal(signal.SIGKILL)
        server.process.wait()
    shutil.rmtree(data / "engine")
    aside.rename(data / "engine")
    assert len(state(data)) == 3
    with serving("--data-dir", str(data)) as server:
        until_state(server, data, 2)
        usage = turn(server, "stays", "And now?")
        assert usage["cached_tokens"] > usage["prompt_tokens"] / 2


def test_servers_that_keep_nothing_write_no_state(tmp_path: Path) -> None:
    """Those whose sessions are in memory, and those that are told so."""
    for flags in (("--store", "memory"), ("--engine-disk", "none")):
        with serving("--data-dir", str(tmp_path), *flags) as server:
            turn(server, "s", LONG)
            assert "disk_files" not in httpx.get(f"{server.url}/metrics").text
    assert not (tmp_path / "engine").exists()
    assert not Path("none").exists()


def test_the_type_of_keys_and_values_is_shown_and_a_wrong_one_refused(tmp_path: Path) -> None:
    """At the start, in one line."""
    with serving("--kv-type", "q8_0") as server:
        assert httpx.get(f"{server.url}/readyz").json()["model"]["engine"]["kv_type"] == "q8_0"
        turn(server, "s", LONG)
        assert 'kv_type="q8_0"' in httpx.get(f"{server.url}/metrics").text
