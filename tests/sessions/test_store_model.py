"""Random interleavings of everything a store does, against a model of it that fits on a page."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cfs.errors import AlreadyExists as Exists
from cfs.errors import CfsError, Conflict, NotFound
from tests.sessions.support import running_store

NAMES = st.sampled_from(["a", "b", "a/x", "a/x/y", "b/x"])
WORDS = st.lists(st.sampled_from(["one", "two", "drei", "四"]), min_size=1, max_size=3).map(" ".join)
QUIET = 12
"""Turns of the event loop after which nothing moves any more while the engine is held."""


@dataclass
class Chat:
    """The model of a session: what was said, what waits, what is being said."""

    said: list[tuple[str, str]] = field(default_factory=list)
    queue: list[tuple[str, bool]] = field(default_factory=list)
    running: str | None = None
    partial: list[str] = field(default_factory=list)
    base: int = 0

    def advance(self) -> None:
        while self.running is None and self.queue:
            content, generate = self.queue.pop(0)
            self.base = len(self.said)
            self.said.append(("user", content))
            if generate:
                self.running, self.partial = content, []

    def end(self, reply: str) -> None:
        self.said.append(("assistant", reply))
        self.running = None
        self.advance()


class StoreMachine(RuleBasedStateMachine):
    """Each rule does the same to the store and to the model; the invariant compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.chats: dict[str, Chat] = {}
        self.keys: dict[str, str] = {}
        self.runner.run(self._open())

    async def _open(self) -> None:
        self.harness = await self.stack.enter_async_context(running_store())
        self.harness.engine.hold()

    def teardown(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def do(self, action: object, expected: type[CfsError] | None = None) -> None:
        """Run a plain call inside of the loop, let the loop settle, and compare how it ended."""

        async def run() -> CfsError | None:
            try:
                action()  # type: ignore[operator]
            except CfsError as error:
                return error
            finally:
                for _ in range(QUIET):
                    await asyncio.sleep(0)
            return None

        error = self.runner.run(run())
        assert type(error) is (expected or type(None)), error

    def chat(self, name: str) -> Chat:
        """Return the model of a session, made with its parents if it is new."""
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            self.chats.setdefault("/".join(parts[:depth]), Chat())
        return self.chats[name]

    def family(self, name: str) -> list[str]:
        return [other for other in self.chats if other == name or other.startswith(name + "/")]

    @rule(name=NAMES, words=WORDS, generate=st.booleans())
    def say(self, name: str, words: str, generate: bool) -> None:
        self.do(lambda: self.harness.say(name, words, generate=generate))
        chat = self.chat(name)
        chat.queue.append((words, generate))
        chat.advance()

    @rule(name=NAMES, queued=st.booleans(), cascade=st.booleans())
    def cancel(self, name: str, queued: bool, cascade: bool) -> None:
        known = name in self.chats
        self.do(lambda: self.harness.store.cancel(name, queued=queued, cascade=cascade), None if known else NotFound)
        for member in (self.family(name) if cascade else [name]) if known else []:
            chat = self.chats[member]
            if queued:
                chat.queue.clear()
            if chat.running is not None:
                chat.end(f"{''.join(chat.partial)} [Cancelled]".lstrip())

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.do(lambda: self.harness.store.delete(name), None if name in self.chats else NotFound)
        for member in self.family(name):
            del self.chats[member]

    @rule(name=NAMES, new=NAMES)
    def rename(self, name: str, new: str) -> None:
        expected: type[CfsError] | None = None
        if name not in self.chats:
            expected = NotFound
        elif new == name:
            pass
        elif new in self.chats:
            expected = Exists
        elif new.startswith(name + "/"):
            expected = Conflict
        self.do(lambda: self.harness.store.rename(name, new), expected)
        if expected is None and new != name:
            moved = {new + member.removeprefix(name): self.chats.pop(member) for member in self.family(name)}
            self.chat(new)
            self.chats |= moved

    @rule(name=NAMES, new=NAMES)
    def fork(self, name: str, new: str) -> None:
        expected = NotFound if name not in self.chats else Exists if new in self.chats else None
        self.do(lambda: self.harness.store.fork(name, new), expected)
        if expected is None:
            source = self.chats[name]
            self.chat(new).said = source.said[: source.base] if source.running else list(source.said)

    @rule(name=NAMES, words=WORDS)
    @precondition(lambda self: any(chat.running is None for chat in self.chats.values()))
    def edit(self, name: str, words: str) -> None:
        chat = self.chats.get(name)
        if chat is not None and chat.running is None:
            session = self.harness.store.get(name)
            self.do(lambda: self.harness.store.replace(name, f"User: {words}\n", session.etag))
            chat.said = []
            chat.queue.append((words, True))
            chat.advance()

    @rule()
    @precondition(lambda self: sum(chat.running is not None for chat in self.chats.values()) == 1)
    def one_token(self) -> None:
        self.do(lambda: self.harness.engine.step(1))
        (chat,) = (chat for chat in self.chats.values() if chat.running is not None)
        words = (chat.running or "").split()
        if len(chat.partial) == len(words):
            chat.end(" ".join(words))
        else:
            word = words[len(chat.partial)]
            chat.partial.append(word if not chat.partial else " " + word)

    @rule()
    def answer_everything(self) -> None:
        async def run() -> None:
            self.harness.engine.release()
            for name in self.chats:
                await self.harness.settled(name)
            self.harness.engine.hold()

        self.runner.run(run())
        for chat in self.chats.values():
            while chat.running is not None:
                chat.end(chat.running)

    @invariant()
    def store_and_model_agree(self) -> None:
        store = self.harness.store
        store.check_integrity()
        assert {session.id for session in store} == set(self.chats)
        for name, chat in self.chats.items():
            session = store.get(name)
            assert [(message.role, message.content) for message in session.history.messages] == chat.said
            assert [turn.message.content for turn in session.queue] == [content for content, _ in chat.queue]
            assert session.partial == (None if chat.running is None else "".join(chat.partial))


TestStore = StoreMachine.TestCase
TestStore.settings = settings(stateful_step_count=40)
