"""Starts `cfs` and workers of the engine by a fork of a process that has imported them: a tenth of the processor time.

To import `cfs serve` or a worker takes longer than most tests that need one. The first `Program` of a test process
starts the fork server, `python -m tests.fork_server`. Each program is a process of its own with its own arguments,
environment, directory and streams, and a child of the test's process, as after any `Popen`. Only the interpreter and
the imported modules are there already. `Program` is no more than `Popen` for another command, for variables that Python
reads at its start, where coverage is measured, and on other systems than Linux.

What such a program starts itself, the worker of `cfs serve` or the server of `cfs up`, is a fork of that program.
"""

import asyncio
import atexit
import contextlib
import contextvars
import ctypes
import fcntl
import gc
import importlib
import io
import json
import logging
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import traceback
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TextIO

from tests.pacing import SWITCHES, python_path, sitecustomize

CFS = Path(sys.executable).with_name("cfs")
PACKAGES = ("cfs", "cfs_acp", "cfs_agents", "cfs_filesystem", "cfs_fuse", "cfs_mcp", "cfs_server", "cfs_webdav")
"""Of these all modules are imported, also those that a command imports when it runs."""
RARE = (
    "cfs_filesystem._s3",
    "cfs_server.engine.kvcache",
    "cfs_server.engine.llama",
    "cfs_server.engine.worker",
)
"""But for these, and what is in them: few programs need them, and they take long."""
PRELOADED = (
    *PACKAGES,
    "anyio._backends._asyncio",
    "encodings.idna",
    "genai_prices",
    "httpcore",
    "mcp.server.mcpserver",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)
MODULES = ("cfs", "cfs.cli.child", "cfs_fuse")
"""What `python -m` may run in a fork, too."""
SCRIPTS = (str(Path(__file__).with_name("agents") / "mcp/odd_server.py"),)
"""What `python` may run in a fork."""
WORKER = ["-P", "-m", "cfs_server.engine.worker.worker"]
"""How an engine starts its worker. It has a fork server of its own: a fork takes longer, the more is imported."""
PROBE = ["-P", "-m", "cfs_server.engine.llama.probe"]
"""How a server tests a model file: a module that workers need, too."""
WORKER_SCRIPTS = [
    ["-P", str(Path(__file__).with_name("engine") / name)] for name in ("hanging_worker.py", "odd_worker.py")
]
"""How tests start workers with a fault."""
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
_AFTER = ("restore_signals", "gid", "gids", "uid", "umask", "start_new_session", "process_group")
_OPTIONS = (*_BEFORE, *_PIPES, *_AFTER)
"""In the order in which `Popen` passes them on to where a process is made; later versions of Python add some."""
_OF_POPEN_ALONE = ("executable", "preexec_fn", "shell", "gid", "gids", "uid")
_UNBUFFERED = "PYTHONUNBUFFERED"
_UNWRITTEN = 120
"""The exit code of an interpreter that cannot write its output."""
_SWITCH_SECONDS, _THRESHOLDS = sys.getswitchinterval(), gc.get_threshold()
"""Those of a new interpreter."""
_PR_SET_CHILD_SUBREAPER = 36
_LARGEST = 1 << 20
_MOST_DESCRIPTORS = 16


class _Forked(subprocess.Popen[Any]):
    """`Popen` whose program is a fork where it can be one."""

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        options = dict(zip(_OPTIONS, rest, strict=False))
        environment = os.environ if options["env"] is None else options["env"]
        command = list(args)
        if any(options[name] for name in _OF_POPEN_ALONE) or self._needs_interpreter(command, environment):
            self._interpret(args, *rest)
            return
        streams = [options["p2cread"], options["c2pwrite"], options["errwrite"]]
        passed = [int(descriptor) for descriptor in options["pass_fds"]]
        request = {
            "arguments": command,
            "directory": str(options["cwd"] or Path.cwd()),
            "environment": dict(environment),
            "session": options["start_new_session"],
            "group": options.get("process_group", -1),
            "passed": passed,
        }
        standard = [own if fd == -1 else fd for own, fd in enumerate(streams)]
        self.pid = self._fork(request, [*standard, *passed])
        self._child_created = True
        self._close_pipe_fds(*(options[name] for name in _PIPES))  # type: ignore[attr-defined]

    def _needs_interpreter(self, args: list[str], environment: Mapping[str, str]) -> bool:
        return _needs_interpreter(args, environment)

    def _interpret(self, args: list[str], *rest: Any) -> None:
        super()._execute_child(args, *rest)  # type: ignore[misc]

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Start the program with these descriptors; return its process number. It is a child of this process."""
        raise NotImplementedError


class Program(_Forked):
    """`Popen` for `cfs` and workers; `controlled` makes its standard input its controlling terminal."""

    def __init__(self, command: Sequence[str | Path], *, controlled: bool = False, **options: Any) -> None:
        self._controlled = controlled
        super().__init__([str(word) for word in command], **options)

    def _interpret(self, args: list[str], *rest: Any) -> None:
        super()._interpret([sys.executable, "-c", _CONTROLLED, *args] if self._controlled else args, *rest)

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        workers = _is_worker(request["arguments"]) or request["arguments"][1:4] == PROBE
        return _fork_server(workers=workers).start(request | {"controlled": self._controlled}, descriptors)


class _ProgramOfFork(_Forked):
    """`Popen` in a program that is a fork itself: it forks this process."""

    def _needs_interpreter(self, args: list[str], environment: Mapping[str, str]) -> bool:
        mount = args[1:3] == ["-m", "cfs_fuse"] or "mount" in args  # tests find mounts by their arguments
        return mount or super()._needs_interpreter(args, environment)

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()  # or the fork has what is not written yet, too
        began, begins = os.pipe()
        if (child := os.fork()) == 0:
            _begin_in_fork(request, descriptors, begins)
        os.close(begins)
        os.read(began, 1)  # returns nothing once the fork has become the program, as after any `Popen`
        os.close(began)
        return child


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


FORKING = SimpleNamespace(**vars(subprocess) | {"Popen": Program})
"""`subprocess` for a bench in tests, which then starts forks. The bench itself starts interpreters."""


def _run_probe(command: Sequence[str], *, capture_output: bool, check: bool, **options: Any) -> Any:
    assert (capture_output, check) == (True, False)
    return run(command, **options)


PROBING = SimpleNamespace(run=_run_probe, TimeoutExpired=subprocess.TimeoutExpired)
"""`subprocess` for `cfs_server.engine.llama.probe` in tests."""


def start_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python reads at its start: a program with others than these cannot be a fork."""
    usual = ("LC_ALL", "C.UTF-8")  # what Python does without a locale
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name != _UNBUFFERED and (name, value) != usual
    }


def _needs_interpreter(command: list[str], environment: Mapping[str, str]) -> bool:
    """Return whether a program cannot be a fork."""
    python = command[0] == sys.executable
    module = python and ((command[1:2] == ["-m"] and command[2] in MODULES) or command[1:4] == PROBE)
    worker = python and _is_worker(command)
    script = python and command[1] in SCRIPTS
    preloaded = command[0] == str(CFS) or module or worker or script
    measured = "COVERAGE_RUN" in os.environ
    paced = any(map(environment.get, SWITCHES))
    if not paced:  # a fork takes its gate without this path, but another pace too late
        environment = {name: value for name, value in environment.items() if value != python_path()}
    other = start_variables(environment) != start_variables(_ENVIRONMENT) or (paced and "PACE_GATE" in environment)
    return not preloaded or measured or other or sys.platform != "linux"


def _is_worker(command: list[str]) -> bool:
    return command[1:4] == WORKER or command[1:3] in WORKER_SCRIPTS


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
        found: dict[str, Any] = json.loads(message)
        if b"s3://" in message:  # takes half a second, and is of no use to most programs
            importlib.import_module("cfs_filesystem._s3")
        if _needs_worker(found["arguments"]):  # so that it can fork its worker
            importlib.import_module(WORKER[-1])
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
            _place(streams, [0, 1, 2, *found["passed"]])
            return found
        for unused in (waits, writes, *streams):
            os.close(unused)
        child_number = os.read(reads, 64)
        os.waitpid(between, 0)
        os.close(reads)
        os.close(goes)
        requests.send(child_number)


def _needs_worker(arguments: Sequence[str]) -> bool:
    """Return whether a program may start a worker of the engine."""
    return not {"serve", "up"}.isdisjoint(arguments) and "scripted" not in arguments


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
    if request.get("controlled") or request["session"]:
        os.setsid()
    elif request["group"] >= 0:
        os.setpgid(0, request["group"])
    if request.get("controlled"):
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
    subprocess.Popen = _ProgramOfFork  # type: ignore[misc]
    asyncio.create_subprocess_exec = _create_subprocess_exec  # type: ignore[assignment]


def _begin_in_fork(request: dict[str, Any], descriptors: Sequence[int], begins: int) -> NoReturn:
    """Become a program in a fork of another one, of which nothing is to go on."""
    try:
        own = [os.dup(descriptor) for descriptor in descriptors]
        for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if descriptor not in (*own, begins):
                with contextlib.suppress(OSError):  # that by which the folder was read
                    os.close(descriptor)
        above = 1 + max([*own, *request["passed"]])
        begins, before = fcntl.fcntl(begins, fcntl.F_DUPFD, above), begins
        os.close(before)
        _place(own, [0, 1, 2, *request["passed"]])
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
                with contextlib.suppress(OSError):  # those of the C library itself
                    signal.signal(number, signal.SIG_DFL)
        atexit._clear()
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        atexit.register(logging.shutdown)
        atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
        asyncio._set_running_loop(None)
        sys.setswitchinterval(_SWITCH_SECONDS)
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.enable()
        _become(request)
        os.close(begins)
        contextvars.Context().run(_end, request["arguments"])
    except SystemExit as end:
        if isinstance(end.code, int | None):
            os._exit(_UNWRITTEN)
        print(end.code, file=sys.stderr, flush=True)  # noqa: T201 - as an interpreter does
    except BaseException:  # noqa: BLE001 - the stack below is that of the other program
        traceback.print_exc()
    finally:
        os._exit(1)


class _Transport(asyncio.unix_events._UnixSubprocessTransport):  # type: ignore[name-defined,misc]
    """Starts a program for an event loop that would not use `Popen`, and notices its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any, **options: Any) -> None:
        super().__init__(loop, *arguments, **options)
        self._ended = os.pidfd_open(self.get_pid())
        loop.add_reader(self._ended, self._notice_end)

    def _notice_end(self) -> None:
        self._loop.remove_reader(self._ended)
        os.close(self._ended)
        self._process_exited(self._proc.wait())


_create_by_loop = asyncio.create_subprocess_exec


async def _create_subprocess_exec(
    program: str,
    *arguments: str,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    limit: int = 1 << 16,
    **options: Any,
) -> asyncio.subprocess.Process:
    """Start a program as `asyncio.create_subprocess_exec` does, also as a fork where the loop is that of uvloop."""
    loop, command = asyncio.get_running_loop(), (program, *arguments)
    if isinstance(loop, asyncio.SelectorEventLoop) or list(command[1:4]) != WORKER:
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        return await _create_by_loop(program, *arguments, limit=limit, **streams, **options)
    protocol = asyncio.subprocess.SubprocessStreamProtocol(limit=limit, loop=loop)
    ready = loop.create_future()
    transport = _Transport(loop, protocol, command, False, stdin, stdout, stderr, 0, waiter=ready, **options)
    await ready
    return asyncio.subprocess.Process(transport, protocol, loop)


def _stream(number: int, like: TextIO) -> TextIO:
    """Open a standard stream as the interpreter does."""
    lines = number == 2 or os.isatty(number)
    mode = "w" if number else "r"
    at_once = bool(number and os.environ.get(_UNBUFFERED))
    binary: Any = open(number, f"{mode}b", buffering=0 if at_once else -1, closefd=False)  # noqa: SIM115 - it stays open
    return io.TextIOWrapper(binary, like.encoding, like.errors, line_buffering=lines, write_through=at_once)


def main() -> None:
    """Import, fork, and be `cfs` in each fork."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LARGEST)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in sys.argv[2:]:
        _import(name)
    gc.collect()
    gc.freeze()
    if (request := _serve(requests)) is not None:
        _become(request)
        _end(request["arguments"])


def _import(name: str) -> None:
    """Import a module, or all of a package of ours; what is not installed is left out."""
    with contextlib.suppress(ImportError, OSError):
        module = importlib.import_module(name)
        if name.partition(".")[0] in PACKAGES and hasattr(module, "__path__"):
            for found in pkgutil.iter_modules(module.__path__, f"{name}."):
                if found.name not in RARE and not found.name.endswith("__main__"):
                    _import(found.name)


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
    elif arguments[1:3] in WORKER_SCRIPTS:
        sys.argv = arguments[2:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    elif arguments[1:4] == WORKER:
        sys.argv = arguments[3:]
        importlib.import_module(WORKER[-1]).main()
    else:
        sys.argv = arguments[arguments.index("-m") + 1 :]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
