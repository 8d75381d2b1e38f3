"""A real server in a thread of its own, with the scripted engine."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from cfs import Session, api
from cfs.errors import EngineError, NotFound
from cfs.transports.http import Client
from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.contract.interface import CallDelta, Delta, GenerationRequest, ModelInfo
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.main.serve import UvicornServer, listen, server_config, url_of
from pytest_cfs.script import Answer, Asked, Reply, Script

_THREAD = "cfs-server"
_START_SECONDS = 60.0
_CONTEXT_TOKENS = 32_768


class ScriptedServer:
    """A running server. What its model says is up to the test.

    `reply` queues replies for the next turns; when they are used up, a turn fails. Without any the model repeats the
    words of each message. `asked` is what the model was asked, turn by turn.
    """

    def __init__(self, url: str, engine: ScriptedEngine, do: Callable[[Callable[[], object]], None]) -> None:
        self.url = url
        self._engine = engine
        self._do = do
        self._script = Script()
        self._sessions: list[Session] = []

    @property
    def asked(self) -> list[Asked]:
        """What the model was asked since the test began, oldest first."""
        return self._script.asked

    @property
    def replies_left(self) -> int:
        """Number of queued replies that no turn has used."""
        return self._script.left

    def reply(self, *replies: Answer) -> None:
        """Queue replies: texts, `Reply` objects, or functions that get what was `Asked` and return one of these."""
        self._script.add(replies)

    def always_reply(self, reply: Answer) -> None:
        """Give this reply whenever no other one is queued."""
        self._script.always(reply)

    def hold(self) -> None:
        """Generate nothing more, not even the end of a reply, until `step` or `release`."""
        self._do(self._engine.hold)

    def step(self, words: int = 1) -> None:
        """Let some words pass."""
        self._do(lambda: self._engine.step(words))

    def release(self) -> None:
        """End the hold."""
        self._do(self._engine.release)

    def session(self, name: str | None = None, **arguments: Any) -> Session:
        """Return a session, which is closed after the test; `arguments` are those of `cfs.Session`."""
        session = Session(name, url=self.url, **arguments)
        self._sessions.append(session)
        return session

    def reset(self) -> None:
        """Delete all sessions and files, and forget the script."""
        self._script = Script()
        self.release()
        while self._sessions:
            self._sessions.pop().close()
        with Client(self.url) as client:
            while page := client.call(api.list_sessions(limit=1000)).sessions:
                for info in page:
                    _without_missing(client, api.delete(info.id))
            while files := client.call(api.files("/workspaces/")).files:
                for file in files:
                    _without_missing(client, api.delete_file(file.path))

    def generate(self, request: GenerationRequest) -> Iterable[str | Delta]:
        """Play the next reply of the script."""
        tools = tuple(str(tool["function"]["name"]) for tool in request.options.tools)
        asked = Asked(request.messages, request.settings, tools, request.options.json_schema)
        return _deltas(self._script.next(asked), turn=len(self.asked))


@contextmanager
def serve() -> Iterator[ScriptedServer]:
    """Run a server on a free port until the block ends. It keeps nothing, and no setting of the user applies."""
    running = _ServerThread()
    thread = threading.Thread(target=running.run, name=_THREAD, daemon=True)
    processors = structlog.get_config()["processors"]
    structlog.configure(processors=[_without_server, *processors])
    thread.start()
    try:
        yield running.wait()
    finally:
        running.stop()
        thread.join()
        structlog.configure(processors=processors)


def _without_server(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:  # noqa: ARG001
    """Drop what the server logs: by default it would stand in the output of the program that is tested."""
    if threading.current_thread().name == _THREAD:
        raise structlog.DropEvent
    return event


class _ServerThread:
    """The thread of a server."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._server: ScriptedServer | None = None
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            asyncio.run(self._serve())
        except BaseException as failure:  # noqa: BLE001 - it belongs to the thread that waits
            self._failure = failure
        finally:
            self._ready.set()

    def wait(self) -> ScriptedServer:
        """Return the server once it listens; raises what prevented that."""
        self._ready.wait(_START_SECONDS)
        if self._server is None:
            raise RuntimeError("the server of the tests did not start") from self._failure
        return self._server

    def stop(self) -> None:
        """End it."""
        if self._loop is not None and self._end is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end.set)

    def _do(self, work: Callable[[], object]) -> None:
        assert self._loop is not None  # noqa: S101 - there is no ScriptedServer before

        async def doing() -> None:
            work()

        asyncio.run_coroutine_threadsafe(doing(), self._loop).result()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        settings = ServerSettings.model_construct(port=0, engine="scripted")  # reads no environment and no file
        engine = ScriptedEngine(lambda request: scripted.generate(request), context_tokens=_CONTEXT_TOKENS)
        model = await engine.start()
        listener = listen(settings.host, 0, settings.send_timeout)
        scripted = ScriptedServer(url_of(listener), engine, self._do)
        app = create_app(settings, engine, ModelInfo(model.name, _CONTEXT_TOKENS, has_chat_template=False))
        started = asyncio.Event()
        server = UvicornServer(server_config(app), started.set)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await started.wait()
            self._server = scripted
            self._ready.set()
            await self._end.wait()
        finally:
            engine.release()
            await app.state.cfs.store.drain(0)
            server.should_exit = True
            await serving
            await engine.stop()
            listener.close()


def _deltas(reply: Reply, turn: int) -> Iterator[str | Delta]:
    if reply.thinking:
        yield Delta("", 1, thinking=reply.thinking)
    for piece in reply.pieces():
        yield Delta(piece, 1)
    for index, (name, arguments) in enumerate(reply.calls):
        written = json.dumps(dict(arguments), ensure_ascii=False)
        yield Delta("", 1, calls=(CallDelta(index, f"call_{turn}_{index + 1}", name, written),))
    if reply.error is not None:
        raise EngineError(reply.error)


def _without_missing(client: Client, call: api.Call[None]) -> None:
    with contextlib.suppress(NotFound):  # something else deleted it, such as the test's own program
        client.call(call)
