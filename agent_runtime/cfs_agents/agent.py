"""The loop of an agent: ask the model, run the tools that it calls, until it answers without a call (A7, O6).

What is to be done next follows from the conversation alone: calls without results are run, an answer ends the task,
anything else is for the model. So a task that was broken off anywhere goes on by the same loop.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import cast

from cfs.errors import CfsError, ContextTooLong, EngineError
from cfs.wire import Message, ToolCall, Usage
from cfs_agents import continuation
from cfs_agents.config import AgentConfig, LastTurn, Outcome, working_context
from cfs_agents.context import Change, CleaningPolicy, Context, ContextFileSystem, clean_root
from cfs_agents.events import (
    AgentEvent,
    CallFinished,
    CallStarted,
    ContextShortened,
    ContextUpdated,
    EndReason,
    Finished,
    RoundStarted,
    Text,
    Thinking,
    TurnUsage,
    Warned,
)
from cfs_agents.interrupts import Interrupted, Interrupts
from cfs_agents.keeper import Keeper, NoKeeper
from cfs_agents.llm import Chunk, Item, Model, Reply, Retrying
from cfs_agents.sentences import sentences
from cfs_agents.summaries import Summaries
from cfs_agents.tools import Registry, ToolResult
from cfs_agents.usage import added

__all__ = ["Agent", "AgentConfig", "LastTurn", "Outcome"]

_SHORTER = 0.7
_MOST_SHORTENINGS = 8


class Agent:
    """A model with tools and a conversation. One task at a time; `outcome` is that of the last one, or of the running.

    What an agent does is written down by its `keeper` before it goes on, so what a keeper has can be resumed: put the
    conversation into `context`, and call `resume_at`.
    """

    def __init__(
        self,
        llm: Model,
        config: AgentConfig | None = None,
        *,
        files: ContextFileSystem | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.config = config = config or AgentConfig()
        self.tools = Registry(config.tools)
        self._say = sentences(config.language)
        self.outcome = Outcome()
        self._summaries = Summaries(llm, config.language)
        self.context = working_context(config, files, self.tools, self._summaries)
        if config.system is not None:
            self.context.add(Message(role="system", content=config.system))
        self._llm = llm
        self._keeper = keeper or NoKeeper()
        self._interrupts = Interrupts()
        self._broken: Mapping[str, str] = {}
        self._begun = False
        self._syncs = 0
        self._cuts = 0
        self._cleans = files is None
        self._warnings: list[str] = []
        self._told = 0

    def resume_at(self, context: Context, *, begun: bool = False, broken: Mapping[str, str] | None = None) -> None:
        """Take over a conversation; `begun` says that its next open call was started before."""
        self.context.context = context
        self._begun, self._broken = begun, broken or {}

    def interrupt(self) -> None:
        """Stop the running task at the next place where it waits; from the thread of its event loop."""
        self._interrupts.request()

    def warn(self, sentence: str) -> None:
        """Let a person know something: it is told by `Warned` with what happens next. From the loop's thread."""
        self._warnings.append(sentence)

    async def query(self, task: str | None = None) -> Outcome:
        """Work on a task to its end, and say how it ended; without a task, go on with the last one."""
        async with aclosing(self.run_stream(task)) as events:
            async for _ in events:
                pass
        return self.outcome

    async def run_stream(self, task: str | None = None) -> AsyncGenerator[AgentEvent, None]:
        """Work on a task and tell what happens; `Finished` is the last event, whatever happens.

        Only a cancellation gets out of it, and closing the generator; what was begun then is told to the model when
        the agent goes on.
        """
        before, self.outcome = self.outcome, Outcome()
        self._interrupts.clear()
        self._syncs = self._cuts = 0
        try:
            await self._open(task, before)
            async with aclosing(self._rounds()) as events:
                async for event in events:
                    yield event
        except Interrupted:
            self._end("interrupted", "it was interrupted")
        except CfsError as error:
            self._fail(error)
        end = Finished(self.outcome.reason, self.outcome.detail)
        try:
            await self._keeper.ended(end)
        except CfsError as error:
            self._fail(error)
            end = Finished("failed", error.detail)
        if self._cleans:
            await self._clean()
        for warning in self._news():
            yield warning
        yield end

    async def _clean(self) -> None:
        """Remove what is old below the root of an agent that has no directory of its own; what fails can wait."""
        if (files := self.context.files) is not None:
            with suppress(CfsError):
                await self.context.clean()
                await asyncio.to_thread(clean_root, files.root, CleaningPolicy(), files.now())

    async def _open(self, task: str | None, before: Outcome) -> None:
        """Begin a task, or see to it that the model goes on with the last one."""
        if task is not None:
            while calls := self.context.context.open_calls:
                await self._finish(calls, self._lost(calls[0], begun=self._begun))
            self.context.context = self.context.context.released()
            await self._add(Message(role="user", content=task), task=True)
        elif before.reason == "rounds":
            await self._add(Message(role="user", content=self._say.go_on))

    def _news(self) -> Iterator[Warned]:
        """Tell what there is to warn of, once."""
        sentences = [*self._warnings, *self.context.warnings[self._told :]]
        self._warnings.clear()
        self._told = len(self.context.warnings)
        yield from map(Warned, sentences)

    def _end(self, reason: EndReason, detail: str = "") -> None:
        self.outcome.reason, self.outcome.detail = reason, detail

    def _fail(self, error: CfsError) -> None:
        self._end("failed", error.detail)
        self.outcome.error = error

    # -- rounds ---------------------------------------------------------------------------------------------------

    async def _rounds(self) -> AsyncGenerator[AgentEvent, None]:
        """Do what the conversation asks for next, until there is an answer or the rounds are over."""
        last, synced_at = False, -1
        tools = self.tools
        while True:
            syncs = self._syncs
            if self.context.context.open_calls:
                steps = self._calls(tools)
            elif last or self._answered():
                break
            elif self.outcome.rounds < self.config.max_rounds:
                steps = self._ask(tools)
            elif self.config.last_turn is None or synced_at == self.outcome.rounds:
                last = True
                continue
            else:
                last = True
                tools = self.tools.narrow(self.config.last_turn.tools)
                await self._add(Message(role="user", content=self.config.last_turn.prompt))
                steps = self._ask(tools)
            async with aclosing(steps):
                async for event in steps:
                    yield event
            if self._syncs > syncs:
                synced_at = self.outcome.rounds
        if last:
            self._end("rounds", f"no answer after {self.config.max_rounds} rounds")
        else:
            self._end("answered", self.outcome.detail)

    def _answered(self) -> bool:
        """Whether the model has the last word."""
        items = self.context.context.items
        if not items or items[-1].message.role != "assistant" or items[-1].cut:
            return False
        self.outcome.text = items[-1].message.content
        return True

    # -- the model ------------------------------------------------------------------------------------------------

    async def _ask(self, tools: Registry) -> AsyncGenerator[AgentEvent, None]:
        """Ask the model, and for the rest of a reply that was cut off in words."""
        self.outcome.rounds += 1
        await self._keeper.before_round()
        for warning in self._news():
            yield warning
        yield RoundStarted(self.outcome.rounds)
        while True:
            async with aclosing(self._fitting_reply(tools)) as events:
                async for event in events:
                    yield event
            if self.context.context.cut_off is None:
                return
            yield Warned("the reply was cut off at its limit of tokens; the model is asked for the rest")

    async def _fitting_reply(self, tools: Registry) -> AsyncGenerator[AgentEvent, None]:
        """Ask the model once, with a shorter conversation when this one is too long for it."""
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

    async def _shortened(self, before: Context) -> list[AgentEvent]:
        """Keep what has become of the conversation while it was made ready; return what there is to tell of it."""
        told: list[AgentEvent] = []
        if change := Change.between(before, self.context.context):
            await self._keeper.shortened(change)
        if used := self._summaries.take_usage():
            self._count(used)
            told.append(TurnUsage(used))
        if (done := self.context.take_compaction()) is not None:
            if done.tokens_after < done.tokens_before:
                told.append(ContextShortened(done.tokens_before, done.tokens_after, done.summarised))
            if done.kept_because is not None:
                told.append(Warned(f"the conversation is still too long: {done.kept_because}"))
        return [*told, *self._news()]

    async def _reply(self, messages: Sequence[Message], tools: Registry) -> AsyncGenerator[AgentEvent, None]:
        """Let the model answer, and take its reply in."""
        part = self.context.context.cut_off
        if part is not None:
            messages = continuation.asking(messages, self.config.language)
        reply: Reply | None = None
        stream = cast("AsyncGenerator[Item, None]", self._llm.stream(messages, tools.schemas()))
        async with aclosing(stream):
            while (item := await self._interrupts.guard(anext(stream, None))) is not None:
                match item:
                    case Chunk(text, thinking):
                        if thinking:
                            yield Thinking(thinking)
                        if text:
                            yield Text(text)
                    case Retrying():
                        yield item
                    case Reply():
                        reply = item
        if reply is None or reply.finish_reason in ("error", "cancelled"):
            raise EngineError("the model's reply ended before it was complete")
        self._count(reply.usage)
        yield TurnUsage(reply.usage)
        cut = reply.finish_reason == "length"
        if not (cut or reply.message.content.strip() or reply.message.tool_calls):
            raise EngineError("the model said nothing, and called nothing")
        message = reply.message if part is None else continuation.joined(part.message, reply.message)
        await self._add(message, reply.broken, reply.usage, cut=cut and not message.tool_calls)
        self._cuts = self._cuts + 1 if cut else 0
        if self._cuts == continuation.MOST_CUTS:
            raise EngineError(
                f"the model's reply was cut off at its limit of tokens {self._cuts} times in a row:"
                " allow longer replies, or ask for less at once; what was done is kept"
            )

    async def _add(
        self,
        message: Message,
        broken: Mapping[str, str] | None = None,
        usage: Usage | None = None,
        *,
        task: bool = False,
        cut: bool = False,
    ) -> None:
        item = self.context.add(message, task=task, cut=cut)
        self._begun, self._broken = False, broken or {}
        await self._keeper.added(item, self._broken, usage)

    def _count(self, usage: Usage) -> None:
        self.outcome.usage = added(self.outcome.usage, usage)

    # -- tools ----------------------------------------------------------------------------------------------------

    async def _calls(self, tools: Registry) -> AsyncGenerator[AgentEvent, None]:
        """Run the open calls in their order; those behind an interrupted one are not run."""
        lost = self._begun
        while calls := self.context.context.open_calls:
            call = calls[0]
            if lost:
                result = self._lost(call, begun=self._begun)
            elif call.id in self._broken:
                result = ToolResult(call.id, call.name, f"Error: {self._broken[call.id]}", ok=False, seconds=0.0)
            else:
                yield CallStarted(call)
                await self._keeper.begins(call)
                self._begun = True
                result = await self._interrupts.guard(tools.call(call))
            if lines := await self._finish(calls, result):
                self._syncs += 1
                yield ContextUpdated(lines, self._syncs)
            yield CallFinished(call, result)

    async def _finish(self, calls: Sequence[ToolCall], result: ToolResult) -> int:
        """Take in the result of the first of these calls; return the lines of the window that it wrote, if it did."""
        item = self.context.add(result.message())
        new = await self._keeper.done(calls[0], result, item, calls[1:])
        self._begun = False
        if new is None:
            return 0
        self.context.context = new.context
        return new.lines

    def _lost(self, call: ToolCall, *, begun: bool) -> ToolResult:
        """Make the result of a call that has none: one that was begun, or one that was not."""
        text = (self._say.perhaps_run if begun else self._say.not_run).format(call.name)
        return ToolResult(call.id, call.name, text, ok=False, seconds=0.0)
