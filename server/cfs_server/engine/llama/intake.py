"""Turns requests into generations, away from the engine's thread: prompts, tokens, grammars, samplers.

A request that is bad (a template that refuses it, a schema that is no grammar, a prompt that is too long) ends here
and hurts nobody else. Requests keep their order; a cancel overtakes what is still being prepared.
"""

import queue
import threading
import time
from array import array
from collections.abc import Callable, Sequence

import numpy as np

from cfs.errors import CfsError, ContextTooLong, EngineError
from cfs.wire import Message, Settings
from cfs_server.engine.chat.templates import PromptBuilder
from cfs_server.engine.fitting import TARGET, check_bound, count_fitting, exchanges, leading_systems
from cfs_server.engine.frames import (
    AskStats,
    Cancel,
    DropHistory,
    Ended,
    Expect,
    Forget,
    Generate,
    Pause,
    Recall,
    Resume,
    TellAgain,
)
from cfs_server.engine.histories import KnownHistories
from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.llama.grammar import Grammars
from cfs_server.engine.llama.loading import LoadedModel
from cfs_server.engine.llama.logprobs import Reported
from cfs_server.engine.llama.recalled import Recalled
from cfs_server.engine.llama.sampling import Sampler
from cfs_server.engine.llama.scheduler import Work
from cfs_server.engine.llama.sequences import Generation, Refused
from cfs_server.engine.llama.text import TextStream
from cfs_server.engine.llama.token_log import TokenLog, TokenLogs

Order = Generate | Cancel | Pause | Resume | Forget | DropHistory | Recall | TellAgain | Expect | AskStats


class Intake:
    """Prepares orders for the scheduler's inbox, in a thread of its own (`run_forever`)."""

    def __init__(
        self,
        model: LoadedModel,
        prompts: PromptBuilder,
        deliver: Callable[[Work], None],
        interrupt: Callable[[str], None],
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._context_tokens = model.context_tokens
        self._vocabulary = model.vocabulary
        self._prompts = prompts
        self._grammars = Grammars(model.vocabulary, report)
        self._recalled = Recalled(self._tokenize, model.vocabulary.spell)
        self._logs = TokenLogs(self._tokenize, model.vocabulary.cuts, recalled=self._recalled)
        self._histories = KnownHistories()
        self._deliver = deliver
        self._interrupt = interrupt
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._preparing: dict[str, float] = {}  # turns, and when they came

    def put(self, order: Order) -> None:
        """Take an order from the connection's thread."""
        with self._lock:
            if isinstance(order, Generate):
                self._preparing[order.id] = time.monotonic()
            if isinstance(order, Cancel):
                self._cancel(order)
                return
            if isinstance(order, Pause | Resume):  # of a turn that speaks: there is nothing to prepare
                self._deliver(order)
                return
        self._orders.put(order)

    def run_forever(self) -> None:
        """Prepare orders, one after the other."""
        while True:
            match order := self._orders.get():
                case Generate():
                    messages = self._histories.take(order)  # also of a turn that was cancelled meanwhile
                    self._admit(order, self._prepare(order, messages))
                case DropHistory(key):
                    self._histories.drop(key)
                case Recall(key, owner, rows):
                    self._recalled.put(key, owner, rows)
                case TellAgain(key):
                    self._logs.tell_again(key)
                case Forget(key):
                    self._histories.drop(key)
                    self._logs.forget(key)
                    self._deliver(order)
                case _:
                    self._deliver(order)

    def _tokenize(self, text: str, trusted: bool) -> Tokens:
        return self._vocabulary.tokenize(text, special=trusted)

    def _cancel(self, order: Cancel) -> None:
        if order.id in self._preparing:
            del self._preparing[order.id]
            self._deliver(Refused(Ended(order.id, "cancelled")))
        else:
            self._interrupt(order.id)
            self._deliver(order)

    def _admit(self, order: Generate, work: Generation | Refused) -> None:
        with self._lock:
            came = self._preparing.pop(order.id, None)
            if came is not None:
                if isinstance(work, Generation) and order.deadline_seconds is not None:
                    work.may_take = order.deadline_seconds
                    work.ends_at = came + order.deadline_seconds - order.waited_seconds
                self._deliver(work)
            elif isinstance(work, Generation):
                work.sampler.free()

    def _prepare(self, order: Generate, messages: Sequence[Message]) -> Generation | Refused:
        try:
            return self._generation(order, messages)
        except CfsError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - one bad request must not end the worker
            failure = EngineError(f"the request cannot be prepared: {type(error).__name__}: {error}")
        fits, leaving = (failure.fits, failure.leaving) if isinstance(failure, ContextTooLong) else (None, 0)
        return Refused(Ended(order.id, "error", 0, type(failure).__name__, failure.detail, fits, leaving))

    def _generation(self, order: Generate, messages: Sequence[Message]) -> Generation:
        settings = Settings.model_validate(order.settings)
        check_bound(messages, settings.system, self._context_tokens, self._vocabulary.longest)
        prompt = self._prompts.build(messages, settings, order.tools)
        solo = settings.reproducible and (settings.seed is not None or settings.temperature == 0)
        # What was cut into tokens before, and how, must not matter to a turn that is to be the same each time.
        known = self._logs.read(prompt.pieces) if solo else self._logs.next(order.cache_key, prompt.pieces, order.owner)
        tokens = self._tokens(known)
        room = self._context_tokens - len(tokens)
        reserve = min(settings.max_tokens, self._context_tokens // 4) if order.may_shorten else 1
        if room < reserve:
            self._check_room(order, messages, settings, len(tokens), reserve)
        # A schema says how the whole of a reply is written, calls included (`forcing`).
        constraint = self._grammars.get(order.json_schema) or self._grammars.of_calls(order.tools, thinks=prompt.thinks)
        return Generation(
            id=order.id,
            cache_key=order.cache_key,
            log=array("i", tokens.tobytes()),
            prompt_tokens=len(tokens),
            max_tokens=min(settings.max_tokens, room),
            sampler=Sampler(settings, constraint, order.logprobs),
            text=TextStream(prompt.stops),
            thinks=prompt.thinks,
            reported=Reported(self._vocabulary) if order.logprobs is not None else None,
            known=known,
            owner=order.owner,
            solo=solo,
            share=(order.owner, order.kind, order.account),
        )

    def _check_room(
        self, order: Generate, messages: Sequence[Message], settings: Settings, tokens: int, reserve: int
    ) -> None:
        """Raise `ContextTooLong` for a prompt of so many tokens, unless it fits and nothing can be left out of it."""
        context, limit = self._context_tokens, self._context_tokens - reserve
        if tokens < context and len(exchanges(messages, leading_systems(messages))) <= 1:
            return
        fits, leaving = None, 0
        if order.may_shorten:

            def whole(some: Sequence[Message]) -> int:
                return len(self._tokens(self._logs.read(self._prompts.build(some, settings, order.tools).pieces)))

            def count(text: str) -> int:
                return len(self._tokenize(text, trusted=False))

            fits = count_fitting(messages, limit=limit, most=context - 1, whole=whole, count=count)
            leaving = max(0, tokens - round(TARGET * limit))
        raise ContextTooLong(
            f"the prompt takes {tokens} tokens; the model's context holds {context}", fits=fits, leaving=leaving
        )

    def _tokens(self, log: TokenLog) -> Tokens:
        tokens = log.tokens
        begin = self._vocabulary.begin
        if begin is not None and (not len(tokens) or tokens[0] != begin):
            tokens = np.concatenate([np.array([begin], dtype=np.int32), tokens])
        if not len(tokens):
            raise EngineError("the prompt is empty")
        return tokens.astype(np.int32, copy=False)
