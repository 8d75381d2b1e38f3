"""The decision about a call: rules that deny, then those that ask, then those that allow, then the defaults (A11).

Nothing happens here but reads of links: the caller asks, stores and acts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from pathlib import Path

from cfs_agents.guards.rules.calls import CallKind, FileTarget, GatedCall, Links, Scope
from cfs_agents.guards.rules.patterns import Coverage, Pattern
from cfs_agents.guards.rules.script import ParsedScript, analyse
from cfs_agents.guards.rules.suggestions import suggestions
from cfs_agents.guards.rules.words import SimpleCommand
from cfs_agents.tools.files import READ_FILE, WRITE_FILE

_OWN_FOLDER = ".cfs"
_MOST_DIRECTORIES = 4
_MOST_REASONS = 3


class Verdict(StrEnum):
    """What a decision says."""

    ALLOWED = "allowed"
    ASKED = "asked"
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern, and where it stands, such as `rules.toml:3`."""

    pattern: Pattern
    source: str

    def __str__(self) -> str:
        return f"{self.pattern.text} ({self.source})"


@dataclass(frozen=True, slots=True)
class Answers:
    """What the user has answered for good in a workspace: patterns, and digests of exact calls."""

    patterns: tuple[Rule, ...] = ()
    digests: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Defaults:
    """What applies where no rule does. `attended`: a person can be asked; if not, what would be asked is denied.

    Files are those in the workspace; files elsewhere are asked about.
    """

    files: Verdict = Verdict.ALLOWED
    commands: Verdict = Verdict.ASKED
    mcp: Verdict = Verdict.ASKED
    others: Verdict = Verdict.ALLOWED
    attended: bool = True

    def of(self, kind: CallKind) -> Verdict:
        """Return the default of a kind of calls."""
        if kind is CallKind.COMMAND:
            return self.commands
        if kind is CallKind.MCP:
            return self.mcp
        return self.files if kind in (CallKind.READ, CallKind.WRITE) else self.others


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about one exact call.

    - `rule` is the text of the rule that decided, `source` where it stands; both are empty for a default.
    - `reason` is a sentence for the person who is asked, or for the model that may not.
    - `digest` covers all arguments: a changed call is another call.
    - `patterns` are rules to remember that would allow it together; there are none where one would allow more than its
      words say. `always`: whether an answer that lasts has an effect, which it has not against a rule that asks.
    """

    verdict: Verdict
    reason: str
    digest: str
    rule: str = ""
    source: str = ""
    patterns: tuple[str, ...] = ()
    always: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a user and a workspace."""

    allow: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def decide(
        self, call: GatedCall, scope: Scope, defaults: Defaults | None = None, answers: Answers | None = None
    ) -> Decision:
        """Decide about a call. Reads links of the file system, nothing else."""
        defaults, answers = defaults or Defaults(), answers or Answers()
        directory = str(scope.directory or scope.workspace) if call.kind is CallKind.COMMAND else ""
        judge = _Judge(self, call, scope, defaults, answers, call.digest(directory))
        decision = judge.decide()
        if decision.verdict is Verdict.ASKED:
            decision = replace(decision, patterns=judge.patterns() if decision.always else ())
            return decision if defaults.attended else _unattended(decision, call)
        return decision


def _unattended(decision: Decision, call: GatedCall) -> Decision:
    patterns = ", ".join(map(repr, decision.patterns))
    way = f" To permit it, the user can add {patterns} to `allow` in rules.toml." if patterns else ""
    reason = (
        f"{call.tool} was not run: {decision.reason}, and no person can be asked."
        f" Do without it, or say in your answer what you would need it for.{way}"
    )
    return replace(decision, verdict=Verdict.DENIED, reason=reason)


class _Candidates:
    """The commands of a script by their names, for rules that restrict. Equal ones are judged once."""

    def __init__(self, script: ParsedScript) -> None:
        self._all = list({id(command): command for command in (*script.commands, *script.hidden)}.values())
        self._unknown: list[SimpleCommand] = []
        self._by_name: dict[str, list[SimpleCommand]] = {}
        for command in self._all:
            name = command.words[0]
            if not name.literal:
                self._unknown.append(command)
                continue
            for text in {name.text, name.text.rpartition("/")[2]}:
                self._by_name.setdefault(text, []).append(command)

    def of(self, pattern: Pattern) -> Sequence[SimpleCommand]:
        """Return the commands that a pattern may cover."""
        name = pattern.words[0]
        return self._all if "*" in name else [*self._by_name.get(name, ()), *self._unknown]


@dataclass(frozen=True, slots=True)
class _Judge:
    rules: Rules
    called: GatedCall
    scope: Scope
    defaults: Defaults
    answers: Answers
    digest: str

    def decide(self) -> Decision:
        """Decide about the call."""
        return self.command() if self.called.kind is CallKind.COMMAND else self.call()

    def patterns(self) -> tuple[str, ...]:
        """Return rules that would allow the call together; none if no rules can, or only too wide ones."""
        rules = self._for_commands() if self.called.kind is CallKind.COMMAND else ()
        patterns = suggestions(self.called, self.scope, lambda command: self._rule_for(command, rules) is not None)
        if not patterns:
            return ()
        added = tuple(Rule(Pattern.parse(pattern), "remembered") for pattern in patterns)
        answers = Answers((*self.answers.patterns, *added), self.answers.digests)
        allowed = replace(self, answers=answers).decide().verdict is Verdict.ALLOWED
        return patterns if allowed else ()

    def call(self) -> Decision:
        """Decide about a call that is not a command."""
        kind = self.called.kind
        target = self.scope.file(self.called.subject) if kind in (CallKind.READ, CallKind.WRITE) else None
        for verdict, rules in ((Verdict.DENIED, self.rules.deny), (Verdict.ASKED, self.rules.ask)):
            for rule in self._for_tool(rules):
                if rule.pattern.covers_text(self.called) if target is None else rule.pattern.restricts_file(target):
                    return self._by(rule, verdict)
        if self.digest in self.answers.digests:
            return self._remembered()
        for rule in self._for_tool((*self.rules.allow, *self.answers.patterns)):
            if rule.pattern.covers_text(self.called) if target is None else rule.pattern.allows_file(target):
                return self._by(rule, Verdict.ALLOWED)
        if target is not None and (reason := _odd_file(target, writes=kind is CallKind.WRITE)) is not None:
            return self._default(max(self.defaults.files, Verdict.ASKED, key=list(Verdict).index), reason)
        return self._default(self.defaults.of(kind), "no rule allows this call")

    def command(self) -> Decision:
        """Decide about a command."""
        script = analyse(self.called.subject)
        targets, doubts = self._targets(script)
        doubts = [*script.doubts, *doubts]
        candidates = _Candidates(script)
        for verdict, rules in ((Verdict.DENIED, self.rules.deny), (Verdict.ASKED, self.rules.ask)):
            doubt = None
            for rule in rules:
                match, what = self._restricts(rule, candidates, targets)
                if match is Coverage.YES:
                    return self._by(rule, verdict, what)
                if match is Coverage.MAYBE:
                    doubt = (
                        f"{what} may be what the rule {rule} is about; a value decides that is known only when it runs"
                    )
            if doubt is not None:
                doubts.append(doubt)
        if self.digest in self.answers.digests:
            return self._remembered()
        if doubts and not self._unrestricted():
            return self._default(
                max(self.defaults.commands, Verdict.ASKED, key=list(Verdict).index), "; ".join(doubts[:_MOST_REASONS])
            )
        if not doubts and (allowing := self._allowing(script, targets)) is not None:
            return self._by(allowing, Verdict.ALLOWED)
        allowing_rules = self._for_commands()
        if not self._unrestricted():
            for command in script.commands:
                if command.unread and self._rule_for(command, allowing_rules) is None:
                    return self._default(
                        max(self.defaults.commands, Verdict.ASKED, key=list(Verdict).index), command.unread
                    )
        missing = next(
            (
                shell_command.text
                for shell_command in script.commands
                if not shell_command.free and self._rule_for(shell_command, allowing_rules) is None
            ),
            "",
        )
        return self._default(self.defaults.commands, f"no rule allows {_short(missing or self.called.subject)}")

    def _unrestricted(self) -> bool:
        """Return whether commands run without a question, and no rule restricts what a doubt could hide."""
        kinds = (CallKind.COMMAND, CallKind.READ, CallKind.WRITE)
        restricting = [*self.rules.ask, *self.rules.deny]
        names = {CallKind.COMMAND: "execute_command", CallKind.READ: READ_FILE, CallKind.WRITE: WRITE_FILE}
        return self.defaults.commands is Verdict.ALLOWED and not any(
            rule.pattern.names(names[kind], kind) for rule in restricting for kind in kinds
        )

    def _allowing(self, script: ParsedScript, targets: Sequence[tuple[FileTarget, bool]]) -> Rule | None:
        """Return a rule that allows, if every command and file is allowed by one."""
        result: Rule | None = None
        for target, writes in targets:
            if _odd_file(target, writes=writes) is not None:
                tool, kind = (WRITE_FILE, CallKind.WRITE) if writes else (READ_FILE, CallKind.READ)
                allows = [rule for rule in self._allows() if rule.pattern.names(tool, kind)]
                if not any(rule.pattern.allows_file(target) for rule in allows):
                    return None
        rules = self._for_commands()
        named = _by_name(rules)
        for command in {id(command): command for command in script.commands}.values():
            if (rule := self._rule_for(command, named.get(command.words[0].text, named[""]))) is not None:
                result = rule
            elif not command.free:
                return None
        return result

    def _allows(self) -> Iterator[Rule]:
        yield from self.rules.allow
        yield from self.answers.patterns

    def _for_commands(self) -> Sequence[Rule]:
        return [rule for rule in self._allows() if rule.pattern.names("execute_command", CallKind.COMMAND)]

    def _rule_for(self, command: SimpleCommand, rules: Sequence[Rule]) -> Rule | None:
        for rule in rules:
            if rule.pattern.allows_command(command):
                return rule
        return None

    def _restricts(
        self, rule: Rule, candidates: "_Candidates", targets: Sequence[tuple[FileTarget, bool]]
    ) -> tuple[Coverage, str]:
        pattern = rule.pattern
        result, what = Coverage.NO, ""
        if pattern.names("execute_command", CallKind.COMMAND):
            if pattern.any:
                return Coverage.YES, self.called.subject
            for command in candidates.of(pattern):
                match = pattern.restricts_command(command)
                if match.value > result.value:
                    result, what = match, command.text
                if match is Coverage.YES:
                    return match, what
        for target, writes in targets:
            tool, kind = (WRITE_FILE, CallKind.WRITE) if writes else (READ_FILE, CallKind.READ)
            if pattern.names(tool, kind) and pattern.restricts_file(target):
                return Coverage.YES, target.written
        return result, what

    def _targets(self, script: ParsedScript) -> tuple[list[tuple[FileTarget, bool]], list[str]]:
        """Return the files that redirections open, and why others are not known."""
        targets: list[tuple[FileTarget, bool]] = []
        doubts: list[str] = []
        links = Links()
        relative = self._directories(script)
        for redirection in script.redirections:
            directories = relative if not redirection.path.startswith("/") else [self.scope.workspace]
            if not directories:
                doubts.append(f"the directory in which {redirection.path} is opened is not known")
                directories = [self.scope.directory or self.scope.workspace]
            for directory in directories:
                target = self.scope.command_file(redirection.path, directory, links)
                targets.append((target, redirection.writes))
        return targets, doubts

    def _directories(self, script: ParsedScript) -> list[Path]:
        """Return where the shell may be in the script; nothing if that is not known."""
        base = self.scope.directory or self.scope.workspace
        moves = script.directories
        if not all(moves) or len(moves) > _MOST_DIRECTORIES:
            return []
        result: list[Path] = []
        for count in range(len(moves) + 1):
            result += [base.joinpath(*subset) for subset in combinations(moves, count)]
        return result

    def _for_tool(self, rules: Iterable[Rule]) -> Iterator[Rule]:
        return (rule for rule in rules if rule.pattern.names(self.called.tool, self.called.kind))

    def _by(self, rule: Rule, verdict: Verdict, what: str = "") -> Decision:
        about = f" because of {_short(what)}" if what and what != self.called.subject else ""
        reason = {
            Verdict.ALLOWED: f"the rule {rule} allows it",
            Verdict.ASKED: f"the rule {rule} asks{about}",
            Verdict.DENIED: (
                f"{self.called.tool} was not run: the rule {rule} denies it{about}. Do not try it in another form: do"
                " without it, or say in your answer what you would need it for"
            ),
        }[verdict]
        always = verdict is not Verdict.ASKED
        return Decision(verdict, reason, self.digest, rule.pattern.text, rule.source, always=always)

    def _remembered(self) -> Decision:
        return Decision(Verdict.ALLOWED, "you have always allowed this exact call", self.digest, source="remembered")

    def _default(self, verdict: Verdict, reason: str) -> Decision:
        if verdict is Verdict.DENIED:
            reason = f"{self.called.tool} was not run: {reason}"
        return Decision(verdict, reason if verdict is not Verdict.ALLOWED else "the default allows it", self.digest)


def _by_name(rules: Sequence[Rule]) -> Mapping[str, Sequence[Rule]]:
    """Return the rules that may allow commands of a name, in their order; those of the empty name are for all else."""
    named: dict[str, list[Rule]] = {"": []}
    for rule in rules:
        words = rule.pattern.words
        if not words or "*" in words[0]:
            for others in named.values():
                others.append(rule)
        else:
            named.setdefault(words[0], list(named[""])).append(rule)
    return named


def _odd_file(target: FileTarget, *, writes: bool) -> str | None:
    """Return why the default for files does not hold for a file."""
    if not target.inside:
        return f"{_short(target.written)} is outside of the workspace" if writes else None
    if not writes:
        return None
    if any(name == _OWN_FOLDER or name.startswith(f"{_OWN_FOLDER}/") for name in target.names):
        return f"{_short(target.written)} holds rules for agents"
    if any(".git" in name.split("/") for name in target.names):
        return f"{_short(target.written)} holds settings and hooks that git runs"
    return None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:117]}..."
