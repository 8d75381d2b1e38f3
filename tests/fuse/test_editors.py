"""vim and nano on a session: they show it, and a line that is added and saved is one message (F1)."""

import os
import pty
import select
import shutil
import subprocess
import time

import pytest

from tests.fuse.support import GUARD_SECONDS, Mount, Stage, names, until
from tests.server.support import environment


class Screen:
    """A program on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self._main, side = pty.openpty()
        self.seen = b""
        self.process = subprocess.Popen(
            command,
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
            env=environment(TERM="xterm", LINES="24", COLUMNS="80", LC_ALL="C.UTF-8"),
        )
        os.close(side)

    def wait_for(self, text: bytes) -> None:
        """Read the screen until it has shown something."""
        end = time.monotonic() + GUARD_SECONDS
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            self._read(0.05)

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._main, keys)

    def ended(self) -> int:
        """Wait for the program's end."""
        end = time.monotonic() + GUARD_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < end, self.seen
            self._read(0.01)
        return self.process.returncode

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._main)

    def _read(self, seconds: float) -> None:
        if select.select([self._main], [], [], seconds)[0]:
            try:
                self.seen += os.read(self._main, 1 << 16)
            except OSError:  # the program has closed its side
                time.sleep(seconds)


def edit(mount: Mount, stage: Stage, name: str, *command: str, keys: list[tuple[bytes, bytes]]) -> int:
    """Let an editor open a session that holds one turn; press keys, each after something was seen."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    stage.say(name, "question one")
    until((mount / name).exists)
    screen = Screen(*command, str(mount / name))
    try:
        for seen, pressed in keys:
            screen.wait_for(seen)
            screen.type(pressed)
        return screen.ended()
    finally:
        screen.close()


VIM = ("vim", "-u", "NONE", "-N")
OPENED = b"Assistant: question one"


@pytest.mark.parametrize("options", [[], ["+set nowritebackup"], ["+set backup"], ["+set noswapfile"]])
def test_vim_adds_a_line(mount: Mount, stage: Stage, options: list[str]) -> None:
    """Open, `Go`, a line, `:wq`: one message, and no file is left."""
    name = f"vim-{len(options)}-{options and options[0][5:]}"
    keys = [(OPENED, b"Goquestion two\x1b"), (b"question two", b":wq\r")]
    assert edit(mount, stage, name, *VIM, *options, keys=keys) == 0
    assert stage.asked(name) == ["question one", "question two"]
    left = {found for found in names(mount.path) if name in found} - {name}
    assert left <= {f"{name}~"}
    for found in left:
        (mount / found).unlink()


def test_vim_cannot_edit_the_past(mount: Mount, stage: Stage, name: str) -> None:
    """The save fails, says so, and nothing is lost."""
    failed = b"successfully written!"  # "don't quit the editor until the file is"
    keys = [(OPENED, b"ggCsomething else\x1b"), (b"something else", b":w\r"), (failed, b"\r:q!\r")]
    edit(mount, stage, name, *VIM, keys=keys)
    assert stage.messages(name) == [("user", "question one"), ("assistant", "question one")]


def test_nano_adds_a_line(mount: Mount, stage: Stage, name: str) -> None:
    """Open, to the end, a line, save, leave: one message."""
    keys = [(OPENED, b"\x1b/question two"), (b"question two", b"\x0f"), (b"File Name", b"\r"), (b"Wrote", b"\x18")]
    assert edit(mount, stage, name, "nano", "--ignorercfiles", keys=keys) == 0
    assert stage.asked(name) == ["question one", "question two"]
