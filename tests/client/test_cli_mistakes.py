"""Typical mistakes, each with its exit code and one line that says what to do (C10)."""

import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cfs.cli.actions import machine_checks
from cfs.cli.base.exit_codes import NO_READER
from ports import free_port
from tests.client.harness import HttpHarness
from tests.client.terminal import CTRL_C, Running, cfs, ended, home_in, terminal
from tests.fuse.support import mounting
from tests.server.support import CFS, environment, run_cfs, serving


@dataclass(frozen=True)
class Place:
    """Where the mistakes are made: servers, and a folder with files."""

    url: str
    guarded: str
    token: str
    folder: Path

    def fill(self, text: str) -> str:
        """Put the names of this place into an argument."""
        port = self.url.rpartition(":")[2]
        return text.format(url=self.url, guarded=self.guarded, port=port, token=self.token, folder=self.folder)


@dataclass(frozen=True)
class Mistake:
    """A command, the exit code it ends with, and what its line says. A wrong usage may show how to call it before."""

    name: str
    command: str
    code: int
    says: str
    data: bytes = b""
    env: dict[str, str] = field(default_factory=dict)


MISTAKES = [
    Mistake("command", "sned main hello", 2, "Did you mean 'send'?"),
    Mistake("command in a narrow terminal", "sned main hello", 2, "Did you mean", env={"COLUMNS": "40"}),
    Mistake("sub-command without its group", "blame main", 2, "Did you mean 'cfs files blame'?"),
    Mistake("sub-command that is like a command", "tree main", 2, "Did you mean 'cfs agent tree'?"),
    Mistake("sub-command", "token crate", 2, "Did you mean 'create'?"),
    Mistake("option", "ls --jsn", 2, "Did you mean '--json'?"),
    Mistake("no argument", "send", 2, "Missing argument 'SESSION'"),
    Mistake("empty message", "send main", 2, "the message is empty"),
    Mistake("message that is no text", "send main", 2, "the message is not UTF-8", data=b"\xff"),
    Mistake("wrong port", "ls --url http://127.0.0.1:9", 3, "start one with `cfs serve`"),
    Mistake("server down", "send main hello --url 127.0.0.1:9", 3, "start one with `cfs serve`"),
    Mistake("address", "ls --url ftp://example.org", 2, "http://127.0.0.1:8000"),
    Mistake("wrong token", "ls --url {guarded}", 1, "CFS_TOKEN", env={"CFS_TOKEN": "wrong"}),
    Mistake("no token", "ls --url {guarded}", 1, "--token-file"),
    Mistake("token file is missing", "ls --token-file {folder}/none", 2, "No such file"),
    Mistake("token file is a directory", "ls --token-file {folder}", 2, "Is a directory"),
    Mistake("name of a session", "cat mian", 1, "Did you mean 'main'?"),
    Mistake("name of a session to change", "set mian temperature=0", 1, "Did you mean 'main'?"),
    Mistake("name that no session can have", "cat ../x", 2, "must not begin with '.'"),
    Mistake("setting", "set main temprature=1", 2, "Did you mean 'temperature'?"),
    Mistake("value of a setting", "set main temperature=warm", 2, "temperature: input should be a valid number"),
    Mistake("setting of a turn", "send main hello --set temperature=9", 2, "less than or equal to 5"),
    Mistake("name is taken", "rename main other", 1, "there is a session 'other' already"),
    Mistake("model of a session", "set main model=qwen", 1, "there is no model 'qwen' here; there are scripted"),
    Mistake("model of a turn", "send main hello --set model=qwen", 1, "there are scripted"),
    Mistake("model to serve", "serve --port 0 --model qwem3", 2, "did you mean qwen3"),
    Mistake("unlike any model to serve", "serve --port 0 --model mine", 2, "CFS can download smollm2, smollm3"),
    Mistake("file of a model", "serve --port 0 --model {folder}/none.gguf", 2, "no such file"),
    Mistake("default model", "connect --default qwen", 1, "`cfs connect`", env={"CFS_CONNECTIONS": "none.toml"}),
    Mistake("model to disconnect", "connect --remove qwen", 1, "`cfs connect`", env={"CFS_CONNECTIONS": "none.toml"}),
    Mistake("no question is open", "answer main allow", 1, "no question is open"),
    Mistake("time", "share create main --expires soon", 2, "write 12h, 30d or 1y"),
    Mistake("import of a directory", "import {folder}", 1, "Is a directory"),
    Mistake("import of a missing file", "import {folder}/none.tar", 1, "No such file"),
    Mistake("import of another file", "import {folder}/junk.tar", 1, "no tar file"),
    Mistake("import of another tar", "import {folder}/other.tar", 1, "no export of CFS"),
    Mistake("export over a directory", "export {folder}/sub main --force", 1, "Is a directory"),
    Mistake("export over a file", "export {folder}/junk.tar main", 1, "--force"),
    Mistake("export of nothing", "export {folder}/x.tar", 2, "--all"),
    Mistake("a second server", "up --no-mount --port {port}", 1, "runs at {url} already"),
    Mistake("no server in the background", "down --url http://127.0.0.1:9", 1, "cfs up --background"),
    Mistake("consent without a terminal", "agent run hello --commands ask", 2, "needs a terminal"),
    Mistake("language C", "cat mian", 1, "Did you mean 'main'?", env={"LC_ALL": "C", "LANG": "C"}),
    Mistake("language zh_CN", "cat 你", 1, "there is no session '你'", env={"LC_ALL": "zh_CN.GB18030"}),
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server that requires tokens, and one."""
    tokens = str(tmp_path_factory.mktemp("tokens") / "tokens.toml")
    token = run_cfs("token", "create", "alice", "--grant", "/", "--tokens", tokens).stdout.strip()
    with serving("--engine", "scripted", "--tokens", tokens) as server:
        yield server.url, token


@pytest.fixture
def place(http_harness: HttpHarness, guarded: tuple[str, str], tmp_path: Path) -> Place:
    """The sessions `main` and `other`, and some files."""
    for name in ("main", "other"):
        http_harness.write(name, "hi")
    (tmp_path / "sub").mkdir()
    (tmp_path / "junk.tar").write_bytes(b"junk")
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.add(tmp_path / "junk.tar", "junk.tar")
    return Place(http_harness.url, *guarded, tmp_path)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_a_mistake_gets_one_line_that_helps(place: Place, mistake: Mistake) -> None:
    arguments = [place.fill(word) for word in mistake.command.split()]
    around = {"COLUMNS": "300", **home_in(place.folder), **mistake.env}
    code, output, errors = ended(cfs(place.url, *arguments, data=mistake.data, **around))
    lines = errors.splitlines()
    assert (code, output, "Traceback" in errors) == (mistake.code, "", False), errors
    if lines[0].startswith("Usage: "):
        assert code == 2
        assert lines[-1].startswith("Error: ")
        assert mistake.env or len(lines) == 4, errors
    else:
        assert len(lines) == 1, errors
        assert errors.startswith("cfs: ")
    assert place.fill(mistake.says) in errors


def test_an_extra_that_is_missing_is_named(place: Place) -> None:
    program = (
        "from importlib.metadata import EntryPoint; from cfs.cli import app;"
        "app.build([EntryPoint('agents', 'no_such_package.cli:app', app.GROUP)])(['agent', 'run', 'hello'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment(COLUMNS="300"), check=False
    )
    code, output, errors = ended(done)
    assert (code, output, "Traceback" in errors) == (2, "", False)
    assert "pip install 'cfs-local[agents]'" in errors.splitlines()[-1]


@pytest.mark.parametrize("command", ["ls", "cat main", "--help", "doctor --json", "set main"])
def test_a_full_disk_is_one_line(place: Place, command: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [CFS, *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env=environment(CFS_URL=place.url),
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "cfs: input or output failed: No space left on device\n")


@pytest.mark.parametrize("command", ["ls", "cat main", "set main"])
def test_a_closed_pipe_needs_no_line(place: Place, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [CFS, *command.split()],
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=60,
            env=environment(CFS_URL=place.url),
            check=False,
        )
    assert (done.returncode, done.stderr) == (NO_READER, b"")


@pytest.mark.skipif(machine_checks.mount_obstacle() is not None, reason=str(machine_checks.mount_obstacle()))
@pytest.mark.parametrize("flags", [[], ["--background"]], ids=["foreground", "background"])
def test_a_directory_with_a_mount_is_not_mounted_again(
    http_harness: HttpHarness, tmp_path: Path, flags: list[str]
) -> None:
    """The first mount goes on, and the line says how to end it."""
    path = tmp_path / "mnt"
    with mounting(http_harness.url, path) as mount:
        code, output, errors = ended(cfs(http_harness.url, "mount", str(path), *flags))
        assert (code, output, errors.count("\n")) == (1, "", 1), errors
        assert errors.startswith(f"cfs: something is mounted on {path} already: unmount it (`fusermount3 -u {path}`)")
        (mount / "main").write_text("hi\n")
        assert (mount / "main").read_text() == "User: hi\nAssistant: hi\n"


# Colours

_MARK = re.compile(r"^(?P<before>\x1b\[3[123]m\x1b\[1m|)(ok|--|!!)(?P<after>\x1b\[0m|) \S", re.MULTILINE)


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": "", "TERM": "dumb"}, False)],
    ids=["terminal", "NO_COLOR", "dumb"],
)
def test_a_diagnosis_at_a_terminal_has_colours_unless_they_are_unwanted(
    http_harness: HttpHarness, env: dict[str, str], coloured: bool
) -> None:
    with terminal(http_harness.url, "doctor", CFS_PORT=str(free_port()), **env) as screen:
        code, shown = screen.end()
    marks = list(_MARK.finditer(shown.replace("\r\n", "\n")))
    assert code == 0
    assert len(marks) > 8
    assert {(bool(mark["before"]), bool(mark["after"])) for mark in marks} == {(coloured, coloured)}
    assert shown.count("\x1b") == (3 * len(marks) if coloured else 0), "no escape code is shown as text"
    assert "\\x1b" not in shown


@pytest.mark.parametrize(
    "env", [{}, {"FORCE_COLOR": "1"}, {"CLICOLOR_FORCE": "1"}], ids=["piped", "forced", "clicolor"]
)
def test_a_piped_diagnosis_has_no_escape_codes(http_harness: HttpHarness, env: dict[str, str]) -> None:
    code, output, errors = ended(
        cfs(http_harness.url, "doctor", data=b"", CFS_PORT=str(free_port()), TERM="xterm", **env)
    )
    assert (code, errors, "\x1b" in output) == (0, "", False)
    assert len(list(_MARK.finditer(output))) > 8


# Ctrl-C


def interrupted(running: Running) -> None:
    """Interrupt a command, which ends in one line."""
    running.process.send_signal(signal.SIGINT)
    code, _, errors = running.end()
    assert (code, "Traceback" in errors, errors.count("\n")) == (130, False, 1), errors
    assert "interrupted" in errors


def test_an_interrupt_while_a_server_does_not_answer() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as silent,
        Running(f"http://127.0.0.1:{silent.getsockname()[1]}", "ls") as running,
        silent.accept()[0] as connection,
    ):
        connection.recv(1)
        interrupted(running)


@pytest.mark.parametrize("command", ["send", "ask"])
def test_an_interrupt_while_a_reply_is_awaited(http_harness: HttpHarness, command: str) -> None:
    http_harness.hold()
    with Running(http_harness.url, command, "main", "one two") as running:
        http_harness.wait_until(lambda: http_harness.server.engine.requests)
        running.process.send_signal(signal.SIGINT)
        code, output, errors = running.end()
    assert (code, output, "Traceback" in errors) == (130, "", False)
    assert errors.splitlines()[-1].startswith("cfs: interrupted; the turn continues: cfs cat ")


def test_an_interrupt_of_an_import(http_harness: HttpHarness, tmp_path: Path) -> None:
    file = tmp_path / "pipe.tar"
    os.mkfifo(file)
    with Running(http_harness.url, "import", str(file)) as running, file.open("wb") as writer:
        writer.write(b"\0" * 512)
        writer.flush()
        interrupted(running)


def test_an_interrupt_while_a_log_is_followed(http_harness: HttpHarness) -> None:
    http_harness.write("main", "hi")
    with Running(http_harness.url, "cat", "main", "--follow") as running:
        running.until("Assistant: hi\n")
        interrupted(running)


def test_an_interrupt_at_a_prompt(http_harness: HttpHarness) -> None:
    with terminal(http_harness.url, "send", "main") as screen:
        screen.expect("Ctrl-D on a line of its own sends it.")
        screen.type(CTRL_C)
        code, shown = screen.end()
        assert (code, "Traceback" in shown, "cfs: interrupted" in shown) == (130, False, True)
    assert len(http_harness.server.store) == 0


def test_an_interrupt_while_modules_are_imported(tmp_path: Path) -> None:
    """The import of a command's module waits for a pipe, and is interrupted there."""
    waiting = tmp_path / "typer"
    waiting.mkdir()
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    (waiting / "__init__.py").write_text(
        f"import time\nopen({str(ready)!r}, 'w').close()\nwhile True: time.sleep(0.05)\n"
    )  # a signal just before a sleep does not end it
    with Running("http://127.0.0.1:9", "ls", PYTHONPATH=str(tmp_path)) as running:
        ready.open().close()
        interrupted(running)
