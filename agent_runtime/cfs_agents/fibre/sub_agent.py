"""What a sub-agent needs of the tree that it is in, and how it says that its task has ended."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeAlias

import structlog

from cfs.errors import CfsError
from cfs.wire import Message, Usage
from cfs_agents.agent import Agent
from cfs_agents.config import AgentConfig
from cfs_agents.context import Context, ContextFileSystem, ContextItem
from cfs_agents.events import AgentEvent, CallFinished, CallStarted, Retrying, Text, Thinking
from cfs_agents.fibre.config import FibreConfig
from cfs_agents.fibre.report import ChunkKind, ChunkStream, Report, ReportStatus
from cfs_agents.fibre.server_sessions import ClaimedTurn, NoLease, SessionBackend, TurnLease
from cfs_agents.fibre.state import (
    REPEATABLE,
    InboxMessage,
    LeaseRecord,
    SessionContext,
    SessionFolder,
    SubAgentRecord,
    SubAgentRecorder,
    report_of,
    state_of,
)
from cfs_agents.fibre.tools import FINISH, SPAWN, WAIT, Finish
from cfs_agents.file_agent.agent import to_the_end
from cfs_agents.messages import Language, guard_words, sentences, words
from cfs_agents.model import Model, is_outage
from cfs_agents.tools import AsyncPersistentShell, Tool

# What a sub-agent says: to its session on the server, and to whoever reads the chunks of the tree (B3, B5).

_log = structlog.get_logger(__name__)


class TurnOutput:
    """The output of one sub-agent; `lease` is the turn that it answers. Nothing here waits but the end of a turn."""

    def __init__(self, chunks: ChunkStream, session_id: str, agent_name: str) -> None:
        self._chunks = chunks
        self._session_id = session_id
        self._agent_name = agent_name
        self._lease: TurnLease = NoLease()
        self._given: str | None = None
        self._answer: Message | None = None
        self._shown = ""
        """What has been said of the reply that is being made, also by an attempt that broke off."""
        self._reply, self._differs = "", False

    @property
    def lease(self) -> LeaseRecord | None:
        """The turn of the server, if there is one."""
        return self._lease.record

    def take(self, turn: ClaimedTurn) -> None:
        """Answer this turn from now on; its message is known to the session."""
        self._lease, self._answer = turn.lease, None
        self._given = turn.content if turn.lease.record is not None else None

    def tell(self, message: Message) -> None:
        """Tell of a message that is on disk. An answer waits: it may be the end of the turn, which brings it."""
        self._shown, self._reply, self._differs = "", "", False
        given = self._given if message.role == "user" else None
        if message.role == "user":
            self.chunk("message", "user", content=message.content)
            self._given = None
        if given == message.content:
            return
        if not (self._answer is not None and message.content.startswith(self._answer.content)):
            self._release()  # else it is the same answer, gone on with
        if message.role == "assistant" and not message.tool_calls:
            self._answer = message
        else:
            self._lease.message(message)

    def say(self, event: AgentEvent) -> None:
        """Tell of what happens, as it happens."""
        match event:
            case Text(text):
                self._text(text)
            case Retrying():
                self._reply, self._differs = "", False
            case Thinking(text):
                self.chunk("thinking", content=text)
            case CallStarted(call):
                self.chunk("call", call=call, name=call.name)
            case CallFinished(call, result):
                self.chunk("result", "tool", content=result.text, tool_call_id=call.id, name=call.name)

    def _text(self, text: str) -> None:
        """Say a piece of a reply. Where the reply was asked for again, what was said before is not said twice."""
        self._reply += text
        if self._differs:
            self.chunk("text", content=text)
        elif self._reply.startswith(self._shown):
            new, self._shown = self._reply[len(self._shown) :], self._reply
            self._lease.text(new)
            self.chunk("text", content=new)
        elif not self._shown.startswith(self._reply):  # another reply: the session shows it when it is whole
            self._differs = True
            self.chunk("text", content=f"\n{self._reply}")

    def chunk(self, kind: ChunkKind, role: Any = "assistant", **parts: Any) -> None:
        """Say a chunk."""
        self._chunks.say(self._session_id, self._agent_name, kind, role, **parts)

    async def turn_over(self, reply: str) -> None:
        """End the turn, as another one follows."""
        self._release()
        lease, self._lease = self._lease, NoLease()
        await lease.finish(reply, Usage())

    async def finish(self, report: Report, language: Language) -> None:
        """End the turn by the report; raises the error of an outage. Other errors are logged: the report stands."""
        lease, self._lease = self._lease, NoLease()
        reply = report.summary if report.ok else report.text(language)
        answer, self._answer = self._answer, None
        if answer is not None and answer.content != reply:
            lease.message(answer)
        error = None
        if report.status in ("failed", "cancelled"):
            error = "; ".join(report.reasons) or report.summary or report.status
        try:
            await lease.finish(reply, report.usage, error=error)
        except CfsError as problem:
            if is_outage(problem):
                raise
            _log.warning("sub_agent.turn_not_finished", session=self._session_id, reason=str(problem))
        finally:
            await lease.close()

    async def close(self) -> None:
        """Let go of the turn, as another process will go on with it."""
        lease, self._lease = self._lease, NoLease()
        await lease.close()

    def _release(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._lease.message(answer)


def said_since(messages: Sequence[Message], content: str) -> list[Message]:
    """Return the messages that answer the last one with this content; an answer at the end waits for the turn's end."""
    for back in range(len(messages) - 1, -1, -1):
        if messages[back].role == "user" and messages[back].content == content:
            said = list(messages[back + 1 :])
            if said and said[-1].role == "assistant" and not said[-1].tool_calls:
                said.pop()
            return said
    return []


@dataclass(frozen=True, slots=True)
class Ending:
    """How a task ended as the sub-agent sees it: what it says of it, and why it is not a success."""

    status: ReportStatus
    said: Finish
    reasons: tuple[str, ...] = ()


class Tree(Protocol):
    """What a sub-agent needs of the tree that it is in."""

    config: FibreConfig
    backend: SessionBackend
    chunks: ChunkStream

    def model(self, sub_agent: "FibreSubAgent") -> Model:
        """Return the model that answers for a sub-agent."""
        ...

    def tools(self, sub_agent: "FibreSubAgent") -> tuple[list[Tool], AsyncPersistentShell | None]:
        """Make a sub-agent's tools, and the shell that some of them use."""
        ...

    def system(self, sub_agent: "FibreSubAgent") -> str:
        """Write a sub-agent's system prompt."""
        ...

    async def began(self, sub_agent: "FibreSubAgent", *, again: bool) -> None:
        """A sub-agent begins with a task, or goes on with one after a kill."""
        ...

    async def before_round(self, sub_agent: "FibreSubAgent", agent: Agent, *, told: bool) -> None:
        """Look before a sub-agent's model is asked; a `CfsError` ends the sub-agent's task.

        `told` says that it reads something new from somebody.
        """
        ...

    def after(self, sub_agent: "FibreSubAgent", event: AgentEvent) -> None:
        """Look at what a sub-agent did; it may be ended for it."""
        ...

    def at_work(self, sub_agent: "FibreSubAgent") -> list[str]:
        """Name the children of a sub-agent that are at work."""
        ...

    async def unmade(self, sub_agent: "FibreSubAgent", answer: str) -> tuple[str, ...]:
        """Return the files that an answer names as made or changed, and that were not since the task began."""
        ...

    async def told_changes(self, sub_agent: "FibreSubAgent") -> str:
        """Say what became of the files since a sub-agent's task began."""
        ...

    async def judge(self, sub_agent: "FibreSubAgent", ending: Ending) -> Report:
        """Hold what a sub-agent says of its task against the facts."""
        ...

    async def over(self, sub_agent: "FibreSubAgent", report: Report) -> None:
        """A sub-agent's task is over: end what depends on it, and tell who waits for it."""
        ...


# A sub-agent: one agent of a tree, with a conversation, a session and a task of its own (B1).
#
# A task begins with a message and ends with a report. In between the sub-agent asks its model and runs its tools.
# Before each question it takes in the messages that have come. The next step follows from what is on disk, so a
# sub-agent that was killed continues after its last step.

Begin: TypeAlias = Callable[[], Awaitable[ClaimedTurn | None]]
"""How a sub-agent comes to the turn that it is to answer; None when that is over already."""


class FibreSubAgent:
    """One sub-agent; the root is one too. `run` does one task, or goes on with the one that was broken off."""

    def __init__(self, tree: Tree, record: SubAgentRecord, context: SessionContext, folder: SessionFolder) -> None:
        self.tree = tree
        self.record = record
        self.context = context
        self.output = TurnOutput(tree.chunks, record.session_id, record.agent_name)
        self.keeper = SubAgentRecorder(record, context, folder, told=self.output.tell, before=self._before_round)
        self.finish_calls = 0
        """How often it has said in this task that it is done."""
        self.news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.report = report_of(record)
        self._last_calls: set[str] = set()
        self._agent: Agent | None = None
        self._shell: AsyncPersistentShell | None = None
        self._files: ContextFileSystem | None = None
        self._finish: Finish | None = None
        self._verdict: Ending | None = None
        self._ending = False
        self._at_work = False
        self._began_at: float | None = None
        self._away_at = 0.0

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def agent_id(self) -> str:
        """Its name, which no other sub-agent of the tree has."""
        return self.record.agent_id

    @property
    def session_id(self) -> str:
        """Its session's id, which names all agents above it."""
        return self.record.session_id

    @property
    def is_root(self) -> bool:
        """Whether it is the one that all others come from."""
        return self.record.parent_id is None

    @property
    def running(self) -> bool:
        """Whether it is at work now."""
        return self.task is not None and not self.task.done()

    def seconds(self) -> float:
        """How long it has worked on its task, in all processes together; outages do not count."""
        if self._began_at is None:
            return self.record.seconds_used
        spent = time.monotonic() - self._began_at - (self.tree.backend.away - self._away_at)
        return self.record.seconds_used + max(0.0, spent)

    @asynccontextmanager
    async def time_stopped(self) -> AsyncIterator[None]:
        """Wait for a person in it: that time does not count as its own."""
        self.record.seconds_used, self._began_at = self.seconds(), None
        try:
            yield
        finally:
            self._began_at = time.monotonic()

    # -- from outside ---------------------------------------------------------------------------------------------

    def kill(self, status: ReportStatus, reason: str) -> None:
        """End its task where it waits; from the thread of its event loop. A task that is ending is left to its end."""
        if self.task is None or not self.running or self._ending or self._verdict is not None:
            return
        self._verdict = Ending(status, Finish(status="failed", summary=""), (reason,))
        if self._at_work:  # else it looks before it begins: a task that is cancelled before that never runs
            self.task.cancel()

    def prepare(self) -> None:
        """Forget how the last task ended, as another one is about to be started."""
        self._verdict, self._finish, self._ending, self.finish_calls = None, None, False, 0

    @property
    def ending(self) -> bool:
        """Whether its task has come to its end, and only the report is left to be made."""
        return self._ending

    def lost(self, reason: str) -> None:
        """End its task, as its turn on the server is not its any more."""
        self.kill("cancelled", reason)

    def take_finish(self, finish: Finish) -> None:
        """Take what the model says of its task, which ends when the call has its result."""
        self.finish_calls += 1
        if self._finish is not None:
            return
        self._finish = finish
        self.record.finish = asdict(finish)

    async def deliver(self, message: InboxMessage) -> None:
        """Put a message into its inbox, on disk too."""
        if self.record.deliver(message):
            await self.keeper.save()
            self.news.set()

    # -- a task ---------------------------------------------------------------------------------------------------

    async def run(self, begin: Begin, message: InboxMessage | None = None) -> None:
        """Do a task from its beginning, which `begin` brings, or go on where it was, to its report.

        A `message` is what it begins with; it leaves the inbox when it is taken in.
        """
        self._began_at, self._at_work, self._away_at = time.monotonic(), True, self.tree.backend.away
        try:
            ending = await self._ended(begin, message)
            self._ending = True
            await self._settle(ending)
        finally:
            self.record.seconds_used, self._began_at = self.seconds(), None
            self._at_work = False
            await self.output.close()
            await self._put_away()
            self.news.set()

    async def _ended(self, begin: Begin, message: InboxMessage | None) -> Ending:
        """Work to the end of the task, however it ends."""
        if self._verdict is not None:
            return self._verdict
        try:
            return await self._work(begin, message)
        except asyncio.CancelledError:
            if self._verdict is None or self.task is None:  # the whole tree is left, to be gone on with later
                raise
            self.task.uncancel()
            return self._verdict
        except CfsError as error:
            if is_outage(error):
                raise  # nothing has failed but the patience: to be gone on with later
            return self._failed(error.detail)
        except Exception as error:  # noqa: BLE001 - a sub-agent that fails is reported, and the others go on
            _log.exception("sub_agent.failed", session=self.session_id)
            return self._failed(f"{type(error).__name__}: {error}")

    async def _work(self, begin: Begin, message: InboxMessage | None) -> Ending:
        say = words(self.tree.config.language)
        agent = self._wake()
        turn = await begin()
        if turn is None:
            return Ending("cancelled", Finish(status="failed", summary=""), (say.stopped,))
        await self._adopt(agent, turn, message)
        if self.record.finish is not None:  # it had reported when it was killed
            self._finish = Finish(**self.record.finish)
        task: str | None = None
        while True:
            if self._finish is None:
                await self._through(agent, task)
            if self._finish is not None:
                return Ending("success" if self._finish.status == "success" else "failed", self._finish)
            if agent.outcome.reason == "rounds":
                return self._failed(say.no_answer.format(self.record.max_turns))
            if agent.outcome.reason != "answered":
                if agent.outcome.error is not None:
                    raise agent.outcome.error
                return self._failed(agent.outcome.detail)
            if (task := await self._more(agent.outcome.text)) is None:
                return await self._answered(agent.outcome.text)

    async def _answered(self, text: str) -> Ending:
        said = Finish(status="success", summary=text)
        if not self.is_root:
            return Ending("unverified", said, (words(self.tree.config.language).silent,))
        if unmade := await self.tree.unmade(self, text):
            reason = guard_words(self.tree.config.language).unchanged.format(", ".join(unmade))
            return Ending("unverified", said, (reason,))
        return Ending("success", said)

    def _failed(self, reason: str) -> Ending:
        return Ending("failed", Finish(status="failed", summary=""), (reason,))

    def _wake(self) -> Agent:
        """Make the loop, its tools and its conversation, which is what was kept."""
        config, record = self.tree.config, self.record
        tools, self._shell = self.tree.tools(self)
        if config.offload_enabled:
            self._files = self.context.offloaded()
        limits = AgentConfig(
            tools=tools,
            max_rounds=record.max_turns,
            may_repeat=(WAIT, FINISH),
            offload_enabled=config.offload_enabled,
            offload_token_threshold=config.offload_token_threshold,
            context_tokens=config.context_tokens,
            counter=config.counter,
            language=config.language,
        )
        self._agent = agent = Agent(self.tree.model(self), limits, files=self._files, recorder=self.keeper)
        kept = self.context.session_memory_manager.load(record.items, record.messages)
        newest = {message.content for message in self.context.message_manager.messages[record.messages :]}
        record.inbox = [message for message in record.inbox if self._read(message) not in newest]  # read, then killed
        system = ContextItem.of(Message(role="system", content=self.tree.system(self)))
        calls = kept.open_calls
        once = any(call.id in record.begun and call.name not in REPEATABLE for call in calls)
        begun = record.begun if once else ()
        agent.resume_at(Context((system, *kept.items)), begun=begun, broken=record.broken)
        self.keeper.current = lambda: agent.context.context
        return agent

    async def _adopt(self, agent: Agent, turn: ClaimedTurn, message: InboxMessage | None) -> None:
        """Take over a turn: a new task, or the one that was broken off."""
        record = self.record
        self.output.take(turn)
        self.output.chunk("started", content=record.role_description)
        record.lease = turn.lease.record or LeaseRecord(turn="", claim="", content=turn.content)
        if record.state != "working" or (self.is_root and not turn.goes_on):
            record.state, record.report, self.report = "working", None, None
            record.tasks += 1
            record.rounds, record.seconds_used, record.nudges, record.finish = 0, 0.0, [], None
            record.doubted = None
            if message in record.inbox:
                record.inbox.remove(message)
        await self.tree.began(self, again=not turn.goes_on)
        if turn.goes_on:
            await self.keeper.save()
        else:
            await self._receive(agent, turn.content)

    async def _receive(self, agent: Agent, content: str) -> None:
        """Begin with a message. One that a kill left behind a status that does not know it is there already."""
        last = agent.context.context.items[-1].message
        if last.role == "user" and last.content == content:
            await self.keeper.save()
            return
        count = len(agent.context.context)
        agent.context.close_calls(words(self.tree.config.language).stopped)
        agent.context.context = agent.context.context.released()
        agent.context.add(Message(role="user", content=content), task=True)
        for item in agent.context.context.items[count:]:
            await self.keeper.add(item.message)

    async def _through(self, agent: Agent, task: str | None) -> None:
        """Let the loop run until the model has answered, or reported."""
        agent.config = replace(agent.config, max_rounds=max(0, self.record.max_turns - self.record.rounds))
        async with aclosing(agent.run_stream(task)) as events:
            async for event in events:
                if isinstance(event, CallStarted):
                    self._last_calls.add(event.call.name)
                self.output.say(event)
                self.tree.after(self, event)
                if isinstance(event, CallFinished) and event.call.name == FINISH and self._finish is not None:
                    self.finish_calls += sum(call.name == FINISH for call in agent.context.context.open_calls)
                    return

    async def _more(self, answer: str) -> str | None:
        """Say what an answer does not end the task for: something has come, or something is missing yet."""
        record, config = self.record, self.tree.config
        if await self.tree.backend.is_waiting(self.session_id) and (message := await self._turn_over()) is not None:
            return message
        if record.inbox:
            return self._read(record.inbox.pop(0))
        names = self.tree.at_work(self)
        if names and "at_work" not in record.nudges:
            record.nudges.append("at_work")
            return words(config.language).at_work.format(", ".join(names))
        say = sentences(config.language)
        if not self.is_root and "finish" not in record.nudges:
            record.nudges.append("finish")
            return say.finish
        if self.is_root and record.doubted is None and (unmade := await self.tree.unmade(self, answer)):
            record.doubted = answer
            return say.unmade.format(", ".join(unmade), await self.tree.told_changes(self))
        return None

    # -- what comes meanwhile -------------------------------------------------------------------------------------

    async def _before_round(self) -> None:
        """Take in what has come: from whoever wrote to the session, and from other agents.

        That a child is done is told to an agent that is not about to hear it from a wait.
        """
        agent = self._agent
        assert agent is not None  # noqa: S101 - for the type checker
        told = False
        await self._while_paused()
        if await self.tree.backend.is_waiting(self.session_id) and (message := await self._turn_over()) is not None:
            await self._take_in(agent, message)
            told = True
        hears = not self._last_calls & {SPAWN, WAIT}
        self._last_calls = set()
        for received in [each for each in self.record.inbox if hears or not each.is_notification]:
            self.record.inbox.remove(received)
            await self._take_in(agent, self._read(received))
            told = True
        await self.tree.before_round(self, agent, told=told)

    async def _while_paused(self) -> None:
        """Wait while somebody wants it; that time does not count as its own."""
        since = time.monotonic()
        await self.tree.backend.unpaused(self.session_id)
        if self._began_at is not None:
            self._began_at += time.monotonic() - since

    async def _turn_over(self) -> str | None:
        """End the turn that is being answered, as a newer message waits, and take that one; None if it has gone."""
        await self.output.turn_over(words(self.tree.config.language).taken)
        turn = await self.tree.backend.next(self.session_id, self.lost)
        if turn is not None:
            self.output.take(turn)
        self.record.lease = self.output.lease
        return None if turn is None else turn.content

    async def _take_in(self, agent: Agent, content: str) -> None:
        item = agent.context.add(Message(role="user", content=content))
        await self.keeper.add(item.message)

    def _read(self, message: InboxMessage) -> str:
        say = words(self.tree.config.language)
        return (
            say.news.format(message.content)
            if message.is_notification
            else say.letter.format(message.sender, message.content)
        )

    # -- the end --------------------------------------------------------------------------------------------------

    async def _settle(self, ending: Ending) -> None:
        """Write the report down, end the turn by it, and tell who waits."""
        record, language = self.record, self.tree.config.language
        await self._put_away()
        report = self.report = await self.tree.judge(self, ending)
        record.state, record.report, record.report_delivered = "done", state_of(report), self.is_root
        record.begun, record.finish = [], None
        record.seconds_used, self._began_at = self.seconds(), None
        await self.keeper.save()
        if self.output.lease is None and not report.ok:  # it never came to its turn: the message must not wait for ever
            with suppress(CfsError):
                await self.tree.backend.cancel(self.session_id)
        await self.output.finish(report, language)
        record.lease = None
        await self.keeper.save()
        self.output.chunk("ended", content=report.summary if self.is_root and report.ok else report.text(language))
        await self.tree.over(self, report)

    async def finish_turn(self, turn: ClaimedTurn | None) -> None:
        """End a turn whose report was written down by a process that was killed then."""
        if turn is not None and self.report is not None:
            self.output.take(turn)
            await self.output.finish(self.report, self.tree.config.language)
        self.record.lease = None
        await self.keeper.save()

    def said(self) -> list[Message]:
        """Return what it has said so far in answer to the message of its turn."""
        lease = self.record.lease
        return said_since(self.context.message_manager.messages, lease.content) if lease is not None else []

    def said_before(self) -> list[Message]:
        """Return the messages of its session up to the one that is being answered."""
        messages, lease = list(self.context.message_manager.messages), self.record.lease
        if lease is not None:
            for place in range(len(messages) - 1, -1, -1):
                if messages[place].role == "user" and messages[place].content == lease.content:
                    return messages[:place]
        return messages

    async def _put_away(self) -> None:
        """Let go of what it had for its work."""
        shell, self._shell = self._shell, None
        if shell is not None:
            await shell.close()
        files, self._files = self._files, None
        if files is not None:
            await to_the_end(files.close)
