"""The gate of an agent: it decides about each call by the rules, and asks a person where they say so (A11).

A call that is allowed runs. One that is denied is an error that the model reads, with the rule. One that is asked about
waits for a person. An answer that lasts is stored for this workspace, and outlives the program: this exact call, or the
patterns that the question has shown.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from cfs.wire import MAX_SUBJECT, CallDecision
from cfs_agents.base.logs import get_logger
from cfs_agents.base.threads import in_thread
from cfs_agents.guards.rules.calls import GatedCall, Scope
from cfs_agents.guards.rules.decisions import Answers, Decision, Defaults, Rule, Rules, Verdict
from cfs_agents.guards.rules.patterns import Pattern
from cfs_agents.guards.rules.remembered import Remembered
from cfs_agents.guards.rules.rules_file import RulesError, WorkspaceRules
from cfs_agents.tools.call_gate import PendingCall
from cfs_agents.tools.consent import Answer, CommandMode, CommandRequest, Consent, Permission, Refusal
from cfs_agents.tools.errors import ToolError

_log = get_logger(__name__)

Ask = Callable[[CommandRequest], Awaitable[Permission]]
"""Asks a person, and raises `ToolError` for a call that may not run; `Consent.require` of one agent."""
Report = Callable[[CallDecision], None]
"""Takes note of what a rule or a person has decided about a call, for the events of its session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What decides about the calls of an agent, unless a person does.

    - `rules`: those of the user. The file of the workspace adds its own, as far as they restrict.
    - `remembered`: where lasting answers are stored; None stores none.
    """

    rules: Rules = field(default_factory=Rules)
    remembered: Remembered | None = None

    def defaults(self, mode: CommandMode, *, attended: bool) -> Defaults:
        """Return the defaults for a mode of commands; `attended`: a person can be asked."""
        commands = Verdict.ASKED if mode is CommandMode.ASK else Verdict.ALLOWED
        return Defaults(commands=commands, attended=attended)


class RulesGate:
    """A `CallGate` by rules. `ask` is used for calls that a person decides about, and `consent` is its memory.

    `defaults` returns what applies now where no rule does. `warn` is called with a sentence for each rule of the
    workspace that does not count, and `report` with each decision of a rule or a person: calls that the defaults allow
    are not reported, because each read of a file would be.
    """

    def __init__(
        self,
        policy: Policy,
        scope: Scope,
        defaults: Callable[[], Defaults],
        *,
        consent: Consent,
        ask: Ask,
        warn: Callable[[str], None],
        report: Report = lambda _: None,
    ) -> None:
        self._policy = policy
        self._scope = scope
        self._defaults = defaults
        self._consent = consent
        self._ask = ask
        self._warn = warn
        self._report = report
        self._in_order = asyncio.Lock()
        """Calls of one reply that run in parallel begin in their order."""
        self._workspace_rules = WorkspaceRules(scope.workspace)

    async def __call__(self, pending: PendingCall) -> None:
        """Return if the call may run; raises `ToolError` with the reason if it may not."""
        call = _call_of(pending)
        async with self._in_order:
            request = await _request_of(pending, call, self._scope)
            decision, warnings = await in_thread(lambda: self._decide(call, request))
        for sentence in warnings:
            self._warn(sentence)
        _log.debug("call.decided", tool=call.tool, verdict=decision.verdict, rule=decision.rule, digest=decision.digest)
        note = partial(_note, pending, call, decision)
        if decision.verdict is Verdict.DENIED:
            self._report(note(allowed=False))
            raise ToolError(decision.reason)
        if decision.verdict is Verdict.ALLOWED:
            if decision.source:
                self._report(note(allowed=True))
            return
        is_held = self._consent.holds(request)
        try:
            permission = await self._ask(replace(request, patterns=decision.patterns))
        except ToolError as error:
            self._report(note(allowed=False, asked=True, by=error.by if isinstance(error, Refusal) else None))
            raise
        self._report(note(allowed=True, asked=not is_held, by=permission.by))
        lasting = permission.answer in (Answer.ALWAYS, Answer.PATTERN)
        if decision.always and self._policy.remembered is not None and lasting:
            await in_thread(lambda: self._remember(call, decision, permission.answer))

    def _decide(self, call: GatedCall, request: CommandRequest) -> tuple[Decision, tuple[str, ...]]:
        remembered, workspace = self._policy.remembered, self._scope.workspace
        try:
            workspace_rules, warnings = self._workspace_rules.rules()
            answers = Answers() if remembered is None else remembered.answers(workspace)
            remembered_rules = tuple(
                Rule(Pattern.parse(pattern), "remembered") for pattern in tuple(self._consent.patterns)
            )
            answers = Answers((*answers.patterns, *remembered_rules), answers.digests)
        except RulesError as error:
            raise ToolError(f"{call.tool} was not run: {error.detail}") from None
        users = self._policy.rules
        rules = Rules(users.allow, (*users.ask, *workspace_rules.ask), (*users.deny, *workspace_rules.deny))
        scope = Scope(workspace, self._scope.root, Path(request.directory))
        return rules.decide(call, scope, self._defaults(), answers), warnings

    def _remember(self, call: GatedCall, decision: Decision, answer: Answer) -> None:
        assert self._policy.remembered is not None  # noqa: S101 - for the type checker
        try:
            if answer is Answer.ALWAYS:
                self._policy.remembered.add_call(self._scope.workspace, call, decision)
            else:
                self._policy.remembered.add_patterns(self._scope.workspace, decision.patterns)
        except (OSError, RulesError) as error:  # the call runs all the same; the next program asks about it again
            _log.warning("answer.lost", call=call.text, reason=str(error))


def _note(
    pending: PendingCall,
    call: GatedCall,
    decision: Decision,
    *,
    allowed: bool,
    asked: bool = False,
    by: str | None = None,
) -> CallDecision:
    return CallDecision(
        call=_short(pending.call.id, 256),
        tool=_short(call.tool, 256),
        subject=_short(call.subject, MAX_SUBJECT),
        verdict="allowed" if allowed else "denied",
        asked=asked,
        by=by,
        rule=_short(decision.rule, 4_096),
        source=_short(decision.source, 4_096),
        digest=decision.digest,
    )


def _short(text: str, length: int) -> str:
    """Return the beginning of a text; half characters, which UTF-8 cannot hold, become question marks."""
    return text[:length].encode(errors="replace").decode()


def _call_of(pending: PendingCall) -> GatedCall:
    if pending.tool.remote_of is not None:
        return GatedCall.of_mcp(*pending.tool.remote_of(**pending.values))
    return GatedCall.of(pending.call.name, pending.values)


async def _request_of(pending: PendingCall, call: GatedCall, scope: Scope) -> CommandRequest:
    """Return what a person is asked about: the command, or the call with its arguments."""
    if pending.tool.command_of is not None:
        return await pending.tool.command_of(**pending.values)
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False, default=str)
    name = f"mcp({call.subject})" if pending.tool.remote_of is not None else pending.call.name
    return CommandRequest(f"{name} {arguments}", str(scope.workspace), kind=call.kind.value)
