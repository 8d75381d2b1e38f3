"""The loop of an agent: ask the model and run its tool calls until it answers without a call (A7, O6).

The next step follows from the conversation alone: calls without results are run, an answer ends the task, and in all
other cases the model is asked. So the same loop resumes a task that was interrupted anywhere.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import takewhile
from typing import cast

from cfs.api import acting_as
from cfs.errors import CfsError, ContextTooLong, EngineError
from cfs.wire import Message, ToolCall, Usage
from cfs_agents.base.events import (
    AgentEvent,
    CallFinished,
    CallStarted,
    ContextShortened,
    ContextUpdated,
    EndReason,
    Finished,
    Retrying,
    RoundStarted,
    Text,
    Thinking,
    TurnUsage,
    Warned,
)
from cfs_agents.base.messages import catalogue, format_changes
from cfs_agents.context import CleaningPolicy, ContextFileSystem, Conversation, ConversationChange, clean_root
from cfs_agents.context.tokens import estimate
from cfs_agents.loop.claims import named_files
from cfs_agents.loop.config import AgentConfig, BackgroundJobs, FilesWatch, Outcome, SyncTurn, working_context
from cfs_agents.loop.faults import MOST_FAULTS, REASONS, WARNINGS, Fault, asking, fault_in, joined
from cfs_agents.loop.interrupts import Interrupted, Interrupts
from cfs_agents.loop.model import Chunk, CompleteResponse, HasContextWindow, Item, Model
from cfs_agents.loop.recorder import NullRecorder, Recorder
from cfs_agents.loop.repetition import RepeatedSteps, RepeatedText
from cfs_agents.loop.replies import with_calls_in_text
from cfs_agents.loop.server_model import has_small_context
from cfs_agents.loop.summaries import Summaries
from cfs_agents.tools import CallGate, Registry, ToolResult, failure_of
from cfs_agents.tools.jobs import JOB

__all__ = ["Agent", "AgentConfig", "Outcome", "SyncTurn"]

_SHORTER = 0.7
_MOST_SHORTENINGS = 8


class Agent:
    """A model with tools and a conversation. It runs one task at a time; `outcome` describes the last or running one.

    `context` is the conversation, as the model is about to see it. The `recorder` stores each step before the agent
    continues, so what it has can be resumed by `resume_at`. Each call of a tool passes the `gate` before it happens.

    `system_for` returns the system prompt for a model with a small context, or for any other; without it the prompt is
    the same for all. `jobs` are its commands in the background.
    """

    def __init__(
        self,
        llm: Model,
        config: AgentConfig | None = None,
        *,
        files: ContextFileSystem | None = None,
        recorder: Recorder | None = None,
        gate: CallGate | None = None,
        watch: FilesWatch | None = None,
        system_for: Callable[[bool], Awaitable[Message]] | None = None,
        jobs: BackgroundJobs | None = None,
    ) -> None:
        self.config = config = config or AgentConfig()
        self.tools = Registry(config.tools, gate=gate)
        self._say = catalogue(config.language)
        self.outcome = Outcome()
        self._summaries = Summaries(llm, config.language)
        self.context = working_context(config, files, self.tools, self._summaries)
        if config.system is not None:
            self.context.add(Message(role="system", content=config.system))
        self._llm = llm
        self._system_for = system_for
        self._is_small: bool | None = None
        """Whether the model has a small context; None until it has said so. Then it gets what fits any model."""
        self._window: int | None = None
        """The context of the model in tokens, if it says it."""
        self._recorder = recorder or NullRecorder()
        self._watch = watch
        self._jobs = jobs
        self.ends_jobs = True
        """Whether an answer ends the background jobs; else the caller does it, by `end_jobs`."""
        self._unmade: tuple[str, ...] = ()
        self._failed_call = ""
        self._interrupts = Interrupts()
        self._broken: Mapping[str, str] = {}
        self._begun: set[str] = set()
        """Ids of the open calls that have begun."""
        self._syncs = 0
        self._unsynced = 0
        """Steps since the last sync, or since the model was last asked for one."""
        self._fault: Fault | None = None
        self._faults: Counter[Fault] = Counter()
        """Useless replies in a row, by fault."""
        self._unkept: Usage | None = None
        """Usage of replies that did not enter the conversation."""
        self.repeated = RepeatedSteps(config.language)
        """Detects repeated steps; a new message for the agent clears it."""
        self._cleans = files is None
        self._warnings: list[str] = []
        self._told = 0

    def resume_at(
        self,
        context: Conversation,
        *,
        begun: Iterable[str] = (),
        broken: Mapping[str, str] | None = None,
        failed_call: str = "",
    ) -> None:
        """Take over a conversation; `begun` are the ids of its open calls that have begun before.

        `broken` has the reasons why calls could not be read, by id. `failed_call` is the error of its last call.
        """
        self.context.context = context
        self._begun, self._broken, self._failed_call = set(begun), broken or {}, failed_call

    @property
    def task(self) -> str:
        """The text of the last task; empty before the first."""
        return self._doubted()[0]

    def interrupt(self) -> None:
        """Stop the running task at the next place where it waits; from the thread of its event loop."""
        self._interrupts.request()

    def warn(self, sentence: str) -> None:
        """Warn a person: a `Warned` comes before the next event. Call it from the thread of the event loop."""
        self._warnings.append(sentence)

    async def query(self, task: str | None = None) -> Outcome:
        """Work on a task to its end and return the outcome; without a task, continue the last one."""
        async with aclosing(self.run_stream(task)) as events:
            async for _ in events:
                pass
        return self.outcome

    async def run_stream(self, task: str | None = None) -> AsyncGenerator[AgentEvent, None]:
        """Work on a task and yield events; `Finished` is always the last one.

        Errors become the outcome; only a cancellation propagates. When the agent continues after one, or after the
        generator was closed, the model is told which calls had begun.
        """
        before, self.outcome = self.outcome, Outcome()
        self._interrupts.clear()
        self._syncs = self._unsynced = 0
        self._fault = None
        self._faults.clear()
        self.repeated.clear()
        try:
            await self._open(task, before)
            async with aclosing(self._rounds()) as events:
                async for event in events:
                    yield event
        except Interrupted:
            self._end("interrupted", "it was interrupted")
        except CfsError as error:
            self._fail(error)
        if self._watch is not None:
            try:
                self.outcome.files = await self._watch.changes()
            except CfsError as error:
                self._fail(error)
        if self.outcome.over and self.ends_jobs:
            await self.end_jobs()
        end = Finished(self.outcome.reason, self.outcome.detail)
        try:
            await self._recorder.ended(end)
        except CfsError as error:
            self._fail(error)
            end = Finished("failed", error.detail)
        if self._cleans:
            await self._clean()
        for warning in self._news():
            yield warning
        if self.outcome.files:
            yield self.outcome.files
        yield end

    async def end_jobs(self) -> tuple[str, ...]:
        """Stop the background jobs; return notes on them and on processes that commands have left."""
        if self._jobs is not None:
            self.outcome.jobs = await self._jobs.end()
            for note in self.outcome.jobs:
                self.warn(note)
        return self.outcome.jobs

    async def _clean(self) -> None:
        """Remove old off-loaded items of an agent without a directory of its own; failures can wait."""
        if (files := self.context.files) is not None:
            with suppress(CfsError):
                await self.context.clean()
                await asyncio.to_thread(clean_root, files.root, CleaningPolicy(), files.now())

    async def _open(self, task: str | None, before: Outcome) -> None:
        """Begin a task, or prepare to continue the last one."""
        if task is not None:
            while calls := self.context.context.open_calls:
                await self._finish(calls[0], self._lost(calls[0]))
            self.context.context = self.context.context.released()
            self._failed_call = ""
            if self._watch is not None:
                await self._watch.begin()
            if self._jobs is not None:
                self._jobs.begin()
            await self._add(Message(role="user", content=task), task=True)
        elif before.reason == "rounds":
            await self._add(Message(role="user", content=self._say.go_on))

    def _news(self) -> Iterator[Warned]:
        """Yield new warnings, each once."""
        sentences = [*self._warnings, *self.context.warnings[self._told :]]
        self._warnings.clear()
        self._told = len(self.context.warnings)
        yield from map(Warned, sentences)

    def _end(self, reason: EndReason, detail: str = "") -> None:
        self.outcome.reason, self.outcome.detail = reason, detail

    def _fail(self, error: CfsError) -> None:
        self._end("failed", error.detail)
        self.outcome.error = error

    async def _rounds(self) -> AsyncGenerator[AgentEvent, None]:
        """Do what the conversation requires next, until there is an answer or no step is left."""
        last, turn = False, self.config.sync_turn
        tools = self.tools
        while True:
            if self.context.context.open_calls:
                steps = self._calls(tools)
            elif last or (self._has_last_word() and not self._refuses_sync() and not await self._goes_on()):
                break
            else:
                tools = self.tools
                if self._has_last_word():
                    await self._add(Message(role="user", content=self._say.go_on))
                await self._add_news_of_jobs()
                last = self.outcome.rounds >= self.config.max_rounds
                if last and (turn is None or self._unsynced == 0):
                    break
                if turn is not None and (last or self._unsynced >= turn.every):
                    tools, self._unsynced = self.tools.narrow(turn.tools), -1
                    await self._add(Message(role="user", content=turn.prompt))
                self._unsynced += 1
                steps = self._ask(tools)
            async with aclosing(steps):
                async for event in steps:
                    yield event
        if last:
            self._end("rounds", f"no answer after {self.config.max_rounds} steps")
        elif self._unmade:
            self._end("unverified", f"the answer says that {', '.join(self._unmade)} was written, and it was not")
        else:
            self.outcome.text = self.context.context.items[-1].message.content
            self._end("answered", self.outcome.detail)
        self.outcome.failed_call = self._failed_call

    def _has_last_word(self) -> bool:
        """Whether the conversation ends with a whole message of the model."""
        items = self.context.context.items
        return bool(items) and items[-1].message.role == "assistant" and not items[-1].cut

    def _refuses_sync(self) -> bool:
        """Whether the model answered instead of a sync, so that its text is not an answer to the task."""
        turn, before = self.config.sync_turn, self.context.context.items[-2:-1]
        return turn is not None and [item.message.content for item in before] == [turn.prompt]

    async def _ask(self, tools: Registry) -> AsyncGenerator[AgentEvent, None]:
        """Ask the model; ask again after a useless reply, or for the rest of a truncated one."""
        self.outcome.rounds += 1
        await self._recorder.before_round()
        if self._is_small is None:
            await self._fit_to_model()
        for warning in self._news():
            yield warning
        yield RoundStarted(self.outcome.rounds)
        while True:
            async with aclosing(self._fitting_reply(tools)) as events:
                async for event in events:
                    yield event
            if self._fault not in WARNINGS or self.context.context.open_calls:
                return
            yield Warned(WARNINGS[self._fault])

    async def _fit_to_model(self) -> None:
        """Ask how much the model reads; the system prompt and the descriptions of the tools follow it.

        In an outage, the request that follows waits, and the next step asks again.
        """
        self._is_small = await self._interrupts.guard(has_small_context(self._llm))
        if self._is_small is False and isinstance(self._llm, HasContextWindow):
            with suppress(CfsError):
                self._window = await self._interrupts.guard(self._llm.context_window())
        first, *rest = self.context.context.items
        if self._is_small is not None and self._system_for is not None and first.item_type == "system_prompt":
            system = replace(first, message=await self._system_for(self._is_small), tokens=None)
            self.context.context = Conversation((system, *rest))

    async def _fitting_reply(self, tools: Registry) -> AsyncGenerator[AgentEvent, None]:
        """Ask the model once; shorten the conversation if it is too long for the model."""
        for _ in range(_MOST_SHORTENINGS):
            before = self.context.context
            messages = await self._interrupts.guard(self.context.prepare())
            for event in await self._shortened(before):
                yield event
            try:
                async with aclosing(self._reply(messages, tools)) as events:
                    async for event in events:
                        yield event
            except ContextTooLong:
                before = self.context.context
                shorter = await self.context.shorten(max(1, int(self.context.usage.tokens * _SHORTER)))
                if shorter.tokens_after >= shorter.tokens_before:
                    raise
                for event in await self._shortened(before):
                    yield event
            else:
                return
        raise ContextTooLong("the conversation is too long for the model, however much of it is left out")

    async def _shortened(self, before: Conversation) -> list[AgentEvent]:
        """Record what has changed in the conversation while it was prepared; return the events about it."""
        events: list[AgentEvent] = []
        if change := ConversationChange.between(before, self.context.context):
            await self._recorder.shortened(change)
        if used := self._summaries.take_usage():
            self._count(used)
            events.append(TurnUsage(used))
        if (compaction := self.context.take_compaction()) is not None:
            if compaction.tokens_after < compaction.tokens_before:
                events.append(
                    ContextShortened(compaction.tokens_before, compaction.tokens_after, compaction.summarised)
                )
            if compaction.kept_because is not None:
                events.append(Warned(f"the conversation is still too long: {compaction.kept_because}"))
        return [*events, *self._news()]

    async def _reply(self, messages: Sequence[Message], tools: Registry) -> AsyncGenerator[AgentEvent, None]:
        """Stream a reply and add it to the conversation; one that repeats itself is stopped."""
        part = self.context.context.cut_off
        noted = part is not None or self._fault in (Fault.EMPTY, Fault.REPEATED)
        if noted:
            messages = asking(messages, self._fault or Fault.CUT_OFF, self.config.language)
        reply: CompleteResponse | None = None
        reply_text, thought, stopped = RepeatedText(), RepeatedText(), False
        written = _Written(self.config.thinking_budget)
        stream = cast(
            "AsyncGenerator[Item, None]",
            self._llm.stream(messages, tools.schemas(brief=self._is_small is not False, window=self._window)),
        )
        async with aclosing(stream):
            while (item := await self._interrupts.guard(anext(stream, None))) is not None:
                match item:
                    case Chunk(text, thinking):
                        if thinking:
                            yield Thinking(thinking)
                        if text:
                            yield Text(text)
                        if stopped := reply_text.feed(text) or thought.feed(thinking):
                            break
                        if written.thinks_too_long(text, thinking):
                            reply = written.cut_off()
                            break
                    case Retrying():
                        reply_text, thought = RepeatedText(), RepeatedText()
                        written = _Written(self.config.thinking_budget)
                        yield item
                    case CompleteResponse():
                        reply = item
        if stopped:
            self._note(Fault.REPEATED)
            yield Retrying("the reply repeated itself", 0.0)
            return
        if reply is None or reply.finish_reason in ("error", "cancelled"):
            raise EngineError("the model's reply ended before it was complete")
        self._count(reply.usage)
        self._unkept = reply.usage if self._unkept is None else self._unkept + reply.usage
        if not noted and tools is self.tools:
            self.context.measured(reply.usage.prompt_tokens)
        yield TurnUsage(reply.usage)
        cut = reply.finish_reason == "length"
        if not cut:
            reply = with_calls_in_text(reply, tools.names)
        message = reply.message if part is None else joined(part.message, reply.message)
        fault = fault_in(reply, message, tools)
        if fault not in (Fault.EMPTY, Fault.REPEATED):
            usage, self._unkept = self._unkept, None
            tokens = reply.usage.completion_tokens
            await self._add(message, reply.broken, usage, cut=cut and not message.tool_calls, tokens=tokens)
        self._note(fault, next(iter(reply.broken.values()), ""))

    def _note(self, fault: Fault | None, detail: str = "") -> None:
        """Count a useless reply; raises `EngineError` after too many in a row."""
        self._fault = fault
        if fault is None:
            self._faults.clear()
            return
        self._faults[fault] += 1
        if (times := self._faults[fault]) >= MOST_FAULTS[fault]:
            raise EngineError(
                REASONS[fault].format(times) + (f": {detail}" if detail and fault is Fault.MALFORMED else "")
            )

    async def _add(
        self,
        message: Message,
        broken: Mapping[str, str] | None = None,
        usage: Usage | None = None,
        *,
        task: bool = False,
        cut: bool = False,
        tokens: int | None = None,
    ) -> None:
        item = self.context.add(message, task=task, cut=cut, tokens=tokens)
        self._begun, self._broken = set(), broken or {}
        await self._recorder.added(item, self._broken, usage)

    def _count(self, usage: Usage) -> None:
        self.outcome.usage += usage

    async def _calls(self, tools: Registry) -> AsyncGenerator[AgentEvent, None]:
        """Run the open calls in order, in parallel where none depends on another (`Registry.together`).

        If one had begun before an interruption, none is run and the model is told about each. Raises `EngineError` if
        the last steps have only repeated themselves.
        """
        lost = bool(self._begun)
        step: list[tuple[ToolCall, ToolResult]] = []
        while calls := self.context.context.open_calls:
            readable = list(takewhile(lambda call: call.id not in self._broken, calls))
            batch: Sequence[ToolCall] = calls[:1]
            tasks: list[asyncio.Task[ToolResult]] = []
            if not lost and readable:
                batch = tools.together(readable)
                for call in batch:
                    yield CallStarted(call)
                await self._recorder.begins(batch)
                self._begun.update(call.id for call in batch)
                if len(batch) > 1:
                    tasks = [asyncio.create_task(_run(tools, call)) for call in batch]
            try:
                for number, call in enumerate(batch):
                    if lost:
                        result = self._lost(call)
                    elif not readable:
                        text = f"Error: {self._broken[call.id]}. {tools.right_form(call.name)}"
                        result = ToolResult(call.id, call.name, text, ok=False, seconds=0.0)
                    else:
                        result = await self._interrupts.guard(tasks[number] if tasks else _run(tools, call))
                    if lines := await self._finish(call, result):
                        self._syncs += 1
                        self._unsynced = 0
                        yield ContextUpdated(lines, self._syncs)
                    yield CallFinished(call, result)
                    if call.name not in (JOB, *self.config.may_repeat):  # a job may write nothing for a while
                        step.append((call, result))
            finally:
                for task in tasks:
                    task.cancel()
                if tasks:
                    await asyncio.wait(tasks)
        if (reason := self.repeated.see(step)) is not None:
            raise EngineError(reason)

    async def _finish(self, call: ToolCall, result: ToolResult) -> int:
        """Add the result of a call; return the number of lines if the call wrote a new window, else 0."""
        item = self.context.add(result.message())
        new = await self._recorder.done(call, result, item, self.context.context.open_calls)
        self._begun.discard(call.id)
        if new is None:  # a window is no work on the task
            self._failed_call = failure_of(call.name, call.arguments, result.text, ok=result.ok)
            return 0
        self.context.context = new.context
        return new.lines

    async def _goes_on(self) -> bool:
        """Return whether the model is asked once more after its answer."""
        if await self._asks_again():
            return True
        if self._jobs is None or self.outcome.rounds >= self.config.max_rounds:
            return False
        if (question := self._jobs.question()) is None:
            return False
        await self._add(Message(role="user", content=question))
        return True

    async def _add_news_of_jobs(self) -> None:
        """Add messages about background jobs that have ended."""
        if self._jobs is not None and (texts := await self._jobs.news()):
            for text in texts:
                await self._add(Message(role="user", content=text))
            await self._jobs.delivered()

    async def _asks_again(self) -> bool:
        """Check an answer against the files; return whether the model is asked once more, with the facts."""
        if self._watch is None:
            return False
        task, doubted = self._doubted()
        names = await asyncio.to_thread(named_files, self.context.context.items[-1].message.content, task, doubted)
        self._unmade = await self._watch.unmade(names)
        if not self._unmade or doubted is not None or self.outcome.rounds >= self.config.max_rounds:
            return False
        listed = ", ".join(self._unmade)
        self.warn(f"the answer says that {listed} was written, and it was not; the model is asked again")
        facts = format_changes(await self._watch.changes(), self._say)
        await self._add(Message(role="user", content=self._say.unmade.format(listed, facts)))
        return True

    def _doubted(self) -> tuple[str, str | None]:
        """Return the task, and the answer to it that was doubted, if there is one."""
        task, answer, doubted = "", "", None
        begin = self._say.unmade.partition("{")[0]
        for item in self.context.context.items:
            message = item.message
            if message.role == "assistant":
                answer = message.content
            elif message.role == "user" and message.content.startswith(begin):
                doubted = answer
            elif item.protected:
                task, doubted = message.content, None
        return task, doubted

    def _lost(self, call: ToolCall) -> ToolResult:
        """Return the result of a call that was lost: one that had begun, or one that had not."""
        text = (self._say.perhaps_run if call.id in self._begun else self._say.not_run).format(call.name)
        return ToolResult(call.id, call.name, text, ok=False, seconds=0.0)


async def _run(tools: Registry, call: ToolCall) -> ToolResult:
    """Run a call; requests that it sends to a server name it as their author."""
    with acting_as(call=call.id):
        return await tools.call(call)


class _Written:
    """What a reply has brought so far, and whether its thinking is longer than the budget, in tokens."""

    def __init__(self, budget: int | None) -> None:
        self._budget = budget
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._thought = 0

    def thinks_too_long(self, text: str, thinking: str) -> bool:
        """Take the next piece."""
        if self._budget is None:
            return False
        self._text.append(text)
        self._thinking.append(thinking)
        self._thought += estimate(thinking)
        return self._thought > self._budget

    def cut_off(self) -> CompleteResponse:
        """Return the reply as one that was cut off here; the model is asked to think less."""
        text, thinking = "".join(self._text), "".join(self._thinking)
        return CompleteResponse(Message(role="assistant", content=text, thinking=thinking), "length", Usage())
