"""The embedded engine: a worker process under supervision (E1).

When the worker dies, the next one begins its turns again in their order. The reader of a turn that had sent text
gets `WorkerLost`, and begins it again itself. A turn that was running in two crashes fails with `WorkerCrashed`. The
pause before a restart grows while workers die before they have served a turn.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from cfs.errors import EngineError, Unavailable, WorkerCrashed
from cfs.wire import Message
from cfs_server.engine.chat.constrained_output import constrained
from cfs_server.engine.contract import protocol
from cfs_server.engine.contract.backlog import Backlog
from cfs_server.engine.contract.fitting import check_bound
from cfs_server.engine.contract.interface import (
    Delta,
    EmbeddingRequest,
    Embeddings,
    EngineState,
    EngineStats,
    EngineTokenCounts,
    Finished,
    GenerationRequest,
    Hint,
    Kind,
    ModelInfo,
    ModelLoadError,
    RestartReason,
)
from cfs_server.engine.host import models
from cfs_server.engine.host.embeddings import embed
from cfs_server.engine.host.process import COMMAND, Heartbeat, WorkerProcess, in_thread
from cfs_server.engine.host.streams import NOTHING, BackpressureLimits, TurnStream
from cfs_server.engine.host.token_log_store import TokenLogStore
from cfs_server.engine.host.worker_questions import ANSWER_SECONDS, RETRY_AFTER, Answer, Question, Questions
from cfs_server.engine.llama import probe

FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0
"""Seconds before a dead worker is replaced, doubled with each worker that served no turn."""


GIVE_UP_AFTER = 3
"""Failed starts in a row after which waiting turns fail."""


_log = structlog.get_logger(__name__)


def log_download(name: str) -> None:
    """Log that a download begins."""
    _log.info("the model is not here yet and is downloaded", model=name)


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    """Whether to probe the native code first, and with which command: replaceable, for tests."""

    needed: Callable[[], bool] = probe.is_needed
    command: Sequence[str] = probe.COMMAND


class LlamaEngine:
    """Runs a GGUF model with llama.cpp in a process of its own."""

    def __init__(
        self,
        model: str | None = None,
        options: protocol.WorkerOptions | None = None,
        *,
        probing: ProbePolicy | None = None,
        backpressure: BackpressureLimits | None = None,
        answer_seconds: float = ANSWER_SECONDS,
        command: Sequence[str] = COMMAND,
        heartbeat: Heartbeat | None = None,
        models_folder: Path | None = None,
        logs: TokenLogStore | None = None,
    ) -> None:
        """Take `model` and its folder as `models.resolve` does, and the command that starts a worker.

        `logs` are those of an earlier engine of the model. Nothing is started yet.
        """
        self._models_folder = models_folder
        self._backpressure = backpressure or BackpressureLimits()
        self._spec = model
        self._options = options or protocol.WorkerOptions()
        self._probing = probing or ProbePolicy()
        self._command = command
        self._state: EngineState = "starting"
        self._worker: WorkerProcess | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._load: protocol.Load | None = None
        self._context = (0, 1)
        self._info: ModelInfo | None = None
        self._streams: dict[str, TurnStream] = {}
        self._questions = Questions(answer_seconds)
        self._logs = TokenLogStore() if logs is None else logs
        self._past = protocol.Counters()
        self._counters = protocol.Counters()
        self._heartbeat = heartbeat or Heartbeat()
        self._restarts: Counter[RestartReason] = Counter({"crash": 0, "hang": 0})
        self._why: RestartReason = "crash"
        self._last_end = ""
        self._backlog = Backlog()
        self._useless = 0
        self._broken: str | None = None
        self._living: Callable[[], Iterable[str]] | None = None

    async def start(self) -> ModelInfo:
        """Load the model; raises `ModelLoadError`."""
        if self._supervision is not None:
            raise RuntimeError("the engine was started before")
        model = await in_thread(partial(models.resolve, self._spec, self._models_folder, on_download=log_download))
        fast = not await in_thread(self._probing.needed) or await probe.survives(model.path, self._probing.command)
        self._load = protocol.Load(str(model.path), model.name, self._options, fast)
        self._worker, ready = await WorkerProcess.spawn(self._load, self._command)
        self._context = ready.context_tokens, ready.longest_token
        self._tell_past(self._worker)
        self._state = "ready"
        self._supervision = asyncio.create_task(self._supervise(), name="engine supervisor")
        embedded = model.name == models.EMBEDDED
        notes = models.notes_of(
            model.name, has_chat_template=ready.has_chat_template, makes_texts=ready.plan is not None
        )
        notes = notes if fast else (probe.NOTE, *notes)
        if (plan := ready.plan) is not None:
            size = f"{plan.pool_bytes / (1 << 20):.0f} MiB"
            _log.debug("memory for conversations", model=model.name, pool=size, tokens=plan.pool_tokens)
        for note in notes:
            (_log.info if note == models.TOY else _log.warning)(note)
        self._info = ModelInfo(
            model.name,
            ready.context_tokens,
            ready.has_chat_template,
            ready.parameters,
            notes,
            ready.plan,
            embedded,
            pooling=ready.pooling,
            makes_texts=ready.plan is not None,
        )
        return self._info

    async def stop(self) -> None:
        """End at once; turns that are not finished fail."""
        self._state = "stopped"
        if self._supervision is not None:
            self._supervision.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervision
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.reap()
        self._fail_all(EngineError("the engine was stopped"))
        self._questions.fail_all()

    @property
    def ready(self) -> bool:
        """Whether a turn handed over now would start."""
        return self._state == "ready"

    @property
    def context_tokens(self) -> int:
        """How many tokens a prompt and its reply can have."""
        return self._context[0]

    def predicted_wait(self, owner: str, kind: Kind) -> float:
        """Seconds that an owner's turn of a kind would wait for its place if it were handed over now."""
        return self._backlog.wait(owner, kind)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta | Finished]:
        """Yield text as it is made, then exactly one `Finished`; see `Engine.generate`."""
        stream = self._submit(request)
        try:
            if self._worker is not None:
                await self._begin(self._worker, stream)
            while (delta := await stream.next()) is not None:
                if stream.resumes():
                    self._tell(protocol.Resume(request.id))
                if delta is not NOTHING:
                    yield delta
                if stream.reader.full and not stream.cancelled:  # it may make no further calls
                    self.cancel(request.id)
            if stream.error is not None:
                raise stream.error
            yield Finished(stream.reader.reason(stream.reason or "stop"), stream.usage(), stream.stop)
        finally:
            self._streams.pop(request.id, None)
            if not stream.over:
                self._tell(protocol.CancelTurn(request.id))

    def cancel(self, request_id: str) -> None:
        """Stop a generation within one step; unknown ids are ignored."""
        stream = self._streams.get(request_id)
        if stream is None or stream.over:
            return
        stream.cancelled = True
        if self._worker is None:
            stream.end("cancelled")
        else:
            self._tell(protocol.CancelTurn(request_id))

    def forget(self, cache_key: str) -> None:
        """Free everything stored for a deleted session."""
        self._logs.forget(cache_key, busy=self._worker is not None)
        if self._worker is not None:
            self._worker.forget(cache_key)

    def keep_only(self, living: Callable[[], Iterable[str]]) -> None:
        """Free the state of all sessions of the past but those that exist; see `KeepsState`."""
        self._living = living
        if self._worker is not None:
            self._worker.send(protocol.Retain(list(living())))

    def hint(self, cache_key: str, hint: Hint) -> None:
        """Note a session's activity until its next turn; unknown keys are ignored."""
        self._tell(protocol.Expect(cache_key, hint))

    async def stats(self) -> EngineStats:
        """Counters and gauges as of now."""
        answer = None
        with contextlib.suppress(Unavailable):  # if the worker hangs, return the server's own values
            answer = await self._ask_stats(check=False)
        base = EngineStats(
            state=self._state,
            restarts=self._restarts.total(),
            restarts_by_reason=dict(self._restarts),
            reason="" if self._state == "ready" else self._last_end,
            waiting=len(self._streams),
        )
        if answer is not None and self._worker is not None:
            base = replace(
                base,
                running=answer.running,
                waiting=answer.waiting,
                sequences_resident=answer.sequences_resident,
                sequences_parked=answer.sequences_parked,
                cells_used=answer.cells_used,
                gauges=answer.gauges | {"token_log_bytes": float(self._logs.bytes)},
                worker_pid=self._worker.pid,
            )
            self._counters = answer.counters
        return replace(base, **asdict(self._past + self._counters))

    async def count_tokens(
        self, texts: Sequence[str], messages: Sequence[Message] | None = None, tools: Sequence[dict[str, Any]] = ()
    ) -> EngineTokenCounts:
        """Count the tokens of texts, and of a conversation's prompt; raises `EngineError` or `Unavailable`."""
        documents = [message.model_dump(mode="json", exclude_defaults=True) for message in messages or ()]
        answer = await self._ask(
            lambda number: protocol.AskTokens(number, list(texts), None if messages is None else documents, list(tools))
        )
        if not isinstance(answer, protocol.CountedTokens):
            raise WorkerCrashed("the engine's worker process has ended; try again in a moment")
        if answer.error:
            raise EngineError(answer.error)
        return EngineTokenCounts(tuple(answer.counts), answer.prompt)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Make the vectors of some texts; see `Embeds.embed`."""

        async def ask(frame: Callable[[int], protocol.Embed]) -> Answer | None:
            return await self._ask(frame, seconds=request.deadline_seconds)

        return await embed(request, self._info.pooling if self._info else "", ask)

    async def check_integrity(self) -> list[str]:
        """Request a check of the worker's invariants; every line is a violation."""
        answer = await self._ask_stats(check=True)
        return (answer.violations if answer else []) + self._logs.check_integrity()

    def _submit(self, request: GenerationRequest) -> TurnStream:
        if self._state == "stopped" or self._load is None:
            raise EngineError("the engine is not running")
        if self._broken is not None:
            raise WorkerCrashed(self._broken, retry_after=RETRY_AFTER)
        if self._info is not None and not self._info.makes_texts:
            raise EngineError(models.NO_TEXTS)
        if request.id in self._streams:
            raise EngineError(f"a turn with the id {request.id} is already running")
        check_bound(request.messages, request.settings.system, *self._context)
        request = replace(request, options=constrained(request.options))
        self._logs.begun(request.cache_key)
        stream = self._streams[request.id] = TurnStream(request)
        return stream

    def _tell(self, frame: protocol.Frame) -> None:
        if self._worker is not None:
            self._worker.send(frame)

    async def _ask_stats(self, *, check: bool) -> protocol.Stats | None:
        answer = await self._ask(lambda number: protocol.AskStats(number, check))
        return answer if isinstance(answer, protocol.Stats) else None

    async def _ask(self, question: Callable[[int], Question], seconds: float | None = None) -> Answer | None:
        if self._worker is None:
            return None
        return await self._questions.ask(question, self._tell, seconds=seconds)

    async def _supervise(self) -> None:
        while True:
            if self._worker is not None:
                await self._listen(self._worker)
            await self._clean_up()
            await self._restart()

    async def _listen(self, worker: WorkerProcess) -> None:
        watch = asyncio.create_task(worker.watch(self._heartbeat, lambda: bool(self._streams)), name="engine heartbeat")
        try:
            await worker.receive(self._receive)
        except Exception:  # noqa: BLE001 - after any error this worker is unusable
            _log.exception("engine worker sent an invalid frame")
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    def _receive(self, frame: protocol.Frame) -> None:
        match frame:
            case protocol.Step():
                self._counters, self._backlog = frame.counters, frame.backlog
                self._spread(frame)
            case protocol.Stats() | protocol.CountedTokens() | protocol.Embedded():
                self._questions.answered(frame)

    def _spread(self, step: protocol.Step) -> None:
        for started in step.started:
            if stream := self._streams.get(started.id):
                stream.start(started)
        for text in step.texts:
            if stream := self._streams.get(text.id):
                stream.add(text)
                if stream.pauses(self._backpressure):
                    self._tell(protocol.Pause(text.id))
        for ended in step.ended:
            self._useless = 0
            if stream := self._streams.get(ended.id):
                stream.finish(ended)
        for delta in step.logs:
            if not self._logs.apply(delta):
                self._tell(protocol.TokenLogResync(delta.cache_key))

    async def _clean_up(self) -> None:
        """Clean up after a dead worker: keep its counters, and the turns that begin again with the next one."""
        self._state = "restarting"
        reason, hung = "the engine's worker process is gone", False
        if self._worker is not None:
            hung = bool(self._worker.hung)
            reason = await self._worker.reap()
        self._worker = None
        self._last_end = reason
        self._why = "hang" if hung else "crash"
        _log.error("engine worker ended", reason=reason)
        self._past += self._counters
        self._counters, self._backlog = protocol.Counters(), Backlog()
        self._questions.fail_all()
        for stream in self._streams.values():
            stream.orphan(reason)

    async def _restart(self) -> None:
        """Start workers until one is ready; then send it the waiting turns."""
        for attempt in itertools.count(1):
            await asyncio.sleep(min(FIRST_DELAY * 2**self._useless, LONGEST_DELAY))
            self._useless += 1
            try:
                worker = await self._spawn()
            except (ModelLoadError, OSError) as error:
                _log.error("engine worker cannot be started", reason=str(error), attempt=attempt)
                if attempt >= GIVE_UP_AFTER:
                    self._broken = f"the engine's worker process cannot be started again: {error}"
                    self._fail_all(WorkerCrashed(self._broken, retry_after=RETRY_AFTER))
                continue
            self._restarts[self._why] += 1
            self._broken = None
            self._worker, self._state = worker, "ready"
            await self._hand_over(worker)
            return

    async def _hand_over(self, worker: WorkerProcess) -> None:
        self._tell_past(worker)
        for stream in list(self._streams.values()):  # turns that arrive meanwhile are sent by their readers
            await self._begin(worker, stream)

    def _tell_past(self, worker: WorkerProcess) -> None:
        """Tell a new worker what there was before it."""
        if self._living is not None:
            worker.send(protocol.Retain(list(self._living())))
        for restore in self._logs.restores():
            worker.send(restore)

    async def _begin(self, worker: WorkerProcess, stream: TurnStream) -> None:
        """Send a turn to a worker, unless the turn or the worker has ended before that."""

        def wanted() -> bool:
            return self._worker is worker and not stream.over and not stream.cancelled

        try:
            sent = await worker.begin(stream.request, stream.age, wanted)
        except EngineError as error:
            stream.fail(error)
        else:
            if stream.cancelled and not sent:
                stream.end("cancelled")

    async def _spawn(self) -> WorkerProcess:
        if self._load is None:
            raise RuntimeError("the engine was not started")
        worker, _ = await WorkerProcess.spawn(self._load, self._command)
        return worker

    def _fail_all(self, error: EngineError) -> None:
        for stream in self._streams.values():
            if not stream.over:
                stream.fail(error)
