"""The engine of an upstream: runs turns and streams their answers, with any protocol (E4)."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from cfs.errors import ContextTooLong, EngineError, InvalidRequest, Unsupported
from cfs.wire import Usage
from cfs_server.engine.contract.fitting import LONGEST_UNKNOWN, check_bound, estimated_tokens
from cfs_server.engine.contract.history_forms import HistoryForm, portable_tools
from cfs_server.engine.contract.interface import (
    TOO_LONG,
    Delta,
    EmbeddingRequest,
    Embeddings,
    EngineState,
    EngineStats,
    Finished,
    GenerationRequest,
    Hint,
    Kind,
    ModelInfo,
    ModelLoadError,
    UpstreamKind,
)
from cfs_server.engine.upstream import connection
from cfs_server.engine.upstream.acceptance import Acceptance, refuses
from cfs_server.engine.upstream.affinity import Affinity
from cfs_server.engine.upstream.anthropic import AnthropicDialect
from cfs_server.engine.upstream.connection import Link, ReplyLimit, rest
from cfs_server.engine.upstream.conversation import stops_of
from cfs_server.engine.upstream.cutting import ReplyCutter
from cfs_server.engine.upstream.embeddings import TEXTS, request_embeddings
from cfs_server.engine.upstream.failures import Failure
from cfs_server.engine.upstream.openai import OpenAIDialect
from cfs_server.engine.upstream.optional_fields import unused
from cfs_server.engine.upstream.options import KINDS, UpstreamOptions
from cfs_server.engine.upstream.places import Places
from cfs_server.engine.upstream.protocol import Dialect
from cfs_server.engine.upstream.turn import UpstreamTurn, end_tasks

_LOOK_AGAIN_SECONDS = 2.0
_REFUSED = (400, 422)
DIALECTS: dict[UpstreamKind, Callable[[UpstreamOptions, str], Dialect]] = {
    "openai": OpenAIDialect,
    "anthropic": AnthropicDialect,
}
"""The protocol of each kind of upstream."""
_log = structlog.get_logger(__name__)


class UpstreamEngine:
    """Lets another server answer."""

    def __init__(self, options: UpstreamOptions) -> None:
        """Take the options; nothing is connected yet."""
        self._options = options
        self._places = Places(options.parallel)
        self._affinity = Affinity(options.affinity)
        self._dialect = DIALECTS[options.kind](options, options.model or "")
        self._model = options.model or ""
        self._context_tokens = 0
        self._acceptance = Acceptance()
        self._link: Link | None = None
        self._state: EngineState = "starting"
        self._turns: dict[str, UpstreamTurn] = {}
        self._watch: asyncio.Task[None] | None = None
        self._prompt_tokens = 0
        self._tokens = 0
        self._requests = 0
        self._repeated = 0

    async def start(self) -> ModelInfo:
        """Look whether the upstream is there, takes the key and has the model; raises `ModelLoadError` (E2)."""
        key = self._options.key.get_secret_value() if self._options.key else None
        try:
            self._link = await asyncio.to_thread(Link, self._options, self._dialect.headers(key))
        except InvalidRequest as error:
            raise ModelLoadError(error.detail) from None
        model = await self._find()
        self._model, self._context_tokens = model.id, self._options.context_tokens or model.context_tokens
        self._dialect = DIALECTS[self._options.kind](self._options, model.id)
        self._state = "ready"
        notes = (f"another server answers, by the protocol of {KINDS[self._options.kind].title}",)
        return ModelInfo(model.id, self._context_tokens, has_chat_template=True, notes=notes)

    async def stop(self) -> None:
        """End at once; turns that are not finished fail."""
        self._state = "stopped"
        for turn in self._turns.values():
            turn.fail(EngineError("the engine was stopped"))
        tasks = [turn.task for turn in self._turns.values()]
        await end_tasks(*tasks, self._watch)
        if self._link is not None:
            await self._link.close()

    @property
    def ready(self) -> bool:
        """Whether the upstream was there when it was last needed."""
        return self._state == "ready"

    @property
    def context_tokens(self) -> int:
        """How many tokens a prompt and its reply can have; 0 if the upstream does not report it."""
        return self._context_tokens

    @property
    def history_form(self) -> HistoryForm:
        """The form in which the upstream gets histories, as far as its refusals have shown."""
        return self._acceptance.form

    def predicted_wait(self, owner: str, kind: Kind) -> float:
        """Seconds that an owner's turn of a kind would wait for its place if it were handed over now."""
        return self._places.backlog.wait(owner, kind)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta | Finished]:
        """Yield text as it arrives, then exactly one `Finished`; see `Engine.generate`.

        An error has the `Failure` of the last request as its cause, if that failed.
        """
        turn = self._submit(request)
        try:
            while (delta := await turn.next()) is not None:
                yield delta
        finally:
            try:
                await end_tasks(turn.task)
            finally:
                del self._turns[request.id]
                self._account(turn.usage())
        if turn.error is not None:
            raise turn.error from turn.failure
        yield Finished(turn.reason or "stop", turn.usage(), turn.stop, turn.warnings)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Let the upstream make the vectors, which are passed on as they are; see `Embeds.embed`."""
        link, path = self._connected(), self._dialect.embeddings_path
        if path is None:
            raise Unsupported(
                f"the protocol of {KINDS[self._options.kind].title} has no embeddings: name another model"
            )
        limit = request.deadline_seconds
        vectors: list[Sequence[float]] = []
        tokens = 0
        try:
            async with asyncio.timeout(limit), self._places.place((request.owner, "agent", request.account)):
                for start in range(0, len(request.inputs), TEXTS):
                    inputs = request.inputs[start : start + TEXTS]
                    async for attempt in self._options.retries.attempts(lambda: True, self._note):
                        with attempt:
                            self._requests += 1
                            embeddings = await request_embeddings(link, path, self._model, request, inputs)
                    vectors += embeddings.vectors
                    tokens += embeddings.tokens
        except Failure as failure:
            self._seen(lost=failure.lost)
            failure.unrepeated = not self._options.retries.most
            raise failure.final from failure
        except TimeoutError:
            raise EngineError(TOO_LONG.format(limit)) from None
        finally:
            self._prompt_tokens += tokens
        self._seen(lost=False)
        return Embeddings(tuple(vectors), tokens)

    def cancel(self, request_id: str) -> None:
        """Close the connection of a turn; unknown ids are ignored."""
        turn = self._turns.get(request_id)
        if turn is not None and not turn.over:
            turn.end("cancelled")
            if turn.task is not None:
                turn.task.cancel()

    def forget(self, cache_key: str) -> None:
        """Drop the signed thinking of a session that was deleted."""
        self._dialect.forget(cache_key)

    def hint(self, cache_key: str, hint: Hint) -> None:
        """Do nothing: the upstream manages its own cache."""

    async def stats(self) -> EngineStats:
        """Counters and gauges as of now."""
        return EngineStats(
            state=self._state,
            running=self._places.held,
            waiting=self._places.waiting,
            prompt_tokens_evaluated=self._prompt_tokens,
            tokens_generated=self._tokens,
            gauges={"upstream_requests": self._requests, "upstream_requests_repeated": self._repeated},
        )

    async def _find(self) -> connection.UpstreamModel:
        if not self._options.check:
            if self._options.model is None:
                raise ModelLoadError(
                    "without asking the upstream its model is not known: name it with --upstream-model"
                )
            return connection.UpstreamModel(id=self._options.model)
        try:
            async for attempt in self._options.retries.attempts(lambda: True, self._note):
                with attempt:
                    return await connection.find(self._connected(), self._options.model)
        except (ModelLoadError, Failure) as error:
            reason = error.error.detail if isinstance(error, Failure) else str(error)
            raise ModelLoadError(f"upstream {self._options.url}: {reason}") from error
        raise AssertionError("unreachable")  # pragma: no cover

    def _connected(self) -> Link:
        if self._link is None or self._state == "stopped":
            raise EngineError("the engine is not running")
        return self._link

    def _submit(self, request: GenerationRequest) -> UpstreamTurn:
        self._connected()
        if request.id in self._turns:
            raise EngineError(f"a turn with the id {request.id} is already running")
        if self._context_tokens:
            check_bound(request.messages, request.settings.system, self._context_tokens, LONGEST_UNKNOWN)
        turn = self._turns[request.id] = UpstreamTurn(request)
        turn.task = asyncio.create_task(self._run(turn), name=f"upstream turn {request.id}")
        return turn

    async def _run(self, turn: UpstreamTurn) -> None:
        """Send a turn's request, with retries; every failure becomes an error that a session can show."""
        request = turn.request
        share = (request.owner, request.kind, request.account or request.cache_key)
        deadline = request.deadline_seconds or math.inf
        try:
            async with asyncio.timeout(deadline), self._places.place(share):
                turn.start()
                async for attempt in self._options.retries.attempts(lambda: turn.silent, self._note):
                    with attempt:
                        last = attempt.retry_state.attempt_number > self._options.retries.most
                        await self._ask(turn, last=last)
        except Failure as failure:
            self._seen(lost=failure.lost)
            failure.unrepeated = not turn.silent or not self._options.retries.most
            turn.failure = failure
            turn.fail(
                self._acceptance.error_of(request, failure, self._context_tokens) if turn.silent else failure.final
            )
        except EngineError as error:
            turn.fail(error)
        except TimeoutError:
            turn.fail(EngineError(TOO_LONG.format(deadline)))
        except Exception:  # noqa: BLE001 - a defect must not leave the session waiting for ever
            _log.exception("upstream.defect")
            turn.fail(EngineError("internal error"))

    async def _ask(self, turn: UpstreamTurn, *, last: bool) -> None:
        """Send the request, and again as long as there is something to change that the upstream refused."""
        request, form, refusal = turn.request, self._acceptance.form, None
        body, first = self._body(request, form), form
        while True:
            try:
                await self._listen(turn, body, form)
            except Failure as failure:
                if not turn.silent:
                    raise
                refusal = failure if form is first else refusal
                change = self._change(request, form, body, failure, last=last)
                if change is None:
                    if form is not first:
                        self._acceptance.helps_nothing(failure)
                    raise (refusal if refusal and refuses(failure) else failure) from None
                request, form, body = change
            else:
                self._acceptance.accepted(turn.request, form, refusal if form is not first else None)
                return

    def _change(
        self, request: GenerationRequest, form: HistoryForm, sent: dict[str, Any], failure: Failure, *, last: bool
    ) -> tuple[GenerationRequest, HistoryForm, dict[str, Any]] | None:
        """Return the next request, its form and its body after a failure, or None.

        First it leaves out members that the upstream names, then it puts the history into another form.
        """
        self._dialect.learn(failure)
        options = [(request, form)] if failure.status in _REFUSED else []
        if isinstance(failure.error, ContextTooLong):
            options.append((self._with_less_reply(request), form))
        options += [(request, other) for other in self._acceptance.other_forms(request, form, failure, last=last)]
        for request, form in options:
            if (body := self._body(request, form)) != sent:
                return request, form, body
        return None

    def _with_less_reply(self, request: GenerationRequest) -> GenerationRequest:
        """Leave most of the context to the prompt: servers refuse both together if they exceed it.

        Not for a request that no session shortens: its client has set the length, and gets the refusal.
        """
        max_tokens = self._context_tokens // 4
        may = request.may_shorten and 0 < max_tokens < request.settings.max_tokens
        if not may or estimated_tokens(request.messages) > 2 * max_tokens:
            return request
        return replace(request, settings=request.settings.model_copy(update={"max_tokens": max_tokens}))

    def _body(self, request: GenerationRequest, form: HistoryForm) -> dict[str, Any]:
        if form is not HistoryForm.PLAIN and request.options.tools:
            tools = portable_tools(request.options.tools)[0]
            request = replace(request, options=replace(request.options, tools=tools))
        return self._dialect.body(request, form)

    async def _listen(self, turn: UpstreamTurn, body: dict[str, Any], form: HistoryForm) -> None:
        names = portable_tools(turn.request.options.tools)[1] if form is not HistoryForm.PLAIN else {}
        reply = self._dialect.reply(turn.request)
        self._requests += 1
        limit = ReplyLimit(self._options.reply_bytes)
        cutter = ReplyCutter(stops_of(turn.request), single_call=not turn.request.options.parallel_calls)

        def add(deltas: Iterable[Delta]) -> None:
            for delta in deltas:
                limit.said(delta)
                if (piece := cutter.feed(delta)) is not None:
                    turn.add(_with_own_names(piece, names))

        events = self._connected().events(
            self._dialect.path,
            body,
            self._model,
            limit,
            self._affinity.headers(turn.request),
            partial(self._affinity.answered, turn.request),
        )
        async with contextlib.aclosing(events):
            try:
                async for event in events:
                    add(reply.feed(event))
                    if cutter.over:
                        break
                    if reply.over:
                        await rest(events)
                        break
                if not cutter.over:
                    add(reply.rest())
                if (held := cutter.rest()) is not None:
                    turn.add(_with_own_names(held, names))
            finally:
                turn.spent, turn.size = reply.spent, limit.size
        reason = "stop" if cutter.over else reply.finish()
        turn.stop, turn.warnings = cutter.stop or reply.stop, (*unused(turn.request, body), *reply.warnings)
        turn.end(reason)
        self._seen(lost=False)

    def _note(self, failure: Failure, pause: float) -> None:
        self._repeated += 1
        _log.warning("upstream.again", reason=failure.error.detail, seconds=round(pause, 2))

    def _account(self, usage: Usage) -> None:
        self._prompt_tokens += usage.prompt_tokens - usage.cached_tokens
        self._tokens += usage.completion_tokens

    def _seen(self, *, lost: bool) -> None:
        """Note whether the upstream is reachable; if it is not, poll until it is."""
        if self._state == "stopped":
            return
        self._state = "restarting" if lost else "ready"
        if lost and (self._watch is None or self._watch.done()):
            self._watch = asyncio.create_task(self._look(), name="upstream watch")

    async def _look(self) -> None:
        while self._state == "restarting":
            await self._options.retries.sleep(_LOOK_AGAIN_SECONDS)
            with contextlib.suppress(Failure):
                await self._connected().get("models")
                self._seen(lost=False)


def _with_own_names(delta: Delta, names: Mapping[str, str]) -> Delta:
    """Return output in which tools have their own names, not those that the upstream got."""
    if not names or not delta.calls:
        return delta
    calls = tuple(replace(call, name=names.get(call.name, call.name)) if call.name else call for call in delta.calls)
    return replace(delta, calls=calls)
