"""One session that an editor has open: it answers prompts with an agent, as turns of a session on the server.

The session on the server has the conversation. The agent is made anew for each prompt, and a turn is claimed and
answered as by every agent that drives a session: the server, and all who watch it, see the work while it is done.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from acp import (
    RequestError,
    text_block,
    tool_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_tool_call,
    update_user_message_text,
)
from acp.interfaces import Client as Editor
from acp.schema import (
    AllowedOutcome,
    PermissionOption,
    PromptResponse,
    SessionInfoUpdate,
    ToolCallUpdate,
    ToolKind,
    UsageUpdate,
)
from acp.schema import Usage as EditorUsage

from cfs import api
from cfs.errors import CfsError, Conflict, NotFound, Unavailable
from cfs.transports.async_http import AsyncClient
from cfs.wire import Message, QuestionKind, SessionDetail, ToolCall, Usage
from cfs_acp import records
from cfs_acp.turn import Shown, TurnRecorder, repaired
from cfs_acp.updates import CallIds, Update, call_finished, call_started, plan_of, replay
from cfs_acp.workbench import Workbench
from cfs_agents.base import tracing
from cfs_agents.base.events import (
    AgentEvent,
    CallFinished,
    CallStarted,
    Finished,
    Retrying,
    RoundStarted,
    Text,
    Thinking,
    TurnUsage,
    Warned,
)
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.base.threads import in_thread
from cfs_agents.context import CachedCounter, ContextItem, Conversation
from cfs_agents.guards.rules import Policy, RulesGate, Scope
from cfs_agents.loop.agent import Agent
from cfs_agents.loop.config import MAX_ROUNDS, AgentConfig, Outcome
from cfs_agents.loop.retries import Outages, Retries
from cfs_agents.loop.server_model import ModelSettings, ServerCounter, ServerModel, has_small_context
from cfs_agents.mcp.config import McpServer
from cfs_agents.mcp.tools import McpTools
from cfs_agents.project.texts import ProjectText
from cfs_agents.tools import (
    CALL_ID,
    Answer,
    CommandMode,
    CommandRequest,
    Consent,
    PendingCall,
    Permission,
    Tool,
    ToolError,
    ToolResult,
)
from cfs_agents.tools.commands import COMMAND
from cfs_agents.tools.paths import GUIDELINE, WORKSPACE
from cfs_agents.tools.plan import Plan
from cfs_agents.tree.directory import default
from cfs_agents.tree.server_sessions import ServerSessions
from cfs_agents.tree.session_backend import ClaimedTurn, TurnLease

_log = logging.getLogger(__name__)

_NEXT_SECONDS = 20.0
_GIVE_UP_SECONDS = 5.0
_CANCELLED = "[Cancelled]"
"""What the server, too, writes at the end of a reply that was cancelled; the dashboard knows it."""
_KINDS: Mapping[QuestionKind, ToolKind] = MappingProxyType(
    {"command": "execute", "write": "edit", "read": "read", "mcp": "other", "spawn": "other", "other": "other"}
)
"""What an editor shows a call as, by the kind of the question."""
_OPTIONS = (
    PermissionOption(option_id=Answer.YES, name="Allow", kind="allow_once"),
    PermissionOption(option_id=Answer.ALWAYS, name="Always allow exactly this", kind="allow_always"),
)
_REJECT = PermissionOption(option_id=Answer.NO, name="Reject", kind="reject_once")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How the agents of all sessions work; `commands` is the mode in which a session begins.

    `patience` is the longest tolerated outage in seconds. With `plan` a model with a context of 16,384 tokens or more
    shows its plan.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    max_rounds: int = MAX_ROUNDS
    plan: bool = True
    language: Language = "en"
    commands: CommandMode = CommandMode.ASK
    keep_variables: frozenset[str] = frozenset()
    context_tokens: int | None = None
    patience: float = 60.0
    policy: Policy = field(default_factory=Policy)


def system_text(cwd: Path, language: Language) -> str:
    """Return the system prompt: the guideline of file agents, without what only an agent with a window can do."""
    lines = default(GUIDELINE, language).splitlines()
    rules = "\n".join(line for line in lines if "sync_context" not in line).strip()
    return f"{rules}\n\n/workspace = {cwd}"


class EditorSession:
    """A session of an editor. `id` is also its name on the server; the `bench` is its own. Close it at the end.

    Raises the server's errors.
    """

    def __init__(
        self,
        session: str,
        bench: Workbench,
        editor: Editor,
        client: AsyncClient,
        options: AgentOptions,
        servers: Mapping[str, McpServer] | None = None,
    ) -> None:
        self.id = session
        self.mode = options.commands
        self.paths = bench.paths
        self._bench, self._editor, self._client, self._options = bench, editor, client, options
        self._retries = Retries(patience=options.patience, outages=Outages(_away, _back))
        self._model = ServerModel(client, options.model, retries=self._retries)
        self._counter = CachedCounter(ServerCounter(client))
        self._consent = Consent(self._ask)
        policy = options.policy
        self._rules = RulesGate(
            policy,
            Scope(bench.paths.workspace),
            lambda: policy.defaults(self.mode, attended=True),
            consent=self._consent,
            ask=self._require,
            warn=_log.warning,
            report=lambda decision: self._backend.decided(session, decision),
        )
        self._project = ProjectText(bench.handle, WORKSPACE, warn=_log.warning)
        confined = options.commands is CommandMode.BWRAP
        self._mcp = McpTools(servers or {}, bench.paths.workspace, confined=confined, warn=_log.warning)
        self._mcp_started = asyncio.create_task(self._mcp.__aenter__())
        self._ids = CallIds()
        self._items: Sequence[ContextItem] = ()
        """The conversation as the model sees it, as of the version `_etag` of the session."""
        self._etag: str | None = None
        self._title: str | None = None
        self._work: asyncio.Task[PromptResponse] | None = None
        self._backend = ServerSessions(client, retries=self._retries)
        self._lease: TurnLease | None = None
        self._partial = ""
        """The text of the running turn that no message on the server has."""
        self._lost_by = ""
        """Why the server has taken the running turn away."""

    @property
    def busy(self) -> bool:
        """Whether a prompt is being answered."""
        return self._work is not None

    async def replay(self, detail: SessionDetail) -> None:
        """Send the editor what was said before."""
        for update in replay(detail.history, self.paths, self._ids, ended=detail.state == "idle"):
            await self._send(update)

    async def prompt(self, text: str) -> PromptResponse:
        """Answer a prompt. Raises `Conflict` if another one is being answered, and the error of a failed task."""
        if self._work is not None:
            raise Conflict("a prompt is being answered: cancel it, or wait for its end")
        records.keep(self.id, self.paths.workspace, answering=True)
        with api.acting_as(agent=self.id):
            self._work = asyncio.create_task(self._answer(text))
        try:
            await asyncio.wait([self._work])
            if not self._work.cancelled():
                return self._work.result()
            if self._lost_by and "cancelled" not in self._lost_by:
                raise Unavailable(self._lost_by)
            return PromptResponse(stop_reason="cancelled")
        except asyncio.CancelledError:  # the connection has ended
            await self._stop()
            raise
        finally:
            self._work = None
            with suppress(OSError):  # the next prompt writes it again
                records.keep(self.id, self.paths.workspace)

    def cancel(self) -> None:
        """End the running prompt, whose `prompt` then returns that it was cancelled."""
        if self._work is not None:
            self._work.cancel()

    async def close(self) -> None:
        """Cancel what runs, and end all processes of the session."""
        await self._stop()
        self._mcp_started.cancel()
        await asyncio.wait([self._mcp_started])
        await self._mcp.close()
        await self._bench.close()

    async def _stop(self) -> None:
        if (work := self._work) is not None:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _send(self, update: Update) -> None:
        await self._editor.session_update(self.id, update)

    async def _answer(self, text: str) -> PromptResponse:
        """Post a prompt and answer it, after the messages that others have written to the session before."""
        self._lost_by = self._partial = ""
        await self._catch_up(await self._client.call(api.read(self.id)))
        watching = asyncio.create_task(self._backend.watch(self.id))
        try:
            turn: ClaimedTurn | None = await self._backend.begin(self.id, text, self._lost)
            while True:
                if turn is not None:
                    mine = turn.content == text
                    if not mine:
                        await self._send(update_user_message_text(turn.content))
                    response = await self._do(turn)
                    if mine:
                        return response
                elif not await self._waits(text):
                    raise NotFound("the prompt was taken out of the session, or answered by another program")
                turn = await self._backend.next(self.id, self._lost, _NEXT_SECONDS)
        except BaseException as error:
            if self._lease is not None or isinstance(error, asyncio.CancelledError):
                await self._give_up()
            raise
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    async def _waits(self, text: str) -> bool:
        detail = await self._client.call(api.read(self.id))
        return any(message.content == text for message in detail.queue)

    async def _give_up(self) -> None:
        """End on the server, too, what has been posted there. A turn that it does not hear of ends with its lease."""
        lease, self._lease = self._lease, None
        try:
            if not self._lost_by:
                with suppress(CfsError, TimeoutError):
                    async with asyncio.timeout(_GIVE_UP_SECONDS):
                        if lease is None:
                            await self._client.call(api.cancel(self.id, queued=True))
                        else:  # first what was done, then the end: a cancel could overtake it
                            await lease.finish(f"{self._partial} {_CANCELLED}".lstrip(), Usage())
        finally:
            if lease is not None:
                await lease.close()

    def _lost(self, reason: str) -> None:
        _log.warning("%s: %s", self.id, reason)
        self._lost_by = reason
        self.cancel()

    async def _catch_up(self, detail: SessionDetail) -> None:
        """Take over the server's conversation if others have changed it."""
        if detail.etag != self._etag:
            self._items = [ContextItem.of(message) for message in repaired(detail.history, self._options.language)]
        self._title = self._title or detail.title

    async def _do(self, turn: ClaimedTurn) -> PromptResponse:
        """Answer one turn."""
        self._lease = turn.lease
        output = TurnRecorder(turn, self._backend, self.id)
        agent = await self._agent(output)
        record = turn.lease.record
        progress = Shown()
        try:
            with tracing.task("acp", self.id, None if record is None else record.traceparent) as span:
                async with aclosing(agent.run_stream(turn.content)) as events:
                    async for event in events:
                        await self._show(event, progress, output)
                outcome = agent.outcome
                if outcome.reason != "answered":
                    tracing.fail(span, outcome.reason)
            await output.finish(outcome)
            self._lease = None
        finally:
            for message in self._closed_calls(agent):
                turn.lease.message(message)
            self._partial = output.unsent(progress.reply.text)
            for call in progress.open:
                await self._closed(call)
            self._items, self._etag = agent.context.context.items[1:], None
        await self._settle()
        return _response(outcome)

    def _closed_calls(self, agent: Agent) -> list[Message]:
        """Give each call that has none a result that says so, and return them."""
        count = agent.context.close_calls(catalogue(self._options.language).stopped)
        return [item.message for item in agent.context.context.items[-count:]] if count else []

    async def _closed(self, call: ToolCall) -> None:
        if (editor_id := self._ids.of(call.id)) is not None:
            with suppress(ConnectionError):  # the end of the connection has ended the call
                await self._send(update_tool_call(editor_id, status="failed"))

    async def _settle(self) -> None:
        """Note the version of the session that has this turn, and send its title once it has one."""
        detail = await self._client.call(api.read(self.id))
        if detail.state == "idle":
            self._etag = detail.etag
        if detail.title != self._title:
            self._title = detail.title
            await self._send(SessionInfoUpdate(session_update="session_info_update", title=detail.title))

    async def _tools(self) -> list[Tool]:
        """Return the tools for the present mode, and those of the editor's MCP servers."""
        bench_tools = await self._bench.tools(self.mode)
        mcp = await asyncio.shield(self._mcp_started)
        window = None
        with suppress(CfsError):  # the first request waits for the server
            window = await self._model.ask_context_window()
        plan = [Plan().tool()] if self._options.plan else []
        return [*bench_tools, *plan, *mcp.tools(window)]

    async def _system(self) -> Message:
        small = await has_small_context(self._model) is not False
        project = await in_thread(lambda: self._project.read(small=small))
        text = system_text(self.paths.workspace, self._options.language)
        return Message(role="system", content=f"{text}\n\n{project}" if project else text)

    async def _agent(self, output: TurnRecorder) -> Agent:
        options = self._options
        config = AgentConfig(
            tools=await self._tools(),
            max_rounds=options.max_rounds,
            context_tokens=options.context_tokens,
            counter=self._counter,
            language=options.language,
        )
        agent = Agent(self._model, config, files=self._bench.files, recorder=output, gate=self._gate)
        agent.resume_at(Conversation((ContextItem.of(await self._system()), *self._items)))
        return agent

    async def _show(self, event: AgentEvent, progress: Shown, output: TurnRecorder) -> None:
        match event:
            case RoundStarted():
                output.begin()
                progress.reply.start()
                progress.thinking.start()
            case Retrying(reason):
                _log.warning("%s: the model is asked again: %s", self.id, reason)
                progress.reply.repeat()
                progress.thinking.repeat()
            case Text(text):
                if new := progress.reply.add(text):
                    output.text(new)
                    await self._send(update_agent_message_text(new))
            case Thinking(text):
                if new := progress.thinking.add(text):
                    await self._send(update_agent_thought_text(new))
            case CallStarted(call):
                await self._begin(call, progress)
            case CallFinished(call, result):
                await self._end(call, result, progress)
            case TurnUsage(usage):
                await self._used(usage)
            case Warned(text) | Finished("failed", text):
                _log.warning("%s: %s", self.id, text)

    async def _begin(self, call: ToolCall, progress: Shown) -> None:
        progress.before[call.id] = await self._bench.text_of(call)
        asks = call.name == COMMAND and self.mode is CommandMode.ASK
        progress.open.append(call)
        editor_id = self._ids.begin(call.id)
        await self._send(call_started(editor_id, call, self.paths, "pending" if asks else "in_progress"))

    async def _end(self, call: ToolCall, result: ToolResult, progress: Shown) -> None:
        if call not in progress.open:  # it could not be read, and never began
            await self._send(call_started(self._ids.begin(call.id), call, self.paths))
        else:
            progress.open.remove(call)
        after = await self._bench.text_of(call) if result.ok else None
        diff = None if after is None else (progress.before.get(call.id), after)
        editor_id = self._ids.of(call.id)
        assert editor_id is not None  # noqa: S101 - for the type checker
        await self._send(call_finished(editor_id, call, result.text, self.paths, ok=result.ok, diff=diff))
        if (plan := plan_of(call, ok=result.ok)) is not None:
            await self._send(plan)

    async def _used(self, usage: Usage) -> None:
        with suppress(CfsError):  # a figure for a person; the task continues without it
            if (size := await self._model.context_window()) is not None:
                await self._send(UsageUpdate(session_update="usage_update", used=usage.tokens, size=size))

    async def _gate(self, pending: PendingCall) -> None:
        """Check a command against the present mode, which may have changed since the prompt began; then all rules."""
        if pending.tool.command_of is not None:
            if self.mode is CommandMode.NONE:
                raise ToolError("commands have been switched off, and it was not run")
            if (self.mode is CommandMode.BWRAP) is not self._bench.confined:
                raise ToolError(
                    "the mode of commands has changed, and it was not run: it holds from the next prompt on"
                )
        await self._rules(pending)

    async def _require(self, request: CommandRequest) -> Permission:
        """Ask in the editor and in the session on the server."""
        question = self._backend.question(self.id, request, CALL_ID.get())
        permission = await self._consent.require(self.id, request, question)
        if (editor_id := self._ids.of(CALL_ID.get())) is not None:
            await self._send(update_tool_call(editor_id, status="in_progress"))
        return permission

    async def _ask(self, agent: str, request: CommandRequest) -> Answer:  # noqa: ARG002 - as consents want it
        """Ask in the editor. The same question is in the session on the server; the first answer counts."""
        background = " in the background" if request.background else ""
        call = ToolCallUpdate(
            tool_call_id=self._ids.of(CALL_ID.get()) or CALL_ID.get(),
            kind=_KINDS[request.kind],
            status="pending",
            title=request.command,
            content=[tool_content(text_block(f"{request.command}\n\nin {request.directory}{background}"))],
        )
        try:
            response = await self._editor.request_permission(self.id, call, _options(request))
        except RequestError as error:
            raise ToolError(f"the editor could not ask whether this may run, and it was not run: {error}") from None
        outcome = response.outcome
        chosen = outcome.option_id if isinstance(outcome, AllowedOutcome) else Answer.NO
        return Answer(chosen) if chosen in list(Answer) else Answer.NO


def _options(request: CommandRequest) -> list[PermissionOption]:
    """Return the answers to a request, with one for its patterns if there are any."""
    choice = request.pattern_choice
    name = f"{choice[:1].upper()}{choice[1:]}"
    pattern = [PermissionOption(option_id=Answer.PATTERN, name=name, kind="allow_always")] if choice else []
    return [*_OPTIONS, *pattern, _REJECT]


def _response(outcome: Outcome) -> PromptResponse:
    """Return how a task has ended; raises its error."""
    if outcome.reason == "failed":
        raise outcome.error or CfsError(outcome.detail)
    used = outcome.usage
    usage = EditorUsage(
        input_tokens=used.prompt_tokens,
        output_tokens=used.completion_tokens,
        total_tokens=used.tokens,
        cached_read_tokens=used.cached_tokens,
    )
    reason = {"rounds": "max_turn_requests", "interrupted": "cancelled"}.get(outcome.reason, "end_turn")
    return PromptResponse.model_validate({"stopReason": reason, "usage": usage})


def _away(error: CfsError) -> None:
    _log.warning("waiting for the server: %s", error.detail)


def _back() -> None:
    _log.warning("the server answers again")
