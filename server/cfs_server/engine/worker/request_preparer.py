"""Turns requests into generations: builds prompts, tokens, grammars and samplers outside the engine's thread.

A bad request (the template refuses it, the schema is invalid, the prompt is too long) fails here and affects no other
request. Requests of one owner keep their order. A cancel overtakes requests in preparation. Owners take turns of some
milliseconds, so a long prompt of one does not delay another's.
"""

import queue
import threading
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from cfs.errors import CfsError, ContextTooLong, EngineError
from cfs.wire import Message, Settings
from cfs_server.engine.chat.prompt import PromptBuilder
from cfs_server.engine.contract.fitting import TARGET, check_bound, count_fitting, exchanges, leading_systems
from cfs_server.engine.contract.protocol import (
    AskStats,
    AskTokens,
    CancelTurn,
    CountedTokens,
    DropHistory,
    Ended,
    Expect,
    Forget,
    Generate,
    HistoryPart,
    KnownHistories,
    Pause,
    QuickCommand,
    Resume,
    StopCounting,
    TokenLogRestore,
    TokenLogResync,
    TurnCommand,
)
from cfs_server.engine.llama.ffi import Tokens
from cfs_server.engine.llama.model import LoadedModel
from cfs_server.engine.llama.token_logs import RestoredLogs, TokenLog, TokenLogs
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.generation import Generation, Refused
from cfs_server.engine.worker.grammar import Constraint, Grammars
from cfs_server.engine.worker.log_probabilities import Reported
from cfs_server.engine.worker.logit_changes import LogitChanges
from cfs_server.engine.worker.sampling import Sampler
from cfs_server.engine.worker.scheduler import Work
from cfs_server.engine.worker.text import TextStream

# It runs in a separate thread, so a long text delays no turn. Requests take turns, one text each, so a short one does
# not wait for all earlier requests.

_Counting = Generator[None, None, CountedTokens]


class Counter:
    """Answers questions (`run_forever`)."""

    def __init__(self, vocabulary: Vocabulary, prompts: PromptBuilder, send: Callable[[CountedTokens], None]) -> None:
        self._vocabulary = vocabulary
        self._prompts = prompts
        self._send = send
        self._commands: queue.SimpleQueue[AskTokens | StopCounting] = queue.SimpleQueue()
        self._open: OrderedDict[int, _Counting] = OrderedDict()

    def put(self, command: AskTokens | StopCounting) -> None:
        """Add a request or its cancellation from the connection's thread."""
        self._commands.put(command)

    def run_forever(self) -> None:
        """Answer questions, a text of each at a time."""
        while True:
            self.step()

    def step(self) -> None:
        """Add new requests, or wait for one, and count one text."""
        while not self._commands.empty() or not self._open:
            self._take(self._commands.get())
        number, work = self._open.popitem(last=False)
        try:
            next(work)
            self._open[number] = work
        except StopIteration as end:
            self._send(end.value)

    def answer(self, question: AskTokens) -> CountedTokens:
        """Count everything requested at once."""
        work = self._work(question)
        while True:
            try:
                next(work)
            except StopIteration as end:
                counted: CountedTokens = end.value
                return counted

    def _take(self, command: AskTokens | StopCounting) -> None:
        if isinstance(command, AskTokens):
            self._open[command.number] = self._work(command)
        elif self._open.pop(command.number, None) is not None:
            self._send(CountedTokens(command.number, error="its client has left"))

    def _work(self, question: AskTokens) -> _Counting:
        """Count a request; a conversation that the template refuses gets an error and affects no other."""
        counts: list[int] = []
        try:
            for text in question.contents:
                counts.append(self._count(text, special=False))
                yield
            return CountedTokens(question.number, counts, (yield from self._prompt(question)))
        except CfsError as error:
            return CountedTokens(question.number, error=error.detail)
        except Exception as error:  # noqa: BLE001 - one bad question must not end the worker
            return CountedTokens(question.number, error=f"{type(error).__name__}: {error}")

    def _prompt(self, question: AskTokens) -> Generator[None, None, int | None]:
        if question.messages is None:
            return None
        messages = [Message.model_validate(message) for message in question.messages]
        pieces = self._prompts.build(messages, Settings(), question.tools).pieces
        total = int(self._vocabulary.begin is not None)
        for piece in pieces:
            yield
            total += self._count(piece.text, special=piece.trusted)
        return total

    def _count(self, text: str, *, special: bool) -> int:
        return len(self._vocabulary.tokenize(text, special=special))


SLICE_SECONDS = 0.01
"""So long one owner's prompts are prepared before it is another one's turn."""
LONG_CHARACTERS = 1 << 16
_SURELY = 1.2


@dataclass(slots=True)
class _Barrier:
    """A question that is passed on when everything before it is done, in as many lanes as are `left`."""

    question: AskStats
    left: int


_Work = Generator[None, None, Generation | Refused]


@dataclass(slots=True)
class _Lane:
    """The waiting commands of one owner, and the work on the first of them."""

    commands: deque[TurnCommand | _Barrier] = field(default_factory=deque)
    work: _Work | None = None

    def has(self, key: str) -> bool:
        """Whether a turn of this key is being prepared."""
        return any(isinstance(command, Generate) and command.cache_key == key for command in self.commands)


class RequestPreparer:
    """Prepares commands for the scheduler's inbox, in a thread of its own (`run_forever`)."""

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
        self._compiler = ThreadPoolExecutor(1, "grammars")
        self._restored = RestoredLogs(self._tokenize, model.vocabulary.spell)
        self._logs = TokenLogs(self._tokenize, model.vocabulary.cuts, restored=self._restored)
        self._histories = KnownHistories()
        self._deliver = deliver
        self._interrupt = interrupt
        self._commands: queue.SimpleQueue[TurnCommand] = queue.SimpleQueue()
        self._lanes: OrderedDict[str, _Lane] = OrderedDict()
        self._lock = threading.Lock()
        self._preparing: dict[str, float] = {}  # turns and their arrival times

    def recover(self, key: str, owner: str, tokens: Tokens) -> None:
        """Take the tokens of a session whose state was found on disk."""
        begin = self._vocabulary.begin
        self._restored.put_tokens(key, owner, tokens[1:] if len(tokens) and tokens[0] == begin else tokens)

    def put(self, command: TurnCommand) -> None:
        """Take a command from the connection's thread."""
        with self._lock:
            if isinstance(command, Generate):
                self._preparing[command.id] = time.monotonic()
            if isinstance(command, CancelTurn):
                self._cancel(command)
                return
            if isinstance(command, Pause | Resume):  # of a turn that is streaming: there is nothing to prepare
                self._deliver(command)
                return
        self._commands.put(command)

    def run_forever(self) -> None:
        """Prepare commands, a slice of each owner's at a time."""
        while True:
            self.step()

    def step(self) -> None:
        """Add new commands, or wait for one, and prepare a slice of the next owner's request."""
        while not self._commands.empty() or not self._lanes:
            self._sort(self._commands.get())
            if not self._lanes and self._commands.empty():
                return
        owner, lane = self._lanes.popitem(last=False)
        self._advance(lane)
        if lane.commands:
            self._lanes[owner] = lane

    def _sort(self, command: TurnCommand) -> None:
        """Queue a command after those that must precede it, or run it at once."""
        if isinstance(command, Generate):
            self._lanes.setdefault(command.owner, _Lane()).commands.append(command)
        elif isinstance(command, AskStats) and self._lanes:
            barrier = _Barrier(command, len(self._lanes))
            for lane in self._lanes.values():
                lane.commands.append(barrier)
        elif isinstance(command, HistoryPart | Forget | DropHistory | TokenLogRestore | TokenLogResync | Expect):
            busy = [lane for lane in self._lanes.values() if lane.has(command.cache_key)]
            if busy:
                busy[0].commands.append(command)
            else:
                self._follow(command)
        else:
            self._follow(command)

    def _advance(self, lane: _Lane) -> None:
        """Continue the first command of a lane for some milliseconds."""
        command = lane.commands[0]
        if isinstance(command, _Barrier):
            command.left -= 1
            if not command.left:
                self._deliver(command.question)
        elif not isinstance(command, Generate):
            self._follow(command)
        else:
            if lane.work is None:
                messages = self._histories.take(command)  # also of a turn that was cancelled meanwhile
                lane.work = self._prepare(command, messages)
            until = time.monotonic() + SLICE_SECONDS
            try:
                while command.id in self._preparing:
                    next(lane.work)
                    if time.monotonic() > until:
                        return
            except StopIteration as end:
                self._admit(command, end.value)
            lane.work.close()
            lane.work = None
        lane.commands.popleft()

    def _follow(self, command: QuickCommand) -> None:
        match command:
            case HistoryPart():
                self._histories.take(command)
            case DropHistory(key):
                self._histories.drop(key)
            case TokenLogRestore(key, owner, rows):
                self._restored.put(key, owner, rows)
            case TokenLogResync(key):
                self._logs.resync(key)
            case Forget(key):
                self._histories.drop(key)
                self._logs.forget(key)
                self._deliver(command)
            case _:
                self._deliver(command)

    def _tokenize(self, text: str, trusted: bool) -> Tokens:
        return self._vocabulary.tokenize(text, special=trusted)

    def _cancel(self, command: CancelTurn) -> None:
        if command.id in self._preparing:
            del self._preparing[command.id]
            self._deliver(Refused(Ended(command.id, "cancelled")))
        else:
            self._interrupt(command.id)
            self._deliver(command)

    def _admit(self, command: Generate, work: Generation | Refused) -> None:
        with self._lock:
            came = self._preparing.pop(command.id, None)
            if came is not None:
                if isinstance(work, Generation) and command.deadline_seconds is not None:
                    work.may_take = command.deadline_seconds
                    work.ends_at = came + command.deadline_seconds - command.waited_seconds
                self._deliver(work)
            elif isinstance(work, Generation):
                work.sampler.free()

    def _prepare(self, command: Generate, messages: Sequence[Message]) -> _Work:
        try:
            return (yield from self._generation(command, messages))
        except CfsError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - one bad request must not end the worker
            failure = EngineError(f"the request cannot be prepared: {type(error).__name__}: {error}")
        fits, leaving = (failure.fits, failure.leaving) if isinstance(failure, ContextTooLong) else (None, 0)
        return Refused(Ended(command.id, "error", 0, type(failure).__name__, failure.detail, fits, leaving))

    def _generation(self, command: Generate, messages: Sequence[Message]) -> Generator[None, None, Generation]:
        settings = Settings.model_validate(command.settings)
        check_bound(messages, settings.system, self._context_tokens, self._vocabulary.longest)
        yield from self._check_long(messages)
        prompt = self._prompts.build(messages, settings, command.tools)
        deterministic = settings.reproducible and (settings.seed is not None or settings.temperature == 0)
        # Earlier tokenization must not affect a deterministic turn.
        yield
        logs = self._logs
        log = yield from (
            logs.cut(prompt.pieces) if deterministic else logs.cut_next(command.cache_key, prompt.pieces, command.owner)
        )
        tokens = self._tokens(log)
        room = self._context_tokens - len(tokens)
        reserve = min(settings.max_tokens, self._context_tokens // 4) if command.may_shorten else 1
        if room < reserve:
            self._check_room(command, messages, settings, len(tokens), reserve)
        vocabulary = self._vocabulary
        changes = LogitChanges.of(settings, vocabulary.size, vocabulary.ends_of_turns, tokens)
        constraint = yield from self._constraint(command, thinks=prompt.thinks)
        return Generation(
            id=command.id,
            cache_key=command.cache_key,
            log=array("i", tokens.tobytes()),
            prompt_tokens=len(tokens),
            max_tokens=min(settings.max_tokens, room),
            sampler=Sampler(settings, constraint, command.logprobs, changes),
            text=TextStream(prompt.stops),
            thinks=prompt.thinks,
            reported=Reported(self._vocabulary) if command.logprobs is not None else None,
            known=log,
            owner=command.owner,
            deterministic=deterministic,
            share=(command.owner, command.kind, command.account),
        )

    def _constraint(self, command: Generate, *, thinks: bool) -> Generator[None, None, Constraint | None]:
        """Have a grammar compiled, if the reply needs one, while the requests of others are prepared."""
        if command.json_schema is None and not command.tools:
            return None
        work = self._compiler.submit(self._grammars.of_reply, command.json_schema, command.tools, thinks=thinks)
        while not wait([work], SLICE_SECONDS).done:
            yield
        return work.result()

    def _check_long(self, messages: Sequence[Message]) -> Generator[None, None, None]:
        """Raise `ContextTooLong` for a message that is too long alone, by the tokens of its parts.

        The whole of a text cannot be cut into tokens in slices; the sum of its parts is larger by some tokens at most.
        """
        for index, message in enumerate(messages):
            if len(message.content) <= LONG_CHARACTERS:
                continue
            tokens = 0
            for start in range(0, len(message.content), LONG_CHARACTERS):
                tokens += len(self._tokenize(message.content[start : start + LONG_CHARACTERS], trusted=False))
                yield
                if tokens > _SURELY * self._context_tokens:
                    fits = sum(later.role == "user" for later in messages[index + 1 :])
                    limit = self._context_tokens
                    detail = f"a message takes more than {tokens} tokens; the model's context holds {limit}"
                    raise ContextTooLong(detail, fits=fits, leaving=tokens)

    def _check_room(
        self, command: Generate, messages: Sequence[Message], settings: Settings, tokens: int, reserve: int
    ) -> None:
        """Raise `ContextTooLong` for a prompt of so many tokens, unless it fits and nothing can be left out of it."""
        context, limit = self._context_tokens, self._context_tokens - reserve
        if tokens < context and len(exchanges(messages, leading_systems(messages))) <= 1:
            return
        fits, leaving = None, 0
        if command.may_shorten:

            def whole(some: Sequence[Message]) -> int:
                return len(self._tokens(self._logs.read(self._prompts.build(some, settings, command.tools).pieces)))

            def count(text: str) -> int:
                return len(self._tokenize(text, trusted=False))

            fits = count_fitting(messages, limit=limit, max_last=context - 1, whole=whole, count=count)
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
