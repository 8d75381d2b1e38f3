"""The program `cfs` as a process of its own: run to its end, read while it runs, or used at a terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.fork_server import CFS, Program, run
from tests.server.support import environment

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
PATIENCE_SECONDS = 60.0


def cfs(url: str, *arguments: str, data: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command against a server, with something on its standard input, to its end."""
    return run([CFS, *arguments], data=data, timeout=60, env=environment(CFS_URL=url, **env))


def ended(done: subprocess.CompletedProcess[bytes]) -> tuple[int, str, str]:
    """What came of it: exit code, standard output, standard error."""
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class Running:
    """A command that runs, its output in pipes."""

    def __init__(self, url: str, *arguments: str, **env: str) -> None:
        self.process = Program(
            [CFS, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(CFS_URL=url, **env),
        )
        self._seen = b""

    def until(self, text: str) -> str:
        """Read its standard output up to and with some text."""
        output = self.process.stdout
        assert output is not None
        while text.encode() not in self._seen:
            piece = os.read(output.fileno(), 4096)
            assert piece, f"it ended before {text!r}: {self._seen!r}"
            self._seen += piece
        found, _, self._seen = self._seen.partition(text.encode())
        return found.decode() + text

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, the rest of standard output, standard error."""
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, (self._seen + output).decode(), errors.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Terminal:
    """A command at a terminal of 200 columns: what it shows can be awaited, and keys can be pressed."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._shown = ""

    def expect(self, text: str) -> str:
        """Wait until some text is shown, and return what came up to it; it is looked for behind the one before."""
        end = time.monotonic() + PATIENCE_SECONDS
        while text not in self._shown:
            piece = self._read(end - time.monotonic())
            assert piece, f"{text!r} is not shown, but {self._shown!r}"
            self._shown += piece
        before, _, self._shown = self._shown.partition(text)
        return before

    def type(self, keys: str) -> None:
        """Press some keys."""
        os.write(self._master, keys.encode())

    def press_until(self, key: str, text: str) -> None:
        """Press a key, and again as long as nothing happens, until some text is shown.

        For a Ctrl-C at a prompt: Python's line editing takes no notice of one that comes while it echoes a key, until
        the next key or signal.
        """
        self.type(key)
        while text not in self._shown:
            if piece := self._read(1.0):
                self._shown += piece
            else:
                self.type(key)
        self.expect(text)

    def line(self, text: str) -> None:
        """Type a line, and wait for its echo."""
        self.type(text + "\r")
        self.expect(text)

    def end(self) -> tuple[int, str]:
        """Wait for its end: exit code, and the rest of what it has shown."""
        while piece := self._read(PATIENCE_SECONDS):
            self._shown += piece
        return self.process.wait(PATIENCE_SECONDS), self._shown

    def _read(self, seconds: float) -> str:
        ready, _, _ = select.select([self._master], [], [], max(0.0, seconds))
        if not ready:
            return ""
        try:
            return os.read(self._master, 4096).decode(errors="replace")
        except OSError:  # the other side of the terminal is closed
            return ""


@contextmanager
def terminal(url: str, *arguments: str, **env: str) -> Iterator[Terminal]:
    """Run a command at a terminal; it is killed at the end if it has not ended by then."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    around = environment(CFS_URL=url, TERM="xterm") | {"NO_COLOR": "1"}
    for size in ("COLUMNS", "LINES"):  # pytest-xdist sets them; the terminal has a size of its own
        around.pop(size, None)
    process = Program(
        [CFS, *arguments],
        controlled=True,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=around | env,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(master)


def home_in(folder: Path) -> dict[str, str]:
    """Environment of a user whose files are in a folder."""
    return {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
