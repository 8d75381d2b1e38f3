"""Whoever records the changes of a store can make the same store from them, with the same events (S11)."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from cfs.errors import CfsError, ContextTooLong
from cfs.wire import AgentWork, CallDecision, Message, NewQuestion, PlanStep, SettingsPatch, Usage
from cfs_server.domain import changes
from cfs_server.domain.changes import Record
from cfs_server.domain.quotas import StorageUsage, StoreLimits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.turns import Turn, TurnRequest
from cfs_server.engine.contract.interface import GenerationRequest
from cfs_server.engine.host.scripted import Script, ScriptedEngine, echo
from cfs_server.journal.records import decode, encode
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore
from tests.sessions.support import running_store

NAMES = st.sampled_from(["a", "b", "a/x", "a/x/y", "b/x"])
WORDS = st.lists(st.sampled_from(["one", "two", "drei", "四", "fail", "long"]), min_size=1, max_size=3).map(" ".join)
SETTINGS = st.sampled_from(
    [
        SettingsPatch(driver="agent"),
        SettingsPatch(driver="model"),
        SettingsPatch(overflow="summarize", system="Be brief."),
        SettingsPatch(overflow="shift", temperature=0.0),
    ]
)
VIEWS = st.lists(WORDS, max_size=3).map(
    lambda texts: SizedMessages.of(
        Message(role="user" if n % 2 == 0 else "assistant", content=text) for n, text in enumerate(texts)
    )
)
STEPS = 12
"""Turns of the event loop after which nothing moves any more while the engine is held."""


def script(request: GenerationRequest) -> Any:
    """Echo; fail where the message says so, and refuse what is long: more than four messages, or 2,000 characters."""
    last = request.messages[-1].content
    if len(last) > 2_000 and not last.startswith("Summarize"):
        raise ContextTooLong("the prompt is too long", fits=0)
    if "fail" in last:
        raise ZeroDivisionError
    if "long" in last and len(request.messages) > 4:
        raise ContextTooLong("the prompt is too long", fits=1, leaving=10)
    return echo(request)


def turn_dump(turn: Turn | None) -> object:
    return turn and (turn.request, turn.base, turn.state, turn.lease, list(turn.said))


def dump(store: SessionStore) -> object:
    """Everything that a store holds."""
    return {
        "sessions": [session_dump(session) for session in sorted(store, key=lambda session: session.id)],
        "account": (store.account.sessions, store.account.bytes),
        "roots": [session.id for session in store.page()],
    }


def session_dump(session: Session) -> object:
    history = session.history
    return (
        (session.id, session.key, session.nonce, session.account.owner, session.settings, session.deleted),
        (history.messages, history.size, history.cost, history.version, history.changed_at, history.window),
        (history.text, [history.size_at(version) for version in range(history.version + 1)]),
        ([turn_dump(turn) for turn in session.queue], turn_dump(session.running), session.state),
        list(session.questions.values()),
        session.work,
        (session.tokens, session.created_at, session.updated_at, session.etag),
        session.log.last,
    )


async def replayed(records: list[Record], limits: StoreLimits) -> object:
    """Replay the records, as they are stored, in another store, whose engine is not called; return its content."""
    engine = ScriptedEngine(echo)
    async with SessionStore(engine, limits) as store:
        accounts: dict[str, StorageUsage] = {"the server": store.account}
        stored = [decode(encode(seq, record)) for seq, record in enumerate(records, 1)]
        for before, after in zip(records, stored, strict=True):
            assert [event.json for event in after.events] == [event.json for event in before.events]
        store.replay(enumerate(stored, 1), lambda owner: accounts[owner])
        found = dump(store)
        assert engine.requests == []
        store.bus.check_integrity()
    return found


class ReplayMachine(RuleBasedStateMachine):
    """Does at random what can be done to sessions, and replays the record of it in the end and in between."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.records: list[Record] = []
        self.limits = StoreLimits(queued_turns=4, session_events=5_000, all_events=50_000)
        self.claimed: list[tuple[str, str, str]] = []
        self.runner.run(self._open())

    async def _open(self) -> None:
        typed: Script = script
        self.harness = await self.stack.enter_async_context(running_store(typed, self.limits, self.records))
        self.store = self.harness.store
        self.harness.engine.hold()

    def teardown(self) -> None:
        self.replay()
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def do(self, action: Callable[[], object]) -> None:
        """Run a plain call inside of the loop, refused or not, and let the loop settle."""

        async def run() -> None:
            with suppress(CfsError):
                action()
            for _ in range(STEPS):
                await asyncio.sleep(0)

        self.runner.run(run())

    @rule(name=NAMES, words=WORDS, generate=st.booleans(), view=st.none() | VIEWS, may_replace=st.booleans())
    def submit(self, name: str, words: str, generate: bool, view: SizedMessages | None, may_replace: bool) -> None:
        message = Message(role="user", content=words)
        request = TurnRequest(message, generate, view=view, may_replace=may_replace)
        self.do(lambda: self.store.submit(name, request))

    @rule(name=NAMES, patch=SETTINGS, transcript=st.sampled_from(["", "User: hi\n", "User: a\nAssistant: b\n"]))
    def create(self, name: str, patch: SettingsPatch, transcript: str) -> None:
        self.do(lambda: self.store.create(name, patch, transcript))

    @rule(name=NAMES, patch=SETTINGS)
    def change_settings(self, name: str, patch: SettingsPatch) -> None:
        self.do(lambda: self.store.get(name).change_settings(patch))

    @rule(name=NAMES, words=WORDS)
    def edit(self, name: str, words: str) -> None:
        self.do(lambda: self.store.replace(name, f"User: {words}\nAssistant: {words}\n", "*"))

    @rule(name=NAMES, new=NAMES, at=st.none() | st.integers(0, 6))
    def fork(self, name: str, new: str, at: int | None) -> None:
        self.do(lambda: self.store.fork(name, new, at))

    @rule(name=NAMES, new=NAMES)
    def rename(self, name: str, new: str) -> None:
        self.do(lambda: self.store.rename(name, new))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.do(lambda: self.store.delete(name))

    @rule(name=NAMES, queued=st.booleans(), cascade=st.booleans())
    def cancel(self, name: str, queued: bool, cascade: bool) -> None:
        self.do(lambda: self.store.cancel(name, queued=queued, cascade=cascade))

    @rule(name=NAMES)
    def claim(self, name: str) -> None:
        def claim() -> None:
            if (turn := self.store.get(name).claim(3_600)) is not None and turn.lease is not None:
                self.claimed.append((name, turn.id, turn.lease.secret))

        self.do(claim)

    @rule(data=st.data(), words=WORDS, whole=st.booleans())
    def update(self, data: st.DataObject, words: str, whole: bool) -> None:
        if self.claimed:
            name, turn, secret = data.draw(st.sampled_from(self.claimed))
            messages = [Message(role="assistant", content=words), Message(role="tool", content="42")] if whole else []
            self.do(lambda: self.store.get(name).update(turn, secret, text=words, messages=messages, lease_seconds=99))

    @rule(data=st.data(), reply=st.none() | WORDS, error=st.none() | WORDS)
    def finish(self, data: st.DataObject, reply: str | None, error: str | None) -> None:
        if self.claimed:
            name, turn, secret = data.draw(st.sampled_from(self.claimed))
            usage = Usage(prompt_tokens=3, completion_tokens=4)
            self.do(lambda: self.store.get(name).finish(turn, secret, reply=reply, error=error, usage=usage))

    @rule(data=st.data(), text=WORDS)
    def ask(self, data: st.DataObject, text: str) -> None:
        if self.claimed:
            name, _, secret = data.draw(st.sampled_from(self.claimed))
            self.do(lambda: self.store.get(name).ask(NewQuestion(claim=secret, text=text), "agent"))

    @rule(name=NAMES, data=st.data(), answer=st.sampled_from(["allow", "deny"]))
    def answer_a_question(self, name: str, data: st.DataObject, answer: str) -> None:
        session = self.store.find(name)
        if session is not None and session.questions:
            chosen = data.draw(st.sampled_from(sorted(session.questions)))
            self.do(lambda: session.answer_question(chosen, answer, "alice"))

    @rule(name=NAMES)
    def expire(self, name: str) -> None:
        def expire() -> None:
            session = self.store.get(name)
            if session.running is not None and session.running.lease is not None:
                session.expire(session.running)

        self.do(expire)

    @rule(name=NAMES)
    def abandon(self, name: str) -> None:
        self.do(lambda: self.store.get(name).abandon("the server was shut down"))

    @rule(tokens=st.integers(1, 4))
    def generate(self, tokens: int) -> None:
        self.do(lambda: self.harness.engine.step(tokens))

    @rule()
    def answer_everything(self) -> None:
        self.do(self.harness.engine.release)
        self.do(self.harness.engine.hold)

    @rule()
    def replay(self) -> None:
        self.store.check_integrity()
        expected = dump(self.store)
        assert self.runner.run(replayed(self.records, self.limits)) == expected


TestReplay = ReplayMachine.TestCase
TestReplay.settings = settings(stateful_step_count=40)


def kinds_of_change() -> set[type]:
    """All changes that there are."""
    classes = [each for _, each in inspect.getmembers(changes, inspect.isclass) if each.__module__ == changes.__name__]
    return {each for each in classes if hasattr(each, "apply") and each is not changes.SessionChange}


async def test_every_kind_of_change_can_be_made_again() -> None:
    """The record is replayed after each step, so that no later change hides what an earlier one lost."""
    records: list[Record] = []
    limits = StoreLimits()
    async with running_store(script, limits, records) as d:

        async def check() -> None:
            assert await replayed(records, limits) == dump(d.store)

        long = "User: a\nAssistant: b\n" * 5
        session = d.store.create("a", SettingsPatch(overflow="summarize"), long)
        await check()
        d.say("a", "a long one")
        await d.settled("a")
        await check()
        d.say("a", "long " * 1_000)  # too long by itself
        await d.settled("a")
        await check()
        d.store.fork("a", "a/copy")
        d.store.rename("a", "b")
        await check()
        d.engine.hold()
        d.say("b", "one two")
        d.say("b", "a note", generate=False)
        d.say("b", "three")
        await check()
        d.engine.step(1)
        while session.partial != "one":
            await session.log.broadcast.wait()
        await check()
        d.store.cancel("b")
        await check()
        d.store.cancel("b", queued=True)
        d.engine.release()
        await d.settled("b")
        await check()
        session.change_settings(SettingsPatch(driver="agent"))
        d.say("b", "build it")
        turn = session.claim(3_600)
        assert turn is not None
        assert turn.lease is not None
        await check()
        secret = turn.lease.secret
        work = AgentWork(plan=(PlanStep(text="build it"),))
        messages = [Message(role="tool", content="42")]
        decided = CallDecision(call="c", tool="execute_command", subject="make", verdict="allowed", digest="sha256:0")
        session.update(turn.id, secret, text="half", messages=messages, lease_seconds=9, work=work, decisions=[decided])
        await check()
        for number in range(20):
            asked = session.ask(NewQuestion(claim=secret, text=f"make {number}", directory="/srv"), "agent")
            await check()
            session.answer_question(asked.id, "always", "alice")
            await check()
        session.ask(NewQuestion(claim=secret, text="open at the end"), "agent")
        await check()
        session.expire(turn)
        await check()
        session.finish(turn.id, secret, reply="late", error=None, usage=Usage(prompt_tokens=1, completion_tokens=2))
        await check()
        d.store.replace("b", "User: hello\nAssistant: yes\n", session.etag)
        await check()
        d.store.delete("b/copy")
        await check()
    restarts = {changes.TurnInterrupted}  # test_restore.py
    assert {type(record.change) for record in records} == kinds_of_change() - restarts


async def test_a_long_view_of_a_history_is_recorded_whole() -> None:
    """Its event counts the messages only; the record holds them, and the messages are the same objects."""
    records: list[Record] = []
    limits = StoreLimits()
    view = SizedMessages.of(Message(role="user", content=f"message {n}") for n in range(1_000))
    async with running_store(limits=limits, records=records) as d:
        d.store.submit("a", TurnRequest(Message(role="user", content="and now?"), view=view))
        session = await d.settled("a")
        assert "history.replaced" in d.types("a")
        assert session.history.messages[:1_000] == view.messages
        assert all(one is other for one, other in zip(session.history.messages, view.messages, strict=False))
        assert await replayed(records, limits) == dump(d.store)


async def test_the_end_of_a_store_deletes_nothing() -> None:
    """A store that is made from the record of one that was closed has its sessions, as they were."""
    records: list[Record] = []
    limits = StoreLimits()
    async with running_store(limits=limits, records=records) as d:
        d.say("a/x", "hello")
        await d.settled("a")
        before = dump(d.store)
    assert await replayed(records, limits) == before
