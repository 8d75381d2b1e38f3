"""What a person does by hand: start all of it, chat, Ctrl-C, start it again. The conversation goes on, everywhere."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from cfs.cli.actions import machine_checks
from ports import free_port
from tests.client.terminal import CTRL_C, Terminal, cfs, terminal
from tests.dashboard.support import QUIET, Pages, messages, send

FIRST = "User: My name is Alice.\nAssistant: My name is Alice.\n"
SECOND = "User: What is my name?\nAssistant: What is my name?\n"
THIRD = "User: And again?\nAssistant: And again?\n"


@contextmanager
def up(mount: Path, port: str, data: Path) -> Iterator[Terminal]:
    """`cfs up` at a terminal, until it is ready; Ctrl-C ends it."""
    flags = ("--port", port, *QUIET, "--data-dir", str(data))
    with terminal("", "up", str(mount), *flags) as screen:
        screen.expect(f"CFS is ready on http://localhost:{port} and in {mount}")
        yield screen
        screen.type(CTRL_C)
        code, shown = screen.end()
        assert (code, "Traceback" in shown) == (0, False)


def curl(url: str) -> str:
    command = ["curl", "-s", "-H", "Accept: text/plain", f"{url}/v1/sessions/chat1?wait=20"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.skipif(machine_checks.mount_obstacle() is not None, reason=str(machine_checks.mount_obstacle()))
def test_a_conversation_goes_on_after_ctrl_c(pages: Pages, tmp_path: Path) -> None:
    port = str(free_port())
    url, mount, data = f"http://127.0.0.1:{port}", tmp_path / "mount", tmp_path / "data"
    mount.mkdir()
    with up(mount, port, data):
        said = cfs(url, "chat", "chat1", data=b"My name is Alice.\n")
        assert said.returncode == 0, said.stderr
        page = pages.open(url, "conversation/chat1")
        expect(messages(page)).to_have_count(2)
        assert curl(url) == (mount / "chat1").read_text() == FIRST
    expect(page.locator(".connection")).to_have_attribute("data-state", "lost")
    with up(mount, port, data):
        assert curl(url) == (mount / "chat1").read_text() == FIRST
        with (mount / "chat1").open("a") as file:
            file.write("What is my name?\n")
        assert curl(url) == (mount / "chat1").read_text() == FIRST + SECOND
        expect(messages(page)).to_have_count(4)  # the page was open all the time
        expect(messages(page).nth(0)).to_contain_text("My name is Alice.")
        send(page, "And again?")
        expect(messages(page)).to_have_count(6)
        new = pages.open(url, "conversation/chat1")
        expect(messages(new)).to_have_count(6)
        assert curl(url) == (mount / "chat1").read_text() == FIRST + SECOND + THIRD
        shown = cfs(url, "cat", "chat1")
        assert re.sub(r"\s+$", "\n", shown.stdout.decode()) == FIRST + SECOND + THIRD
