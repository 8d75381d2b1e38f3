"""Starts `cfs` and workers of the engine by a fork of a process that has imported them: a tenth of the processor time.

To import `cfs serve` or a worker takes longer than most tests that need one. The first `Program` of a test process
starts the fork server, `python -m tests.fork_server`. Each program is a process of its own with its own arguments,
environment, directory and streams, and a child of the test's process, as after any `Popen`. Only the interpreter and
the imported modules are there already. `Program` is no more than `Popen` for another command, for variables that Python
reads at its start, where coverage is measured, and on other systems than Linux.
"""

import asyncio
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from tests.pacing import SWITCHES, python_path, sitecustomize

CFS = Path(sys.executable).with_name("cfs")
PRELOADED = (
    "anyio._backends._asyncio",
    "cfs.cli.app",
    "cfs.cli.commands",
    "cfs.transports.http",
    "cfs_acp.agent",
    "cfs_acp.cli",
    "cfs_acp.serve",
    "cfs_agents.main.cli",
    "cfs_fuse.checks",
    "cfs_fuse.cli",
    "cfs_mcp.cli",
    "cfs_mcp.serve",
    "cfs_server.app",
    "cfs_server.dav.app",
    "cfs_server.engine.host.supervisor",
    "cfs_server.main.cli",
    "cfs_server.main.connect_cli",
    "cfs_server.main.model_cli",
    "cfs_server.main.serve",
    "mcp.server.mcpserver",
    "cfs_webdav.app",
    "encodings.idna",
    "httpcore",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)
MODULES = ("cfs", "cfs_fuse")
"""What `python -m` may run in a fork, too."""
SCRIPTS = (str(Path(__file__).with_name("agents") / "mcp/odd_server.py"),)
"""What `python` may run in a fork."""
WORKER = ["-P", "-m", "cfs_server.engine.worker.worker"]
"""How an engine starts its worker. It has a fork server of its own: a fork takes longer, the more is imported."""
_ENVIRONMENT = dict(os.environ)
"""That of the fork server: no test has changed it yet."""
_READ_AT_START = ("PYTHON", "LC_", "LANG", "COVERAGE", "MALLOC_", "LD_", "OMP_")
_CONTROLLED = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal the controlling one, so that Ctrl-C is a signal, and becomes the program."""
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_BEFORE = ("executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags", "shell")
_AFTER = ("restore_signals", "gid", "gids", "uid", "umask", "start_new_session")
_OPTIONS = (*_BEFORE, *_PIPES, *_AFTER)
"""In the order in which `Popen` passes them on to where a process is made; later versions of Python add some."""
_OF_POPEN_ALONE = ("executable", "preexec_fn", "shell", "gid", "gids", "uid")
_PR_SET_CHILD_SUBREAPER = 36
_LARGEST = 1 << 20
_MOST_DESCRIPTORS = 16


class Program(subprocess.Popen[Any]):
    """`Popen` for `cfs` and workers; `controlled` makes its standard input its controlling terminal."""

    def __init__(self, command: Sequence[str | Path], *, controlled: bool = False, **options: Any) -> None:
        self._controlled = controlled
        super().__init__([str(word) for word in command], **options)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        """Ask the fork server for the process, and take what it starts as the child."""
        options = dict(zip(_OPTIONS, rest, strict=False))
        environment = os.environ if options["env"] is None else options["env"]
        if _needs_interpreter(args, environment) or any(options[name] for name in _OF_POPEN_ALONE):
            command = [sys.executable, "-c", _CONTROLLED, *args] if self._controlled else args
            super()._execute_child(command, *rest)  # type: ignore[misc]
            return
        streams = [options["p2cread"], options["c2pwrite"], options["errwrite"]]
        passed = [int(descriptor) for descriptor in options["pass_fds"]]
        request = {
            "arguments": args,
            "directory": str(options["cwd"] or Path.cwd()),
            "environment": dict(environment),
            "controlled": self._controlled,
            "session": options["start_new_session"],
            "passed": passed,
        }
        standard = [own if fd == -1 else fd for own, fd in enumerate(streams)]
        self.pid = _fork_server(workers=args[1:4] == WORKER).start(request, [*standard, *passed])
        self._child_created = True
        self._close_pipe_fds(*(options[name] for name in _PIPES))  # type: ignore[attr-defined]


def run(
    command: Sequence[str | Path], *, timeout: float, data: str | bytes | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run `cfs` to its end, with something on its standard input; `options` are those of `Popen`."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with Program(command, **streams) as process:
        try:
            output, errors = process.communicate(data, timeout=timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextmanager
def asyncio_programs() -> Iterator[None]:
    """Make what asyncio starts meanwhile a `Program` where it is one: `cfs` of libraries, workers of engines."""
    events = asyncio.unix_events
    ours = SimpleNamespace(Popen=Program, PIPE=subprocess.PIPE)
    before, events.subprocess = events.subprocess, ours  # type: ignore[attr-defined]
    try:
        yield
    finally:
        events.subprocess = before  # type: ignore[attr-defined]


def start_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python reads at its start: a program with others than these cannot be a fork."""
    usual = ("LC_ALL", "C.UTF-8")  # what Python does without a locale
    return {
        name: value for name, value in environment.items() if name.startswith(_READ_AT_START) and (name, value) != usual
    }


def _needs_interpreter(command: list[str], environment: Mapping[str, str]) -> bool:
    """Return whether a program cannot be a fork."""
    python = command[0] == sys.executable
    module = python and command[1:2] == ["-m"] and command[2] in MODULES
    worker = python and command[1:4] == WORKER
    script = python and command[1] in SCRIPTS
    preloaded = command[0] == str(CFS) or module or worker or script
    measured = "COVERAGE_RUN" in os.environ
    paced = any(map(environment.get, SWITCHES))
    if not paced:  # a fork takes its gate without this path, but another pace too late
        environment = {name: value for name, value in environment.items() if value != python_path()}
    other = start_variables(environment) != start_variables(_ENVIRONMENT) or (paced and "PACE_GATE" in environment)
    return not preloaded or measured or other or sys.platform != "linux"


class _ForkServer:
    """The process that forks, seen from the one that asks."""

    _adopting = threading.Lock()
    """Of all: two at once would each take away the other's right to adopt."""

    def __init__(self, *, workers: bool) -> None:
        preloaded = WORKER[-1:] if workers else PRELOADED
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno()), *preloaded],
                cwd=Path(__file__).parent.parent,
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)

    @property
    def traces(self) -> tuple[int, int]:
        """Its process number, and the descriptor that leads to it."""
        return self._process.pid, self._socket.fileno()

    def start(self, request: dict[str, Any], streams: list[int]) -> int:
        """Start a program; return its process number. It is a child of this process when this returns."""
        prctl = ctypes.CDLL(None).prctl
        with self._adopting:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)  # the child of a process that ends goes to the next one above with this
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
                answer = self._socket.recv(64)
            finally:
                prctl(_PR_SET_CHILD_SUBREAPER, 0)
        assert answer, "the fork server has ended"
        return int(answer)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


_starting = threading.Lock()
_started: dict[bool, _ForkServer] = {}


def traces() -> list[tuple[int, int]]:
    """Return the process numbers of the fork servers that programs have started, and the descriptors to them."""
    return [server.traces for server in _started.values()]


def _fork_server(*, workers: bool) -> _ForkServer:
    with _starting:
        if workers not in _started:
            _started[workers] = _ForkServer(workers=workers)
        return _started[workers]


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns it in the new process, and None at the end."""
    while True:
        message, streams, _, _ = socket.recv_fds(requests, _LARGEST, _MOST_DESCRIPTORS)
        if not message:
            return None
        if b"s3://" in message:  # takes half a second, and is of no use to most programs
            importlib.import_module("cfs_filesystem._s3")
        waits, goes = os.pipe()
        reads, writes = os.pipe()
        if (between := os.fork()) == 0:
            if child := os.fork():
                os.write(writes, str(child).encode())
                os._exit(0)
            for unused in (goes, reads, writes):
                os.close(unused)
            os.read(waits, 1)  # until the process between has ended, and the test's process is the parent
            os.close(waits)
            requests.close()
            found: dict[str, Any] = json.loads(message)
            _place(streams, [0, 1, 2, *found["passed"]])
            return found
        for unused in (waits, writes, *streams):
            os.close(unused)
        child_number = os.read(reads, 64)
        os.waitpid(between, 0)
        os.close(reads)
        os.close(goes)
        requests.send(child_number)


def _place(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors the numbers that they have where the program was asked for."""
    above = 1 + max([*descriptors, *numbers])
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _become(request: dict[str, Any]) -> None:
    """Take over what a new program has of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["controlled"] or request["session"]:
        os.setsid()
    if request["controlled"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = str(CFS.parent)
    if not any(map(os.environ.get, SWITCHES)):
        sitecustomize.main()
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # the ones that are there remember what was at them
        setattr(sys, name, _stream(number, getattr(sys, name)))
        setattr(sys, f"__{name}__", getattr(sys, name))


def _stream(number: int, like: TextIO) -> TextIO:
    """Open a standard stream as the interpreter does."""
    lines = number == 2 or os.isatty(number)
    mode = "w" if number else "r"
    binary = open(number, f"{mode}b", closefd=False)  # noqa: SIM115 - it stays open
    return io.TextIOWrapper(binary, like.encoding, like.errors, line_buffering=lines)


def main() -> None:
    """Import, fork, and be `cfs` in each fork."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LARGEST)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in sys.argv[2:]:
        with contextlib.suppress(ImportError):  # a distribution that is not installed
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if (request := _serve(requests)) is not None:
        _become(request)
        _end(request["arguments"])


def _end(arguments: list[str]) -> None:
    """Run a program, and end as the interpreter does, but without taking apart what it shares with the fork server."""
    code: object = None
    try:
        _run(arguments)
    except SystemExit as end:
        code = end.code
    if isinstance(code, int | None):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):  # the interpreter says what is wrong with an output
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code or 0)
    sys.exit(code)  # type: ignore[arg-type]


def _run(arguments: list[str]) -> None:
    if arguments[0] == str(CFS):
        sys.argv = arguments
        importlib.import_module("cfs.cli").main()
    elif arguments[1] in SCRIPTS:
        sys.argv = arguments[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    elif arguments[1:4] == WORKER:
        sys.argv = arguments[3:]
        importlib.import_module(WORKER[-1]).main()
    else:
        sys.argv = arguments[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
