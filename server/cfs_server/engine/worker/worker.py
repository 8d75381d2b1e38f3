"""The worker process: owns one model and communicates with the server over an inherited socket.

    python -m cfs_server.engine.worker.worker FD

It has five threads: the main one computes (`Scheduler`), one reads frames, one prepares turns (`RequestPreparer`), one
prepares embeddings (`EmbeddingPreparer`) and one counts tokens (`Counter`). A model that makes no texts has no turns,
and `EncoderLoop` as its main thread. When the server exits, the socket closes and the process ends. On Linux the kernel
ends it even while native code is running.
"""

import ctypes
import io
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cfs.errors import EngineError
from cfs_server.engine.chat.prompt import PromptBuilder
from cfs_server.engine.contract import protocol
from cfs_server.engine.contract.interface import ModelLoadError
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import LoadedEncoder, LoadedModel, load_any
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.embeddings import EmbeddingPreparer
from cfs_server.engine.worker.encoder import EncoderLoop
from cfs_server.engine.worker.request_preparer import Counter, RequestPreparer
from cfs_server.engine.worker.scheduler import Scheduler

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PR_SET_PDEATHSIG = 1
_DRAIN_SECONDS = 0.4
"""Less than `process.LAST_MOMENT`, after which the server ends this process."""


class _Incoming(io.RawIOBase):
    """What the server sends. `poll` waits for it, because the kernel wakes a thread in `recv` for another reason, too:
    whenever the server takes something from the same socket. That would be once a token.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Wait for some bytes; 0 at the end."""
        self._poll.poll()
        return self._socket.recv_into(buffer)


class ServerSocket:
    """The socket to the server; several threads send."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._stream = io.BufferedReader(_Incoming(self._socket))
        self._lock = threading.Lock()

    def send(self, frame: protocol.Frame) -> None:
        """Send a frame; end the process if the connection is closed."""
        try:
            with self._lock:
                protocol.send(self._socket, frame)
        except OSError:
            os._exit(0)

    def read(self) -> protocol.Frame | None:
        """Wait for the next frame; `None` when the connection is closed."""
        return protocol.read(self._stream)

    def log(self, level: str, text: str) -> None:
        """Send a line for the server's log."""
        self.send(protocol.Log(level, text))


def main() -> None:
    """Serve until the server closes the connection."""
    _die_with_parent()
    connection = ServerSocket(int(sys.argv[1]))
    command = connection.read()
    if not isinstance(command, protocol.Load):
        return
    log = NativeLog(connection.log)
    try:
        model = load_any(command.path, command.options, log, extra_buffers=command.extra_buffers)
    except ModelLoadError as error:
        connection.send(protocol.LoadFailed(str(error)))
        return
    if isinstance(model, LoadedEncoder):
        _serve_encoder(connection, model)
    else:
        _serve(connection, model)


def _serve(connection: ServerSocket, model: LoadedModel) -> None:
    prompts = _prompt_builder(connection, model.vocabulary, model.template)
    scheduler = Scheduler(model, connection.send)
    preparer = RequestPreparer(
        model, prompts, scheduler.inbox.put, scheduler.interrupt, partial(connection.log, "warning")
    )
    for key, owner, tokens in scheduler.recovered():
        preparer.recover(key, owner, tokens)
    counter = Counter(model.vocabulary, prompts, connection.send)
    embedder = EmbeddingPreparer(model.vocabulary, model.context_tokens, scheduler.inbox.put, connection.send)
    _start(connection, preparer=preparer.run_forever, counter=counter.run_forever, embedder=embedder.run_forever)
    connection.send(
        protocol.Ready(
            context_tokens=model.context_tokens,
            pool_tokens=model.context.cells,
            has_chat_template=prompts.has_template,
            parameters=model.parameters,
            plan=model.plan,
            longest_token=model.vocabulary.longest,
            pooling=model.pooling.name if model.pooling else "",
        )
    )

    def take(frame: protocol.Frame) -> None:
        if isinstance(frame, protocol.Ping):
            scheduler.inbox.put(frame)  # past the preparer, which may be busy with long prompts
        elif isinstance(frame, protocol.AskTokens | protocol.StopCounting):
            counter.put(frame)
        elif isinstance(frame, protocol.Embed | protocol.StopEmbedding):
            embedder.put(frame)
        elif isinstance(frame, protocol.TurnCommand):
            preparer.put(frame)

    _start(connection, reader=partial(_read, connection, take, partial(scheduler.drain, _DRAIN_SECONDS)))
    # The engine has the main thread: OpenMP's threads under any other one cost a decode a third more time (measured).
    _or_die(connection, "engine", scheduler.run_forever)


def _serve_encoder(connection: ServerSocket, model: LoadedEncoder) -> None:
    loop = EncoderLoop(model, connection.send)
    counter = Counter(model.vocabulary, _prompt_builder(connection, model.vocabulary, None), connection.send)
    embedder = EmbeddingPreparer(model.vocabulary, model.context_tokens, loop.inbox.put, connection.send)
    _start(connection, counter=counter.run_forever, embedder=embedder.run_forever)
    connection.send(
        protocol.Ready(
            context_tokens=model.context_tokens,
            pool_tokens=0,
            has_chat_template=False,
            parameters=model.parameters,
            plan=None,
            longest_token=model.vocabulary.longest,
            pooling=model.pooling.name,
        )
    )

    def take(frame: protocol.Frame) -> None:
        if isinstance(frame, protocol.Ping | protocol.AskStats):
            loop.inbox.put(frame)
        elif isinstance(frame, protocol.AskTokens | protocol.StopCounting):
            counter.put(frame)
        elif isinstance(frame, protocol.Embed | protocol.StopEmbedding):
            embedder.put(frame)

    _start(connection, reader=partial(_read, connection, take, lambda: None))
    _or_die(connection, "engine", loop.run_forever)


def _read(connection: ServerSocket, take: Callable[[protocol.Frame], None], finish: Callable[[], None]) -> None:
    while (frame := connection.read()) is not None:
        take(frame)
    finish()
    os._exit(0)  # not `return`: the native library's clean-up must not wait for a thread that computes


def _start(connection: ServerSocket, **threads: Callable[[], None]) -> None:
    for name, target in threads.items():
        threading.Thread(target=_or_die, args=(connection, name, target), name=name, daemon=True).start()


def _prompt_builder(connection: ServerSocket, vocabulary: Vocabulary, template: str | None) -> PromptBuilder:
    names = {"begin_text": vocabulary.begin_text, "end_text": vocabulary.end_text}
    try:
        return PromptBuilder(template, **names, special=vocabulary.special_text)
    except EngineError as error:
        connection.log("warning", f"{error.detail}; prompts will be transcripts")
        return PromptBuilder(None, **names, special=vocabulary.special_text)


def _or_die(connection: ServerSocket, name: str, target: Callable[[], None]) -> None:
    """Run a thread; if a defect ends it, end the process. The supervisor then starts a new one."""
    try:
        target()
    except BaseException:  # noqa: BLE001 - reported, and the process ends
        connection.log("error", f"the worker's {name} thread failed: {traceback.format_exc()}")
        os._exit(70)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
