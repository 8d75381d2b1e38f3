"""Commands that go on in the background: how they start, where their log is, and how they are found and ended.

`cfs up --background` runs the same command in a process of its own, waits until it is ready, and prints what it
announces. Its output goes to a log in the user's state folder, beside a record that says who it is. The process keeps
the record locked while it lives, so that a record that was left behind, by a crash or a loss of power, is not believed,
whichever process has its number now.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO
from urllib.parse import quote, urlsplit

import typer

from cfs.contract.errors import CfsError, InvalidRequest, NotFound, ServerError, Unreachable
from cfs.contract.user_folders import state_folder

if TYPE_CHECKING:
    from cfs.transports.http import Client

OPTION = ("--background", "-b")
_READY = "CFS_BACKGROUND_READY"
"""The variable that tells a process in the background where to announce itself, and where its log is."""
_LONGEST_LOG = 16 << 20
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class BackgroundCommand:
    """A command in the background: `kind` is what it is, `name` which one of these, `url` the server."""

    kind: str
    name: str
    url: str
    pid: int
    log: str

    @property
    def place(self) -> Path:
        """The file of its record."""
        return _file(self.kind, self.name, "json")


def folder() -> Path:
    """Return the folder of records and logs."""
    return state_folder() / "running"


def _file(kind: str, name: str, ending: str) -> Path:
    return folder() / f"{kind}-{quote(name, safe='')}.{ending}"


def port_of(url: str) -> str:
    """Return the name of a server in the background: its port."""
    return str(urlsplit(url).port or 80)


# Starting: the process that the user has started, and the one that goes on


def start_server(client: "Client") -> None:
    """Start a server in the background unless one answers. Raises `InvalidRequest` for a URL that it could not have."""
    from cfs import api

    try:
        client.call(api.ready())
    except Unreachable:
        address = urlsplit(client.url)
        if address.hostname not in ("127.0.0.1", "localhost", "::1") or address.scheme != "http":
            raise InvalidRequest(
                f"no server answers at {client.url}, and this command starts one on this machine only"
            ) from None
        host = "::1" if address.hostname == "::1" else "127.0.0.1"
        code = start(["up", "--no-mount", "--host", host, "--port", port_of(client.url)])
        if code:
            raise typer.Exit(code) from None
    except CfsError:
        return  # it answers, and the command says what is wrong


def start(arguments: list[str] | None = None) -> int:
    """Run a command in the background, this one unless another is given.

    Returns the exit code once it is ready or has failed. Another command is announced on standard error.
    """
    other = arguments is not None
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    log = folder() / f"starting-{os.getpid()}.log"
    arguments = arguments or [argument for argument in sys.argv[1:] if argument not in OPTION]
    reading, writing = os.pipe()
    with log.open("wb") as output, os.fdopen(reading, encoding="utf-8") as announced:
        process = subprocess.Popen(  # noqa: S603 - the same command
            [sys.executable, "-m", "cfs", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[writing],
            start_new_session=True,
            env=os.environ | {_READY: f"{writing}:{log}", "PYTHONUNBUFFERED": "1"},
        )
        os.close(writing)
        try:
            text = announced.read()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    if text:
        typer.echo(
            text.strip().partition("\n\n")[0].rpartition("\n")[2].removesuffix(" Try:") if other else text, err=other
        )
        return 0
    code = process.wait()
    typer.echo(log.read_text(errors="replace"), nl=False, err=True)
    log.unlink()
    return max(code, 1)


class Announcement:
    """What a command says once it is ready. In the background it also writes its record, which stays locked."""

    def __init__(self) -> None:
        self._told = os.environ.pop(_READY, None)
        self.log: Path | None = None

    @property
    def in_background(self) -> bool:
        """Whether the user's shell goes on meanwhile."""
        return self._told is not None

    def make(self, kind: str, name: str, url: str, text: str) -> None:
        """Announce the command: on standard output, or to the process that has started this one."""
        if self._told is None:
            typer.echo(text)
            return
        descriptor, _, before = self._told.partition(":")
        self.log = _file(kind, name, "log")
        with suppress(FileNotFoundError):
            self.log.replace(self.log.with_suffix(".log.1"))
        Path(before).replace(self.log)
        record = BackgroundCommand(kind, name, url, os.getpid(), str(self.log))
        # Only the end of the process releases the lock: a file object would be closed a moment before.
        descriptor_of_record = os.open(record.place, os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(descriptor_of_record, fcntl.LOCK_EX)
        os.truncate(descriptor_of_record, 0)
        os.write(descriptor_of_record, json.dumps(asdict(record)).encode())
        with os.fdopen(int(descriptor), "w", encoding="utf-8") as starter:
            starter.write(text)

    def shorten_log(self) -> None:
        """Set the log aside if it is long. It is open for appending, so that it goes on from its new end."""
        if self.log is not None and self.log.stat().st_size > _LONGEST_LOG:
            shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
            os.truncate(self.log, 0)


# Finding, ending, reading the log


def running(kind: str) -> list[BackgroundCommand]:
    """Return the commands of a kind that run in the background now, and forget those that have ended."""
    processes = []
    for path in sorted(folder().glob(f"{kind}-*.json")):
        with path.open() as record:
            if _has_ended(record):
                path.unlink(missing_ok=True)
            else:
                processes.append(BackgroundCommand(**json.load(record)))
    return processes


def _has_ended(record: TextIO) -> bool:
    try:
        fcntl.flock(record, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find_server(url: str) -> BackgroundCommand:
    """Return the server of this user that answers at a URL. Raises `NotFound`, and names the others there are."""
    servers = running("server")
    for server in servers:
        if server.name == port_of(url):
            return server
    others = "".join(f"; one is at {server.url}: --url {server.url}" for server in servers)
    raise NotFound(f"no server in the background answers at {url}{others or ': `cfs up --background` starts one'}")


def end(process: BackgroundCommand) -> None:
    """End a command and wait for its end: then it no longer holds its record."""
    try:
        with process.place.open() as record:
            os.kill(process.pid, signal.SIGTERM)
            fcntl.flock(record, fcntl.LOCK_SH)
        process.place.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise ServerError(f"process {process.pid} cannot be ended: {error.strerror}") from None


def stop_server(url: str) -> None:
    """End a server, its mount, and the agents in the background that it serves."""
    server = find_server(url)
    for agent in running("agent"):
        if port_of(agent.url) == server.name:
            end(agent)
    end(server)


def server_log(url: str) -> Path:
    """Return the log of the server at a URL, also of one that has ended. Raises `NotFound`."""
    log = _file("server", port_of(url), "log")
    return log if log.exists() else Path(find_server(url).log)


def agent_log(session: str) -> Path:
    """Return the log of the agent in a session, also of one that has ended. Raises `NotFound`."""
    log = _file("agent", session, "log")
    if not log.exists():
        raise NotFound(f"no agent in the background answers in {session!r}: `cfs agent serve --background` starts one")
    return log


def read_log(path: Path, lines: int, *, follow: bool) -> Iterator[str]:
    """Yield the last lines of a log, and on request what is added, until the command ends."""
    with path.open(encoding="utf-8", errors="replace") as log:
        yield "".join(deque(log, lines))
        if follow:
            yield from _added(log, path)


def _added(log: TextIO, path: Path) -> Iterator[str]:
    kind = path.name.partition("-")[0]
    while True:
        ended = str(path) not in {process.log for process in running(kind)}
        if text := log.read():
            yield text
        elif ended:
            return
        elif os.fstat(log.fileno()).st_size < log.tell():
            log.seek(0)  # it was long, and has been set aside
        else:
            time.sleep(_PAUSE_SECONDS)
