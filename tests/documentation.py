"""The code blocks of the documentation, and a reader who types them.

A comment before each block is its mark: `<!-- tested -->` or `<!-- tested: name -->` if a test runs it, and
`<!-- not run: reason -->` if none can.
"""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

from tests.server.support import CFS, environment
from tests.shell_programs import shell_path

ROOT = Path(__file__).parent.parent
GENERATED = {"docs/cli.md"}  # from the commands themselves, and compared with them by scripts/docs --check
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
SECONDS = 90
"""No block of a page takes longer, unless something is broken."""


class Block(NamedTuple):
    """A code block: where it stands, what it says, its mark, and the language of a fenced one."""

    page: str
    line: int
    text: str
    mark: str | None
    language: str = ""


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """All code blocks of a page, as Markdown defines them, each with the comment before it."""
    tokens = MarkdownIt("commonmark").parse(text)
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type in ("fence", "code_block") and token.map:
            comment = re.fullmatch(r"<!-- (.+) -->", before.content.strip()) if before and before.content else None
            yield Block(page, token.map[0] + 1, token.content, comment[1] if comment else None, token.info)


BLOCKS = [
    block
    for path in PAGES
    if (name := path.relative_to(ROOT).as_posix()) not in GENERATED
    for block in blocks_of(name, path.read_text(encoding="utf-8"))
]


def block(page: str, name: str) -> str:
    """The text of one block."""
    (found,) = (block.text for block in BLOCKS if (block.page, block.mark) == (page, f"tested: {name}"))
    return found


class Terminal:
    """A program that stays in a terminal of its own, and all that it has printed."""

    def __init__(self, command: str, cwd: Path, env: dict[str, str]) -> None:
        """Start it."""
        self.command = command
        self.shown = ""
        self._changed = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout:
            for line in self._process.stdout:
                with self._changed:
                    self.shown += line
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, expected: str) -> None:
        """Wait until it has printed all lines of a page's block."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not missing(expected, self.shown), SECONDS)
            assert missing(expected, self.shown) == [], f"{self.command}\n{self.shown}"

    def press_ctrl_c(self) -> None:
        """Interrupt it, and wait until it has ended."""
        os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait(SECONDS)
        self._reader.join()

    def end(self) -> None:
        """Kill it with all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()


class Reader:
    """A reader who types the blocks of one page, in their order, into one shell and further terminals.

    `sh` blocks go into the shell, `python` blocks into a file that Python runs, and `text` blocks are what the block
    before them shows. A block with the mark `tested: terminal` is a program that stays; the `text` block behind it says
    when it is ready. The comment `<!-- press: Ctrl-C -->` ends the program that was started first.
    """

    prelude = 'set -euo pipefail\ncurl() { command curl -sSf "$@"; }\n'

    def __init__(
        self, home: Path, port: int, replace: dict[str, str] | None = None, env: dict[str, str] | None = None
    ) -> None:
        """Sit down in an empty home; the page's port 8000 is another one here. `env` has all that the shell knows."""
        self.home = home
        self.terminals: list[Terminal] = []
        self.shown = ""
        self._replace = {"localhost:8000": f"localhost:{port}", "127.0.0.1:8000": f"127.0.0.1:{port}"} | (replace or {})
        path = os.pathsep.join([shell_path(), str(CFS.parent), os.environ["PATH"]])
        url = f"http://127.0.0.1:{port}"
        self._env = environment(PATH=path, HOME=str(home), LC_ALL="C.UTF-8", CFS_PORT=str(port), CFS_URL=url)
        ours = ("CFS_DATA_DIR", "CFS_CONNECTIONS", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
        self._env = {name: value for name, value in self._env.items() if name not in ours}
        self._env = self._env if env is None else env
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=home,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.type(self.prelude)

    def read(self, page: str) -> None:
        """Do all that a page says."""
        text = (ROOT / page).read_text(encoding="utf-8")
        presses = [text[: at.start()].count("\n") for at in re.finditer(r"<!-- press: Ctrl-C -->", text)]
        for block in blocks_of(page, text):
            while presses and presses[0] < block.line:
                presses.pop(0)
                self.terminals.pop(0).press_ctrl_c()
            if block.mark and block.mark.startswith("tested"):
                self.follow(block)

    def follow(self, block: Block) -> None:
        """Do what one block says."""
        text = block.text
        for ours, here in self._replace.items():
            text = text.replace(ours, here)
        if block.mark == "tested: terminal":
            self.start(text.strip())
        elif block.mark == "tested: ready":
            self.terminals[-1].wait_for(text)
        elif block.language == "text":
            assert missing(text, self.shown) == [], f"{block.page}:{block.line}\n{self.shown}"
        elif block.language == "python":
            (self.home / "program.py").write_text(text)
            self.type(f"python3 {self.home}/program.py")
        else:
            assert block.language == "sh", f"{block.page}:{block.line} has no language"
            self.type(text)

    def start(self, command: str) -> Terminal:
        """Start a program in a further terminal."""
        self.terminals.append(Terminal(command, self.home, self._env))
        return self.terminals[-1]

    def type(self, script: str) -> None:
        """Run some lines in the shell, up to the first that fails."""
        script_file, output = self.home / ".typed", self.home / ".shown"
        script_file.write_text(script)
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.write(f". {script_file} </dev/null >{output} 2>&1; echo done\n")
        self._shell.stdin.flush()
        alarm = threading.Timer(SECONDS, self._kill)
        alarm.start()
        ended = self._shell.stdout.readline()
        alarm.cancel()
        self.shown = output.read_text(encoding="utf-8")
        assert ended == "done\n", f"{script}\n{self.shown}"

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)

    def leave(self) -> None:
        """End everything that was started."""
        for terminal in reversed(self.terminals):
            terminal.end()
        self._kill()
        self._shell.communicate()


def missing(expected: str, shown: str) -> list[str]:
    """Return the lines of a page's output that a program did not print in this order.

    A number may be another one, `...` stands for anything, and what the model says may differ.
    """
    lines = iter(shown.splitlines())
    return [line for line in expected.splitlines() if line.strip() and not any(map(_pattern(line).fullmatch, lines))]


def _pattern(line: str) -> re.Pattern[str]:
    spoken = re.match(r"Assistant: ", line)
    if spoken:
        return re.compile(re.escape(spoken[0]) + ".+")
    pieces = re.split(r"(\.\.\.|\d+)", line.rstrip())
    patterns = (".*" if piece == "..." else r"\d+" if piece.isdigit() else re.escape(piece) for piece in pieces)
    return re.compile("".join(patterns) + r"\s*")
