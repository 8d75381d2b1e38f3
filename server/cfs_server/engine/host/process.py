"""The server's side of the worker process: starts it, exchanges frames with it, monitors it, and stops it."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast
from weakref import WeakValueDictionary

import structlog

from cfs_server.engine.contract import protocol
from cfs_server.engine.contract.interface import GenerationRequest, ModelLoadError
from cfs_server.engine.contract.protocol import SentHistories

COMMAND = (sys.executable, "-P", "-m", "cfs_server.engine.worker.worker")
LAST_MOMENT = 0.5
"""Seconds for a worker to exit on its own after its socket is closed, and to log the reason."""
_SPINNING = {"GOMP_SPINCOUNT": "20000"}
"""How long OpenMP's threads wait for work before they sleep: some tenths of a millisecond. That is longer than within a
step. By default they would keep their processors busy from one step to the next, in place of the server."""
_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How a worker's engine thread is watched; seconds."""

    limit: float = 6.0
    """A worker hangs if it has not answered for this long, unless it announced a longer step."""
    computing: float = 10.0
    """A silent worker whose engine thread uses CPU time gets this many times the limit."""
    busy: float = 1.0
    """Between two questions while turns are in flight."""
    idle: float = 3.0


class _Connection(asyncio.Protocol):
    """The socket to a worker. Each frame is handled in the callback that brings its end.

    A task that waits for it would cost each token another turn of the event loop.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._take: Callable[[protocol.Frame], None] | None = None
        self._received = bytearray()
        self._closed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Handle the frames that end in these bytes. Without a reader they are kept."""
        self._received += data
        self._hand_on()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the worker's end has its own reason
        """Note the end of the connection."""
        self._closed.set()
        self._stopped.set()

    async def read(self, take: Callable[[protocol.Frame], None]) -> None:
        """Call `take` with each frame until the connection ends or `stop` is called. Raises what `take` raises.

        Raises `BadFrame` for what is none.
        """
        self._stopped.clear()
        self._take = take
        try:
            self._hand_on()
            if not self._closed.is_set():
                await self._stopped.wait()
        finally:
            self._take = None
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End a `read` after the frame that it handles."""
        self._take = None
        self._stopped.set()

    def write(self, data: bytes) -> None:
        """Send some bytes, if the connection is open."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection, once what was written is sent."""
        self._transport.close()

    async def wait_closed(self) -> None:
        """Wait for the end of the connection."""
        await self._closed.wait()

    def _hand_on(self) -> None:
        head = protocol.HEADER.size
        received = self._received
        try:
            while self._take is not None and len(received) >= head:
                end = head + protocol.length(bytes(received[:head]))
                if len(received) < end:
                    return
                frame = protocol.decode(bytes(received[head:end]))
                del received[:end]
                self._take(frame)
        except Exception as error:  # noqa: BLE001 - raised in `read`
            self._error = error
            self.stop()


class WorkerProcess:
    """A running worker. `receive()` handles its frames until it ends; then `reap()` returns the reason."""

    def __init__(self, process: asyncio.subprocess.Process, connection: _Connection) -> None:
        self._process = process
        self._connection = connection
        self._histories = SentHistories()
        self._sending: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._last_words: deque[str] = deque(maxlen=20)
        self._asked = False
        self._silent = self._may_take = 0.0
        self.hung = ""
        """Why `watch` ended the process, if it did."""
        self._listener = asyncio.create_task(self._listen(), name="engine worker's stderr")

    @classmethod
    async def spawn(
        cls, load: protocol.Load, command: Sequence[str] = COMMAND
    ) -> tuple["WorkerProcess", protocol.Ready]:
        """Start a worker and wait until its model is loaded; raises `ModelLoadError`."""
        worker = await cls._start(command)
        try:
            worker.send(load)
            answer = await worker.loaded()
            if isinstance(answer, protocol.LoadFailed):
                raise ModelLoadError(answer.reason)
            if answer is None:
                raise ModelLoadError(f"{load.path}: cannot be loaded: {await worker.reap()}")
        except protocol.BadFrame as error:
            await worker.reap()
            raise ModelLoadError(f"{load.path}: the engine's worker process sent {error}") from error
        except BaseException:
            await worker.reap()
            raise
        return worker, answer

    @classmethod
    async def _start(cls, command: Sequence[str]) -> "WorkerProcess":
        ours, theirs = socket.socketpair()
        with theirs:
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, sock=ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    env=_SPINNING | os.environ,
                    start_new_session=True,  # a Ctrl-C at the terminal is for the server, which then ends its turns
                )
            except BaseException:
                connection.close()
                raise
        return cls(process, connection)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def begin(self, request: GenerationRequest, waited: float, wanted: Callable[[], bool]) -> bool:
        """Send a turn while it is `wanted`, with the part of its history that the worker does not hold yet.

        Other tasks run between the parts of a long history. Returns whether all of it was sent. Raises `EngineError`.
        """
        async with self._sending.setdefault(request.cache_key, asyncio.Lock()):
            whole = False
            while not whole and wanted():
                data, whole = self._histories.order(request, waited)
                self._connection.write(data)
                if not whole:
                    await asyncio.sleep(0)
            return whole

    def forget(self, cache_key: str) -> None:
        """Make the worker drop all state of a key."""
        self._histories.forget(cache_key)
        self.send(protocol.Forget(cache_key))

    def send(self, frame: protocol.Frame) -> None:
        """Send a frame. A worker that has just died does not get it, and `receive()` ends."""
        self._connection.write(protocol.encode(frame))

    def _note_progress(self, frame: protocol.Frame) -> None:
        """Note signs of life of the engine thread; frames of the worker's other threads are none."""
        match frame:
            case protocol.Computing(seconds):
                self._silent, self._may_take = 0.0, seconds
            case protocol.Step() | protocol.Stats() | protocol.Alive():
                self._asked, self._silent, self._may_take = False, 0.0, 0.0

    async def receive(self, handle: Callable[[protocol.Frame], None]) -> None:
        """Call `handle` with each frame until the worker ends. Log lines are logged.

        Raises what `handle` raises, and `BadFrame`.
        """

        def take(frame: protocol.Frame) -> None:
            self._note_progress(frame)
            if isinstance(frame, protocol.Log):
                _log.log(30 if frame.level == "warning" else 40, "engine worker", message=frame.text)
            elif not isinstance(frame, protocol.Alive | protocol.Computing):
                handle(frame)

        await self._connection.read(take)

    async def loaded(self) -> protocol.Ready | protocol.LoadFailed | None:
        """Wait until the model is loaded. None if the worker has ended before."""
        answers: list[protocol.Ready | protocol.LoadFailed] = []

        def handle(frame: protocol.Frame) -> None:
            if isinstance(frame, protocol.Ready | protocol.LoadFailed):
                answers.append(frame)
                self._connection.stop()

        await self.receive(handle)
        return answers[0] if answers else None

    async def watch(self, heartbeat: Heartbeat, in_flight: Callable[[], bool]) -> None:
        """Kill the process when its engine thread makes no progress, and set `hung`; to be cancelled before that.

        Silence is summed from one check to the next, and each interval counts at most twice its length: while this
        process itself was suspended or its event loop busy, the worker could not answer.

        Silence alone does not prove a hang: on an overloaded machine a step takes many times longer than predicted, but
        gets CPU time now and then. A stopped or deadlocked engine thread gets none. Only that thread's time counts,
        because other threads run on when it is deadlocked. An endless loop in native code uses CPU time as well, so the
        extended limit is bounded.
        """
        clock = asyncio.get_running_loop().time
        cpu_time: int | None = None
        unused = 0.0
        while not self.hung:
            pause = heartbeat.busy if self._asked or in_flight() else heartbeat.idle
            looked = clock()
            await asyncio.sleep(pause)
            if not self._asked:
                self._asked = True
                self.send(protocol.Ping())
                continue
            elapsed = min(clock() - looked, 2 * pause)
            self._silent += elapsed
            if self._silent < heartbeat.limit / 2:
                continue
            before, cpu_time = cpu_time, await in_thread(lambda: _cpu_time(self.pid))
            unused = unused + elapsed if cpu_time == before else 0.0
            factor = 1 if unused >= heartbeat.limit / 2 else heartbeat.computing
            limit = max(heartbeat.limit * factor, self._may_take)
            if self._silent >= limit and self._process.returncode is None:
                self.hung = f"the engine's worker process hung: no response for {self._silent:.0f} s; it was killed"
                self._process.kill()

    async def reap(self) -> str:
        """End the process if it still runs, release everything, and return how it ended."""
        self._connection.close()
        if self._process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), LAST_MOMENT)
        if self._process.returncode is None:
            self._process.kill()
        code = await self._process.wait()
        await self._listener
        await self._connection.wait_closed()
        return self.hung or _explain(code, self._last_words)

    async def _listen(self) -> None:
        stderr = self._process.stderr
        if stderr is None:
            return
        while chunk := await stderr.read(1 << 16):
            self._last_words.extend(line for line in chunk.decode(errors="replace").splitlines() if line.strip())


def _cpu_time(pid: int) -> int | None:
    """Read the CPU time of a process's main thread, in clock ticks; None where there is no Linux to give it."""
    try:
        stat = Path(f"/proc/{pid}/task/{pid}/stat").read_bytes()
    except OSError:
        return None
    _, _, fields = stat.rpartition(b")")  # a thread's name may contain anything
    user, system = fields.split()[11:13]
    return int(user) + int(system)


def _explain(code: int, last_words: deque[str]) -> str:
    how = f"exit code {code}"
    if code < 0:
        how = f"signal {signal.Signals(-code).name}"
    last_line = next((line.strip() for line in reversed(last_words)), "")
    return f"the engine's worker process ended ({how})" + (f": {last_line[:200]}" if last_line else "")


async def in_thread(work: Callable[[], _T]) -> _T:
    """Run a blocking call in a thread of its own, which does not keep the process from exiting."""
    done: Future[_T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's task
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)
