"""`cfs model`: what is on this machine, what a file says of itself, and what a server has loaded (C10, E5)."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import httpx
import pytest

from tests.engine.hub import Hub
from tests.engine.test_downloads import AWAY, GOOD, at
from tests.server.support import CFS, environment, run_cfs, serving

SHORT = "qwen3:0.6b"


def listed(folder: Path, *arguments: str) -> list[list[str]]:
    """Run `cfs model ls` and return the words of its lines."""
    done = run_cfs("model", "ls", *arguments, **at(AWAY, folder))
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split() for line in done.stdout.splitlines()]


def test_the_embedded_model_is_always_listed(tmp_path: Path) -> None:
    head, row = listed(tmp_path)
    assert head == ["NAME", "SIZE", "LICENCE"]
    assert row == ["cfs-demo", row[1], "MiB", "Apache-2.0"]
    assert run_cfs("model", "list", **at(AWAY, tmp_path)).stdout.split() == [*head, *row]


def test_the_names_that_can_be_downloaded_are_listed(tmp_path: Path) -> None:
    rows = {row[0]: row[1:] for row in listed(tmp_path, "--all")}
    assert rows["smollm2:135m"] == ["not", "here", "Apache-2.0"]
    assert rows["gemma3:1b"] == ["not", "here", "Gemma", "Terms", "of", "Use"]


def test_a_model_is_downloaded_listed_shown_and_deleted(hub: Hub, tmp_path: Path) -> None:
    """Standard output of a download is its path; the remark names the licence."""
    pulled = run_cfs("model", "pull", "qwen3", **at(hub.address, tmp_path))
    path = Path(pulled.stdout.strip())
    assert pulled.stderr == f"Licence: Apache-2.0. Use it: cfs serve --model {SHORT}\n"
    row = json.loads(run_cfs("model", "pull", SHORT, "--json", **at(hub.address, tmp_path)).stdout)
    assert row == {
        "name": SHORT, "path": str(path), "bytes": len(hub.content), "licence": "Apache-2.0", "embedded": False
    }  # fmt: skip
    assert json.loads(run_cfs("model", "ls", "--json", **at(AWAY, tmp_path)).stdout)[1] == row
    shown = json.loads(run_cfs("model", "show", SHORT, "--json", **at(AWAY, tmp_path)).stdout)
    assert shown["checksum"] == hub.tag
    assert shown["source"] == "hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf"
    deleted = run_cfs("model", "rm", SHORT, **at(AWAY, tmp_path))
    assert (deleted.returncode, deleted.stderr) == (0, f"{SHORT}: deleted, 3.3 MiB free\n")
    assert [each.name for each in path.parent.iterdir()] == []
    assert len(listed(tmp_path)) == 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cfs-demo", "it is part of CFS"),
        (SHORT, "it has not been downloaded"),
        ("qwen3:0.6", "there is no model of this name; did you mean qwen3:0.6b or qwen3:1.7b?"),
        ("hf:maker/model", "a model of the hub is written hf:OWNER/REPO:FILE"),
    ],
)
def test_what_cannot_be_deleted(tmp_path: Path, name: str, reason: str) -> None:
    done = run_cfs("model", "rm", name, **at(AWAY, tmp_path))
    assert (done.returncode, done.stderr) == (1, f"cfs: {name}: {reason}\n")


def test_a_model_that_is_not_here_is_shown(tmp_path: Path) -> None:
    """With its source and licence, and how to get it."""
    done = run_cfs("model", "show", "gemma3:1b", **at(AWAY, tmp_path))
    assert "Gemma Terms of Use" in done.stdout
    assert done.stderr == "It has not been downloaded: cfs model pull gemma3:1b\n"


def test_a_file_is_shown(base: Path, tmp_path: Path) -> None:
    """A base model's lack of a template is said in words."""
    done = run_cfs("model", "show", str(base), **at(AWAY, tmp_path))
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["name", "base"])
    assert "chat template  no\n" in done.stdout
    assert done.stderr.startswith("This model has no chat template")
    failed = run_cfs("model", "show", "smolm2", **at(AWAY, tmp_path))
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert "did you mean smollm2" in failed.stderr


def test_on_a_terminal_the_progress_is_shown(hub: Hub, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    process = subprocess.Popen(
        [CFS, "model", "pull", GOOD],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        env=environment(**at(hub.address, tmp_path)),
        text=True,
    )
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 4096):
            shown += piece
    except OSError:  # the other side of the terminal is closed
        pass
    os.close(master)
    path = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert b"3.3/3.3 MiB" in shown
    assert path.endswith("good.gguf\n")


@pytest.mark.parametrize("name", ["good.gguf", "qwen4"])
def test_what_is_no_name_is_wrong_usage(tmp_path: Path, name: str) -> None:
    failed = run_cfs("model", "pull", name, **at(AWAY, tmp_path))
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (2, "", 1)
    assert failed.stderr.startswith(f"cfs: {name}: there is no model of this name")


def test_a_server_shows_what_it_has_loaded(base: Path) -> None:
    """`cfs model ps`, `/v1/models` and `/v1/whoami` name the model, its size and what there is to know."""
    with serving("--model", str(base)) as server:
        done = run_cfs("model", "ps", "--url", server.url)
        (card,) = json.loads(run_cfs("model", "ps", "--json", "--url", server.url).stdout)
        me = httpx.get(f"{server.url}/v1/whoami", timeout=60).json()
    assert me["model"]["notes"] == card["notes"]
    head, row = (line.split() for line in done.stdout.splitlines())
    assert head == ["NAME", "PARAMETERS", "CONTEXT", "LOADED", "SINCE", "PRICE"]
    assert row[:3] == ["base", "0.1", "M"]
    assert done.stderr.startswith("This model has no chat template")
    assert (card["id"], card["embedded"], card["has_chat_template"], len(card["notes"])) == ("base", False, False, 1)


def test_without_a_server_nothing_is_loaded() -> None:
    done = run_cfs("model", "ps", "--url", AWAY)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
