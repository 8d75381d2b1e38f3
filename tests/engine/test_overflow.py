"""A chat does not die of its length (S5, S8): real sessions, a real worker, the embedded model in a small context."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cfs.errors import ContextTooLong
from cfs.wire import Message, Overflow, SettingsPatch
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.turns import TurnRequest, TurnResult
from cfs_server.engine.host.supervisor import LlamaEngine
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore
from tests.engine.support import collect, request, running, user

SMALL_TALK = ("Hello!", "How are you?", "Thank you!", "What can you do?", "Good morning!")
GREEDY = {"temperature": 0.0, "max_tokens": 24, "system": "My name is Alice."}


class Chat:
    """A session that is talked to, one turn after the other."""

    def __init__(self, store: SessionStore, engine: LlamaEngine, name: str = "chat") -> None:
        self.store = store
        self.engine = engine
        self.name = name

    @property
    def session(self) -> Session:
        return self.store.get(self.name)

    async def say(self, content: str) -> TurnResult:
        _, turn, _ = self.store.submit(self.name, TurnRequest(Message(role="user", content=content)))
        return await turn.result

    async def talk(self, turns: int) -> list[TurnResult]:
        """Talk about little, and ask for the name in every tenth turn."""
        return [await self.say("What is my name?" if n % 10 == 9 else SMALL_TALK[n % 5]) for n in range(turns)]

    def events(self, kind: str) -> list[LoggedEvent]:
        found = self.session.log.since(max(0, self.session.log.last - 2_000))
        assert isinstance(found, list)
        return [event for event in found if event.type == kind]

    def other(self, name: str) -> "Chat":
        return Chat(self.store, self.engine, name)


@asynccontextmanager
async def chat(demo: Path, overflow: Overflow, context: int = 384) -> AsyncIterator[Chat]:
    async with running(demo, context_tokens=context) as engine, SessionStore(engine) as store:
        store.create("chat", SettingsPatch.model_validate(GREEDY | {"overflow": overflow}))
        yield Chat(store, engine)
        store.check_integrity()


def check(talk: Chat, results: list[TurnResult], turns: int) -> None:
    """Nothing failed, nothing is missing, the name is known, and what was computed is used again."""
    assert [result.error for result in results] == [None] * turns
    history = talk.session.history.messages
    assert [message.role for message in history] == ["user", "assistant"] * turns
    assert [m.content for m in history[1::2]] == [result.reply for result in results]
    names = [result.reply for result in results[9::10]][1:]
    if talk.session.settings.overflow == "shift":  # summaries of so small a model are another matter
        assert sum("Alice" in reply for reply in names) >= 0.8 * len(names)
    shifts = talk.events("context.shifted")
    assert len(shifts) >= 2
    begins = [shift.data["begin"] for shift in shifts]
    assert begins == sorted(set(begins))
    assert all(history[begin].role == "user" for begin in begins)
    assert all(shift.data["messages"] > 0 and shift.data["tokens"] > 0 for shift in shifts)
    shifted = {shift.data["turn"] for shift in shifts}
    order = [event.data["turn"] for event in talk.events("turn.finished")]
    kept = [r.usage for r, turn in zip(results[-len(order) :], order, strict=True) if turn not in shifted]
    assert len(shifted) < len(order) / 4
    assert sum(usage.cached_tokens for usage in kept) > 0.8 * sum(usage.prompt_tokens for usage in kept)


@pytest.mark.parametrize("overflow", ["shift", "summarize"])
async def test_a_long_chat_goes_on(demo: Path, overflow: Overflow) -> None:
    async with chat(demo, overflow) as talk:
        check(talk, await talk.talk(60), 60)
        summaries = [shift.data.get("summary", "") for shift in talk.events("context.shifted")]
        assert all(summaries) if overflow == "summarize" else not any(summaries)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("overflow", ["shift", "summarize"])
async def test_500_turns(demo: Path, overflow: Overflow) -> None:
    """With the model's own context of 2,048 tokens, and a worker that is killed in the middle."""
    async with chat(demo, overflow, 0) as talk:
        results = await talk.talk(250)
        pid = (await talk.engine.stats()).worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        check(talk, results + await talk.talk(250), 500)


async def test_with_error_turns_fail_until_the_history_is_edited(demo: Path) -> None:
    async with chat(demo, "error") as talk:
        results = await talk.talk(40)
        failed = [result for result in results if result.reason == "error"]
        assert failed
        assert all("the model's context holds 384" in result.reply for result in failed)
        assert talk.events("context.shifted") == []
        talk.store.replace("chat", "User: Hello!\nAssistant: Hello!\n", "*")
        assert (await talk.say("What is my name?")).reason == "stop"


@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_with_error_500_turns(demo: Path) -> None:
    """Errors do not make the prompt longer: once the rest is edited away, all is well."""
    async with chat(demo, "error", 0) as talk:
        results = await talk.talk(500)
        failed = [number for number, result in enumerate(results) if result.reason == "error"]
        assert failed == list(range(failed[0], 500))
        talk.store.replace("chat", "User: Hello!\nAssistant: Hello!\n", "*")
        assert (await talk.say("What is my name?")).reason == "stop"


async def test_the_cut_survives_the_worker(demo: Path) -> None:
    """A new worker gets the messages from the cut on, not all of them, and nothing shifts anew."""
    async with chat(demo, "shift") as talk:
        await talk.talk(30)
        cut, shifts = talk.session.history.window.cut, len(talk.events("context.shifted"))
        assert cut > 0
        pid = (await talk.engine.stats()).worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        result = await talk.say("Hello!")
        assert result.reason == "stop"
        assert talk.session.history.window.cut - cut in (0, 10, 12)
        assert len(talk.events("context.shifted")) - shifts <= 1


async def test_a_copy_goes_on_where_the_session_is_and_an_earlier_one_anew(demo: Path) -> None:
    async with chat(demo, "shift") as talk:
        await talk.talk(30)
        cut = talk.session.history.window.cut
        talk.store.fork("chat", "copy")
        talk.store.fork("chat", "early", messages=6)
        copy, early = talk.other("copy"), talk.other("early")
        assert copy.session.history.window.cut == cut
        original, copied = await talk.say("Hello!"), await copy.say("Hello!")
        assert (copied.reply, copied.usage.prompt_tokens) == (original.reply, original.usage.prompt_tokens)
        assert copied.usage.cached_tokens >= 0.9 * copied.usage.prompt_tokens
        assert early.session.history.window.cut == 0
        assert (await early.say("Hello!")).reason == "stop"
        assert early.events("context.shifted") == []


async def test_an_edit_begins_anew(demo: Path) -> None:
    """All that fits is in the prompt again."""
    async with chat(demo, "shift") as talk:
        await talk.talk(30)
        text = talk.session.history.text
        assert talk.session.history.window.cut > 0
        talk.store.replace("chat", "".join(text.splitlines(keepends=True)[:6]), "*")
        assert talk.session.history.window.cut == 0
        result = await talk.say("What is my name?")
        assert result.reason == "stop"
        fresh = talk.other("fresh")
        talk.store.create("fresh", SettingsPatch.model_validate(GREEDY), talk.session.history.up_to(6))
        assert (await fresh.say("What is my name?")).usage.prompt_tokens == result.usage.prompt_tokens


async def test_a_message_that_is_too_long_by_itself_harms_no_other(demo: Path) -> None:
    async with chat(demo, "shift") as talk:
        await talk.say("Hello!")
        before = await talk.say("How are you?")
        for content in ("word " * 400, "x" * 500_000):
            failed = await talk.say(content)
            assert failed.error is not None
            assert failed.error.startswith("the message is too long by itself")
        after = await talk.say("Thank you!")
        assert after.reason == "stop"
        assert after.usage.cached_tokens > before.usage.prompt_tokens
        assert talk.events("context.shifted") == []
        assert len(talk.session.history) == 10


async def test_an_imported_history_of_any_length_gets_its_turn(demo: Path) -> None:
    async with chat(demo, "shift") as talk:
        talk.store.replace("chat", "User: Hello!\nAssistant: Hello! How can I help you?\n" * 3_000, "*")
        assert (await talk.say("What is my name?")).reason == "stop"
        (shift,) = talk.events("context.shifted")
        assert shift.data["begin"] + shift.data["messages"] > 5_900
        assert len(talk.session.history) == 6_002


async def test_the_engine_says_how_much_fits(demo: Path) -> None:
    """Asked directly it refuses and says what would do; a prompt of one exchange may take the reply's room."""
    async with running(demo, context_tokens=256) as engine:
        history = [user("word " * 40), Message(role="assistant", content="well")] * 9 + [user("Hello!")]
        asked = request(history, max_tokens=24)
        with pytest.raises(ContextTooLong) as caught:
            await collect(engine, asked)
        assert caught.value.fits is None
        with pytest.raises(ContextTooLong) as caught:
            await collect(engine, replace(asked, may_shorten=True))
        assert caught.value.fits is not None
        fitting = history[-(2 * caught.value.fits - 1) :]
        answer = await collect(engine, replace(asked, messages=tuple(fitting), may_shorten=True))
        assert answer.finished.usage.prompt_tokens <= 0.8 * 256
        alone = await collect(engine, replace(request("word " * 230), may_shorten=True))
        assert alone.finished.reason in ("stop", "length")
