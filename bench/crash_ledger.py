"""What clients have sent and what was acknowledged, and whether a server still has exactly that. Pure: no I/O.

A `Talk` is what is known of one session. What a client cannot know, because the answer was lost, is kept as several
possibilities; `Talk.check` compares them with what the server shows and keeps the one that is true. `Reading` is what a
reader of events has received, with the places where it was interrupted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Outcome = Literal["open", "acknowledged", "unknown", "refused"]
"""Of one write: no answer yet, a success, no answer or an error of the server, a refusal."""


class Said(NamedTuple):
    """A message of a history, as the transcript shows it."""

    role: str
    text: str


@dataclass(slots=True)
class Part:
    """A whole message that an agent adds to its turn, or its final reply."""

    said: Said
    outcome: Outcome = "open"
    request: int = 0
    """Parts of one request are there together or not at all."""


@dataclass(slots=True)
class Write:
    """A message to a session. Its text is unique. Times are seconds of one monotonic clock."""

    text: str
    sent: float
    face: str = ""
    outcome: Outcome = "open"
    answered: float | None = None
    generate: bool = True
    reply: str | None = None
    """The reply that an answer or a finished stream has shown."""
    shown: str = ""
    """The text of a stream, which ends with the reply: one that began again follows what was shown before."""
    expected: str | None = None
    """The reply that the engine gives, where that is known."""
    parts: list[Part] = field(default_factory=list)
    """What an agent has sent for this turn, in its order."""

    def ended(self, outcome: Outcome, at: float) -> None:
        """Note how it ended. What is known already is not forgotten by a later failure."""
        if self.outcome != "acknowledged":
            self.outcome, self.answered = outcome, at


@dataclass(frozen=True, slots=True)
class Shown:
    """What the server shows of a session: `history`, the texts that wait, whether nothing runs or waits, and more."""

    id: str
    history: tuple[Said, ...]
    queue: tuple[str, ...] = ()
    settled: bool = True
    seed: int | None = None
    etag: str = ""


@dataclass(slots=True)
class Talk:
    """One session, as its clients know it. Several clients may send messages, one of them does everything else."""

    names: list[str]
    """Possible ids, the most probable one first."""
    exists: set[bool] = field(default_factory=lambda: {True, False})
    bases: list[tuple[Said, ...]] = field(default_factory=lambda: [()])
    """Possible histories before the writes. A later one contains all writes before it."""
    writes: list[Write] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=lambda: [None])
    agent: bool = False
    etag: str = ""
    doubt: bool = False
    """Whether something else is unknown, so that clients wait for the next check."""
    touched: bool = True

    @property
    def id(self) -> str:
        """The most probable id."""
        return self.names[0]

    @property
    def certain(self) -> bool:
        """Whether it is known to exist, under which name, and with which history before the writes."""
        return self.exists == {True} and len(self.names) == len(self.bases) == 1 and not self.doubt

    def check(self, shown: Shown | None) -> list[str]:
        """Compare with what the server shows (None: no session), keep what is true, and return what is wrong."""
        problems = [f"{self.id}: {problem}" for problem in self._compare(shown)]
        if shown is not None:
            self._keep(shown)
        else:
            self.exists, self.writes = {False}, []
        self.touched = self.doubt = False
        return problems

    def _compare(self, shown: Shown | None) -> list[str]:
        if shown is None:
            if False in self.exists:
                return []
            lost = sum(write.outcome == "acknowledged" for write in self.writes)
            return [f"the session is lost, with {lost} new messages and {len(self.bases[-1])} older ones"]
        problems = []
        if True not in self.exists:
            problems.append("the session was deleted and is there again")
        if shown.id not in self.names:
            problems.append(f"its name is {shown.id}")
        if shown.seed not in self.seeds:
            problems.append(f"the setting is {shown.seed} instead of {self.seeds}")
        if self.etag and self.etag.rpartition("-")[0] != shown.etag.rpartition("-")[0]:
            problems.append(f"the life changed: {self.etag} became {shown.etag}")
        found = [compare(base, self.writes if base is self.bases[0] else (), shown, self.agent) for base in self.bases]
        return problems + min(found, key=len)

    def _keep(self, shown: Shown) -> None:
        self.names, self.exists, self.seeds, self.etag = [shown.id], {True}, [shown.seed], shown.etag
        if shown.settled:
            self.bases, self.writes = [shown.history], []
            return
        open_turn = next((at for at in reversed(range(len(shown.history))) if shown.history[at].role == "user"), 0)
        waiting = {*shown.queue, *(said.text for said in shown.history[open_turn:])}
        self.bases = [shown.history[:open_turn]]
        self.writes = [write for write in self.writes if write.text in waiting]
        for write in self.writes:
            write.ended("acknowledged", write.sent)
            present = list(shown.history[open_turn:])
            write.parts = [part for part in write.parts if part.said in present]
            for part in write.parts:
                part.outcome = "acknowledged"


def compare(base: Sequence[Said], writes: Sequence[Write], shown: Shown, agent: bool) -> list[str]:
    """Return what is wrong with a history that begins with `base` and goes on with these writes."""
    problems = []
    if shown.history[: len(base)] != tuple(base):
        same = next((at for at, (one, other) in enumerate(zip(base, shown.history, strict=False)) if one != other), -1)
        problems.append(
            f"older messages changed: {len(base)} were verified, {len(shown.history)} are there, from {same}"
        )
        return problems
    by_text = {write.text: write for write in writes}
    turns = _turns(shown.history[len(base) :])
    again = bool(turns) and shown.queue[:1] == (turns[-1][0],)  # its agent's lease ran out
    texts = [text for text, _ in turns] + list(shown.queue[again:])
    problems += [f"twice: {text!r}" for text in sorted({text for text in texts if texts.count(text) > 1})]
    for text in texts:
        if text not in by_text:
            problems.append(f"never sent: {text!r}")
        elif by_text[text].outcome == "refused":
            problems.append(f"refused and stored: {text!r}")
    present = set(texts)
    problems += [
        f"acknowledged and lost ({write.face}): {write.text!r}"
        for write in writes
        if write.outcome == "acknowledged" and write.text not in present
    ]
    problems += _inversions([by_text[text] for text in texts if text in by_text])
    for number, (text, answers) in enumerate(turns):
        if text in by_text:
            ended = shown.settled or number < len(turns) - 1
            problems += _answers(by_text[text], answers, agent, ended)
    if shown.settled and shown.queue:
        problems.append(f"idle with {len(shown.queue)} waiting messages")
    return problems


def _turns(history: Sequence[Said]) -> list[tuple[str, list[Said]]]:
    """Split a history at the messages of users: the text of each, and what follows it."""
    turns: list[tuple[str, list[Said]]] = []
    for said in history:
        if said.role == "user":
            turns.append((said.text, []))
        elif turns:
            turns[-1][1].append(said)
        else:
            turns.append((f"({said.role} message before the first of a user)", [said]))
    return turns


def _inversions(order: Sequence[Write]) -> Iterable[str]:
    """Yield writes that stand behind one that was sent only after they had been acknowledged."""
    latest: Write | None = None
    for write in order:
        if latest is not None and write.outcome == "acknowledged" and (write.answered or 0.0) < latest.sent:
            yield f"out of order: {write.text!r} was acknowledged before {latest.text!r} was sent"
        if latest is None or write.sent > latest.sent:
            latest = write


def _answers(write: Write, answers: Sequence[Said], agent: bool, ended: bool) -> Iterable[str]:
    """Yield what is wrong with what follows a message of a user."""
    if agent:
        yield from _agent_answers(write, answers)
        return
    if not write.generate:
        if answers:
            yield f"answered though no reply was asked for: {write.text!r}"
        return
    if len(answers) > 1 or any(said.role != "assistant" for said in answers):
        yield f"{len(answers)} replies to {write.text!r}"
    elif not answers:
        if ended or write.reply is not None:
            yield f"no reply to {write.text!r}"
    elif write.reply is not None and answers[0].text != write.reply:
        yield f"the reply to {write.text!r} was {write.reply!r} and is {answers[0].text!r}"
    elif write.shown and not write.shown.endswith(answers[0].text):
        yield f"the reply to {write.text!r} was shown as {write.shown!r} and is {answers[0].text!r}"
    elif write.expected not in (None, answers[0].text) and not answers[0].text.startswith("[Error:"):
        yield f"the reply to {write.text!r} is {answers[0].text!r}"


def _agent_answers(write: Write, answers: Sequence[Said]) -> Iterable[str]:
    """Yield what is wrong with the messages of an agent: acknowledged ones once and in order, others at most once."""
    at, present, absent = 0, set[int](), set[int]()
    for part in write.parts:
        there = at < len(answers) and answers[at] == part.said
        (present if there else absent).add(part.request)
        if there:
            at += 1
            if part.outcome == "refused":
                yield f"refused and stored: {part.said} of {write.text!r}"
        elif part.outcome == "acknowledged":
            yield f"an agent's message is lost: {part.said} of {write.text!r}"
    if present & absent - {0}:
        yield f"half of an agent's update of {write.text!r} is there: {list(answers)}"
    if at < len(answers):
        yield f"an agent's message was never sent, or is there twice: {answers[at]} of {write.text!r}"


# -- events -----------------------------------------------------------------------------------------------------------

MUST_BE_DURABLE = frozenset({"message.added", "turn.finished", "turn.failed"})
"""Events that are shown only when they are durable, so that no restart can take them back."""


class Seen(NamedTuple):
    """An event as a reader got it: its number in this log, its cursor, its type, and its JSON."""

    number: int
    id: str
    type: str
    json: str


@dataclass(slots=True)
class Reading:
    """What one reader has received, in order. A `stale` stands where it came, with the number to go on from."""

    name: str
    events: list[Seen] = field(default_factory=list)
    last: int = 0
    stales: int = 0
    orphans: int = 0
    """Events that were shown, but not durable when the server was killed."""

    def check(self, full: Mapping[int, Seen], restarts: int) -> list[str]:
        """Compare with a stream that was never cut, forget the events that are compared, return what is wrong.

        Events that are newer than that stream are left for the next time.
        """
        problems: list[str] = []
        newest = max(full, default=0)
        events, self.events = _until(self.events, newest)
        stales = 0
        lost = False  # whether what comes next was taken back by a restart
        expected: int | None = self.last + 1 if self.last else None
        for at, event in enumerate(events):
            if event.type == "stale":
                stales += 1
                lost, expected = False, event.number + 1
                continue
            if expected is not None and event.number != expected:
                kind = "repeats" if event.number < expected else "skips"
                problems.append(f"{kind}: {event.number} after {expected - 1}")
            expected = event.number + 1
            if not lost and (event.number not in full or full[event.number].json != event.json):
                lost = True
                if not any(later.type == "stale" for later in events[at:]):
                    there = full.get(event.number)
                    problems.append(f"{event.number} means two things: {event.json} and {there and there.json}")
            if lost:
                self.orphans += 1
                if event.type in MUST_BE_DURABLE:
                    problems.append(f"shown and lost: {event.json}")
        if stales > restarts:
            problems.append(f"{stales} times stale at {restarts} restarts")
        if events and expected is not None and expected <= newest:
            problems.append(f"events are missing at the end: {expected} to {newest}")
        self.stales += stales
        if expected is not None:
            self.last = expected - 1
        return [f"reader of {self.name}: {problem}" for problem in problems]


def _until(events: list[Seen], newest: int) -> tuple[list[Seen], list[Seen]]:
    """Split behind the last event that has this number or a smaller one."""
    end = next((at for at in reversed(range(len(events))) if events[at].number <= newest), -1) + 1
    return events[:end], events[end:]


@dataclass(slots=True)
class Versions:
    """Which text each ETag stood for."""

    texts: dict[str, str] = field(default_factory=dict)

    def check(self, etag: str, text: str) -> list[str]:
        """Return what is wrong if this version stood for another text before."""
        known = self.texts.setdefault(etag, text)
        return [] if known == text else [f"{etag} stood for {known[-200:]!r} and stands for {text[-200:]!r}"]
