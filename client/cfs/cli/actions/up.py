"""`cfs up`: start the server and the mount as two processes, and end both when one of them ends (C10, P3)."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from shlex import quote
from typing import Any, Self
from urllib.parse import urlsplit

import typer

from cfs.cli.actions.machine_checks import mount_obstacle
from cfs.cli.base.background import Announcement, port_of, running
from cfs.cli.base.connection import DEFAULT_URL, connect
from cfs.cli.base.exit_codes import USAGE
from cfs.cli.base.output import print_error, visible
from cfs.contract.errors import CfsError, Conflict

DEFAULT_DIRECTORY = Path("/cfs")
_USUAL_URL = DEFAULT_URL.replace("127.0.0.1", "localhost")
_LISTENING = "listening on "
_PROBE_SECONDS = 2.0
_READY = "ready"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - an address to replace, not to bind
_LOG_SECONDS = 60.0
"""How often to look whether the log has become long."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class UpPlan:
    """What to start: `directory` is the given mount point, if any, and `flags` are passed to the server.

    `module` runs `cfs` as a child process that ends with its parent.
    """

    module: str
    directory: Path | None
    flags: tuple[str, ...] = ()
    token_file: Path | None = None
    mount: bool = True


def start(plan: UpPlan) -> int:
    """Start the server and, if possible, the mount; wait for their end and return the exit code."""
    directory, obstacle = _mount_point(plan)
    if obstacle and plan.directory:
        print_error(f"cannot mount on {plan.directory}: {obstacle}")
        return USAGE
    return asyncio.run(_Up(plan, directory, obstacle).run())


def refuse_second(flags: Sequence[str]) -> None:
    """Raise `Conflict` if a server answers already where flags of the server want one, and say how to end it."""
    url = f"http://127.0.0.1:{_port_in(flags)}"
    if any(server.name == port_of(url) for server in running("server")):
        raise Conflict(f"your server runs at {url} already: `cfs down --url {url}` ends it")
    if _answers(url):
        raise Conflict(f"a server runs at {url} already: Ctrl-C in its terminal ends it, or choose another --port")


def _answers(url: str) -> bool:
    from cfs import api

    try:
        with socket.create_connection(("127.0.0.1", int(port_of(url))), _PROBE_SECONDS):
            pass  # most often there is no listener, and httpx need not be imported
        with connect(url, None, timeout=_PROBE_SECONDS) as client:
            return bool(client.call(api.store()))
    except (OSError, ValueError, CfsError):
        return False


def _port_in(flags: Sequence[str]) -> str:
    for flag, value in zip_longest(flags, flags[1:], fillvalue=""):
        if flag == "--port":
            return value
        if flag.startswith("--port="):
            return flag.removeprefix("--port=")
    return os.environ.get("CFS_PORT") or str(urlsplit(DEFAULT_URL).port)


def _mount_point(plan: UpPlan) -> tuple[Path | None, str | None]:
    """Choose the mount point; print a reason if there is none."""
    if not plan.mount:
        return None, None
    directory = plan.directory or DEFAULT_DIRECTORY
    obstacle = mount_obstacle()
    if obstacle is None and plan.directory is None:
        obstacle = _unusable(directory)
    return (None if obstacle else directory), obstacle


def _unusable(directory: Path) -> str | None:
    """Return why the default directory cannot be used: it must exist, be empty and belong to this user."""
    try:
        empty = not any(directory.iterdir())
    except OSError:
        return "no directory was named; `cfs mount DIR` shows the sessions as files"
    if not empty or os.path.ismount(directory) or not os.access(directory, os.W_OK):
        return f"{directory} is in use or not yours: cfs up DIR"
    return None


class ChildProcess:
    """A child process in its own process group, so that Ctrl-C reaches it only through its parent.

    Its standard input is a pipe that closes when the parent exits.
    """

    def __init__(self, process: asyncio.subprocess.Process, beginning: str) -> None:
        self._process = process
        self._beginning = beginning
        self._said: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, *command: str, beginning: str) -> Self:
        """Start a program. It is ready when it prints a line that starts with `beginning`."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, process_group=0
        )
        return cls(process, beginning)

    @property
    def runs(self) -> bool:
        """Whether it is still running."""
        return self._process.returncode is None

    async def ready(self) -> str | None:
        """Wait until it is ready and return the rest of its ready line; None if it exits first."""
        return await asyncio.shield(self._said)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it is still running."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its exit and return its exit code as a shell would."""
        await asyncio.wait([self._reading])
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def end(self) -> int:
        """Terminate it and wait for its exit."""
        if self.runs:
            self.signal(signal.SIGTERM)
        return await self.ended()

    async def _read(self) -> None:
        """Detect the ready line, and print all other lines."""
        output = self._process.stdout
        while output and (raw := await output.readline()):
            line = raw.decode(errors="replace")
            if not self._said.done() and line.startswith(self._beginning):
                self._said.set_result(line.removeprefix(self._beginning).strip())
            else:
                typer.echo(visible(line), nl=False)
        if not self._said.done():
            self._said.set_result(None)


class _Up:
    def __init__(self, plan: UpPlan, directory: Path | None, obstacle: str | None) -> None:
        self._plan = plan
        self._directory = directory
        self._obstacle = obstacle
        self._announcement = Announcement()
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._children: list[ChildProcess] = []

    async def run(self) -> int:
        """Start both, wait until one ends or a signal comes, and end the mount before the server."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # started with nohup: keep ignoring SIGHUP
                loop.add_signal_handler(number, self._signals.put_nowait, number)
        work = asyncio.create_task(self._work())
        stop = asyncio.create_task(self._signals.get())
        await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        stop.cancel()
        codes = await self._end()
        (code,) = await asyncio.gather(work, return_exceptions=True)
        if isinstance(code, asyncio.CancelledError):
            return max(codes, default=0)
        if isinstance(code, BaseException):
            raise code
        return code

    async def _work(self) -> int:
        """Start the two, one after the other, and return the exit code of the first that ends."""
        server = await self._start(_LISTENING, "serve", *self._plan.flags)
        announced = await server.ready()
        if announced is None:
            return await server.ended()
        url = _reachable(announced)
        if self._directory is not None:
            token = ("--token-file", str(self._plan.token_file)) if self._plan.token_file else ()
            mount = await self._start(_READY, "mount", str(self._directory), "--url", url, *token)
            if await mount.ready() is None:
                return await (mount if server.runs else server).ended()
        address = url.replace("//127.0.0.1:", "//localhost:").replace("//[::1]:", "//localhost:")
        model = await asyncio.to_thread(_model_of, url)
        text = _welcome(address, model, self._directory, self._obstacle, in_background=self._announcement.in_background)
        self._announcement.make("server", port_of(url), address, text)
        ends = [asyncio.create_task(child.ended()) for child in self._children]
        while True:
            done, _ = await asyncio.wait(ends, timeout=_LOG_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return done.pop().result()
            self._announcement.shorten_log()

    async def _start(self, beginning: str, *arguments: str) -> ChildProcess:
        child = await ChildProcess.start(sys.executable, "-m", self._plan.module, *arguments, beginning=beginning)
        self._children.append(child)
        return child

    async def _end(self) -> list[int]:
        """End the children in reverse order; further signals are passed on to them."""
        passing = asyncio.create_task(self._pass_on())
        codes = [await child.end() for child in reversed(self._children)]
        passing.cancel()
        return codes

    async def _pass_on(self) -> None:
        while True:
            number = await self._signals.get()
            for child in self._children:
                child.signal(number)


def _reachable(url: str) -> str:
    """Return the URL by which this machine reaches a server that listens on all addresses."""
    parts = urlsplit(url)
    host = _ANYWHERE.get(parts.hostname or "")
    return f"http://{f'[{host}]' if ':' in host else host}:{parts.port}" if host else url


def _model_of(url: str) -> str:
    """Return which model answers by default, as a line; empty if the server does not say."""
    import json

    from cfs import api
    from cfs.contract.errors import CfsError
    from cfs.transports.http import Client

    ready: api.Call[dict[str, Any]] = api.Call(api.Request("GET", "/readyz"), lambda answer: json.loads(answer.body))
    try:
        with Client(url) as client:
            model = client.call(ready)["model"]
    except (CfsError, ValueError, LookupError, TypeError):
        return ""
    hint = ", a toy that is part of CFS; `cfs connect` finds models that talk" if model["embedded"] else ""
    return f"Model: {model['name']}{hint}.\n"


def _welcome(url: str, model: str, directory: Path | None, obstacle: str | None, *, in_background: bool) -> str:
    """Return what to try next: commands that can be copied as they are, in this shell or in another one."""
    path = "" if shutil.which("cfs") else f'export PATH="{Path(sys.executable).parent}:$PATH"'
    address = "" if url == _USUAL_URL else f"export CFS_URL={url}"
    lines = [part for part in (path, address) if part]
    lines += ["cfs chat                     # in the terminal", "cfs open                     # in the browser"]
    if directory is not None:
        file = quote(str(directory / "chat1"))
        lines.append(f"echo 'My name is Alice.' > {file}; cat {file}")
    lines += [
        f"curl -N -H 'Accept: text/event-stream' -d 'My name is Alice.' {url}/v1/sessions/chat1/messages",
        f"curl -d 'What is my name?' '{url}/v1/sessions/chat1/messages?wait=true'",
        f"curl -H 'Accept: text/plain' {url}/v1/sessions/chat1",
    ]
    where = f"{url} and in {directory}" if directory is not None else url
    without = f"Not mounted: {obstacle}.\n" if obstacle else ""
    how = (
        "`cfs logs` shows its log, `cfs down` ends it). Try"
        if in_background
        else "Ctrl-C ends it). Try in another terminal"
    )
    commands = "".join(f"  {line}\n" for line in lines)
    return f"\n{without}{model}CFS is ready on {where} ({how}:\n\n{commands}"
