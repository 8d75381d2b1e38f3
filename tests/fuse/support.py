"""A real mount by a bridge of its own, and a real server whose engine the test holds in its hand."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from cfs_fuse.checks import CannotMountError, check_device, check_libfuse
from cfs_server.engine.host.scripted import ScriptedEngine
from tests.fork_server import Program
from tests.server.support import ServerHarness, environment, running_server

GUARD_SECONDS = 60.0
"""No wait of these tests takes longer, unless something is broken."""


def reason_to_skip() -> str | None:
    """Say why nothing can be mounted here; None where it can."""
    try:
        check_libfuse()
        check_device()
    except CannotMountError as error:
        return str(error)
    return None


def until(condition: Callable[[], object], what: str = "") -> None:
    """Look again and again until something has become true."""
    end = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < end, what or "it never came true"
        time.sleep(0.002)


@dataclass
class Stage:
    """A server in a thread of its own, whose engine says what the last message said, when it may."""

    server: ServerHarness
    loop: asyncio.AbstractEventLoop
    client: httpx.Client
    mount: "Mount | None" = None

    @property
    def url(self) -> str:
        """Where it is."""
        return self.server.url

    @property
    def engine(self) -> ScriptedEngine:
        """What answers."""
        return self.server.engine

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no token pass, nor the end of a reply."""
        self.do(self.engine.hold)
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Let everything pass again."""
        self.do(self.engine.release)

    def step(self, tokens: int = 1) -> None:
        """Let some tokens pass."""
        self.do(lambda: self.engine.step(tokens))

    def do(self, action: Callable[[], Any]) -> None:
        """Do something in the server's thread."""

        async def acted() -> None:
            action()

        asyncio.run_coroutine_threadsafe(acted(), self.loop).result(GUARD_SECONDS)

    def say(self, session: str, text: str, *, wait: bool = True) -> None:
        """Send a message over HTTP."""
        params = {"wait": "true"} if wait else {}
        answer = self.client.post(f"/v1/sessions/{quote(session)}/messages", content=text.encode(), params=params)
        assert answer.status_code in (200, 202), answer.text
        self._shown(session, wait=wait)

    def make(self, session: str, transcript: str = "", **settings: Any) -> None:
        """Make a session over HTTP."""
        body: dict[str, Any] = {"id": session, "settings": settings} | (
            {"transcript": transcript} if transcript else {}
        )
        answer = self.client.post("/v1/sessions", json=body)
        assert answer.status_code == 201, answer.text
        self._shown(session, wait=True)

    def until_awaited(self, session: str) -> None:
        """Wait until a reader waits for a session to be settled."""
        until(lambda: self.server.store.get(session).changed.waiting)

    def _shown(self, session: str, *, wait: bool) -> None:
        """Wait until the mount shows what was done over HTTP: that takes milliseconds (F7)."""
        if self.mount is None or "/" in session:
            return
        path = self.mount / session
        until(path.exists)
        if wait:
            size = self.client.get(f"/v1/sessions/{quote(session)}").json()["size"]
            until(lambda: path.stat().st_size == size)

    def text(self, session: str) -> str:
        """Read a transcript over HTTP, when it is settled."""
        params, headers = {"wait": 20}, {"Accept": "text/plain"}
        answer = self.client.get(f"/v1/sessions/{quote(session)}", params=params, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.text

    def state(self, session: str) -> str:
        """Ask what a session does."""
        found: str = self.client.get(f"/v1/sessions/{quote(session)}").json()["state"]
        return found

    def messages(self, session: str) -> list[tuple[str, str]]:
        """Read the messages over HTTP, when they are settled."""
        found = self.client.get(f"/v1/sessions/{quote(session)}", params={"wait": 20}).json()["history"]
        return [(message["role"], message["content"]) for message in found]

    def asked(self, session: str) -> list[str]:
        """Read what users said."""
        return [content for role, content in self.messages(session) if role == "user"]

    def sessions(self) -> set[str]:
        """List the roots."""
        return {found["id"] for found in self.client.get("/v1/sessions", params={"limit": 1000}).json()["sessions"]}


@contextmanager
def staging(**changes: Any) -> Iterator[Stage]:
    """Serve from a thread."""
    started: threading.Event = threading.Event()
    found: list[Stage] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        async with running_server(may_block=True, **changes) as here:
            stop = asyncio.Event()
            with httpx.Client(base_url=here.url, timeout=GUARD_SECONDS, trust_env=False) as client:
                found.append(Stage(here, asyncio.get_running_loop(), client))
                stops.append(stop)
                started.set()
                await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - it is raised in the test
            failed.append(error)
            started.set()

    stops: list[asyncio.Event] = []
    thread = threading.Thread(target=run, name="stage")
    thread.start()
    assert started.wait(GUARD_SECONDS)
    try:
        if found:
            yield found[0]
    finally:
        if stops:
            found[0].loop.call_soon_threadsafe(stops[0].set)
        thread.join(GUARD_SECONDS)
    if failed:
        raise failed[0]


@dataclass
class Mount:
    """A mount and the process behind it."""

    path: Path
    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)
    programs: list[subprocess.Popen[str]] = field(default_factory=list)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def shell(self, script: str, *, timeout: float = GUARD_SECONDS) -> subprocess.CompletedProcess[str]:
        """Run a script of bash in which M is the mount."""
        return subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=environment(M=str(self.path), LC_ALL="C.UTF-8", TERM="xterm"),
        )

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program that the test waits for later."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        process = subprocess.Popen(command, env=environment(M=str(self.path)), **pipes)
        self.programs.append(process)
        return process

    def end_programs(self) -> None:
        """End the programs that a test has started, and close their pipes."""
        for process in self.programs:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=GUARD_SECONDS)
        self.programs.clear()

    def ended(self) -> int:
        """Wait for the end of the bridge."""
        return self.process.wait(GUARD_SECONDS)


@contextmanager
def mounting(url: str, path: Path, *flags: str, **env: str) -> Iterator[Mount]:
    """Mount a server with a bridge of its own; whatever happens, nothing stays mounted."""
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    command = [sys.executable, "-m", "cfs_fuse", str(path), "--url", url, *flags]
    process = Program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**env))
    assert process.stdout is not None
    assert process.stderr is not None
    mount = Mount(path, process)
    reader = threading.Thread(target=lambda: mount.log.extend(process.stderr or ()))
    reader.start()
    try:
        line = process.stdout.readline()
        assert line.startswith("ready"), "".join(mount.log)
        yield mount
    finally:
        mount.end_programs()
        unmount(path)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


def unmount(path: Path) -> None:
    """Take a mount down, if it is there."""
    subprocess.run(["fusermount3", "-u", "-z", "-q", str(path)], check=False, capture_output=True)


def mounted(path: Path) -> bool:
    """Whether something is mounted there, alive or dead."""
    return f" {path} " in Path("/proc/self/mounts").read_text(encoding="utf-8")


def names(directory: Path) -> list[str]:
    """List a directory."""
    return sorted(found.name for found in directory.iterdir())


def append(path: Path, text: str) -> None:
    """Append a message, as `echo >>` does."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def read_now(path: Path) -> bytes:
    """Read without waiting; raises `BlockingIOError` while it is generating."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)
