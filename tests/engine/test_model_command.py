"""`cfs model`: what is on this machine, and fetching more from a stand-in of the hub (C10, E5)."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

from tests.server.support import CFS, environment, run_cfs

GOOD = "hf:maker/model:good.gguf"


def hub_at(endpoint: str, server: Path) -> dict[str, str]:
    """Environment of a process whose hub is there and whose models are kept here."""
    return {"HF_ENDPOINT": endpoint, "HF_HOME": str(server), "HF_HUB_DISABLE_XET": "1"}


def test_the_embedded_model_is_always_listed(tmp_path: Path) -> None:
    listed = run_cfs("model", "list", **hub_at("http://127.0.0.1:9", tmp_path))
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.split() == [listed.stdout.split()[0], "MiB", "cfs-demo", "(embedded)"]


def test_a_model_is_fetched_and_then_listed(hub: str, tmp_path: Path, tiny: Path) -> None:
    """Its path is all that is printed into a pipe; the second time the hub need not be there."""
    pulled = run_cfs("model", "pull", GOOD, **hub_at(hub, tmp_path))
    assert (pulled.returncode, pulled.stderr) == (0, "")
    assert Path(pulled.stdout.strip()).read_bytes() == tiny.read_bytes()
    away = hub_at("http://127.0.0.1:9", tmp_path) | {"HF_HUB_OFFLINE": "1"}
    again = json.loads(run_cfs("model", "pull", GOOD, "--json", **away).stdout)
    assert again == {
        "name": GOOD, "path": pulled.stdout.strip(), "bytes": tiny.stat().st_size, "embedded": False
    }  # fmt: skip
    listed = json.loads(run_cfs("model", "list", "--json", **away).stdout)
    assert [(model["name"], model["embedded"]) for model in listed] == [("cfs-demo", True), (GOOD, False)]
    assert listed[1] == again


def test_on_a_terminal_the_progress_is_shown(hub: str, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    env = environment(**hub_at(hub, tmp_path))
    process = subprocess.Popen(
        [CFS, "model", "pull", GOOD], stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=env, text=True
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
    assert b"100%" in shown
    assert path.endswith("good.gguf\n")


def test_what_cannot_be_fetched_is_told_in_a_line(hub: str, tmp_path: Path) -> None:
    failed = run_cfs("model", "pull", "hf:maker/model:absent.gguf", **hub_at(hub, tmp_path))
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (1, "", 1)
    assert failed.stderr.endswith("the repository has no file absent.gguf\n")


def test_what_is_no_name_of_the_hub_is_wrong_usage(tmp_path: Path) -> None:
    failed = run_cfs("model", "pull", "good.gguf", **hub_at("http://127.0.0.1:9", tmp_path), COLUMNS="200")
    assert (failed.returncode, "hf:OWNER/REPO:FILE" in failed.stderr) == (2, True)
