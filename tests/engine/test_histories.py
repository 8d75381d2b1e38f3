"""The worker has the history that the server has, although a turn sends only what is new."""

import asyncio
import io
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cfs.errors import ContextTooLong, EngineError, WorkerCrashed
from cfs.wire import Message, Settings, ToolCall
from cfs_server.engine.contract import protocol
from cfs_server.engine.contract.interface import GenerationRequest
from cfs_server.engine.contract.protocol import KnownHistories, SentHistories
from cfs_server.engine.contract.reply_options import ReplyOptions
from tests.engine.support import ask, running, user
from tests.engine.test_supervisor import begin, kill_worker
from tests.pacing.gate import Gate

ARGUMENTS: list[dict[str, Any]] = [{"a": 1}, {"a": True}, {"a": 1.0}, {"a": 0.0}, {"a": -0.0}, {"b": 1, "a": 1}]


class Line:
    """Server and worker of one life, without the processes."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.sent = SentHistories(limit)
        self.known = KnownHistories()
        self.orders: list[protocol.Generate] = []

    def turn(self, key: str, messages: Sequence[Message]) -> list[Message]:
        """Send a turn; what the worker takes for its history is returned."""
        data, whole = b"", False
        while not whole:
            part, whole = self.sent.order(GenerationRequest("t", key, tuple(messages), Settings()))
            data += part
        history: list[Message] = []
        for frame in _frames(data):
            match frame:
                case protocol.DropHistory(dropped):
                    self.known.drop(dropped)
                case protocol.HistoryPart():
                    self.known.take(frame)
                case protocol.Generate():
                    self.orders.append(frame)
                    history = list(self.known.take(frame))
        assert self.sent.check_integrity() == []
        return history

    def forget(self, key: str) -> None:
        """Forget a key on both sides."""
        self.sent.forget(key)
        self.known.drop(key)


def _frames(data: bytes) -> Iterator[protocol.Frame]:
    stream = io.BytesIO(data)
    while (frame := protocol.read(stream)) is not None:
        yield frame


def some_message(dice: random.Random) -> Message:
    """Make one of few messages, so that equal ones come often; among them some that only seem equal."""
    if dice.random() < 0.3:
        arguments = dice.choice(ARGUMENTS)
        arguments = dict(reversed(arguments.items())) if dice.random() < 0.5 else arguments
        call = ToolCall(id="1", name="tool", arguments=arguments)
        return Message(role="assistant", content="", tool_calls=(call,))
    return Message(role=dice.choice(["user", "assistant"]), content=dice.choice(["one", "two", "你好", "x" * 700]))


def spelled(messages: Sequence[Message]) -> list[str]:
    """Write messages down: what the model could tell apart differs."""
    return [repr(message) for message in messages]


@pytest.mark.parametrize("limit", [1, 6_000, 1 << 30])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))])
def test_both_sides_have_the_same_history(seed: int, limit: int) -> None:
    """Random histories that grow, are edited, cut, copied, forgotten and dropped, and workers that start anew."""
    dice = random.Random(seed)
    line = Line(limit)
    histories: dict[str, list[Message]] = {}
    for _ in range(600):
        key = f"s{dice.randrange(6)}"
        history = histories.setdefault(key, [])
        action = dice.random()
        if action < 0.1 and history:
            history[dice.randrange(len(history))] = some_message(dice)
        elif action < 0.2:
            del history[dice.randrange(len(history) + 1) :]
        elif action < 0.3:
            histories[key] = history = list(dice.choice(list(histories.values())))
        elif action < 0.4:  # equal, but not the same objects
            histories[key] = history = [Message.model_validate(message.model_dump()) for message in history]
        elif action < 0.45:
            line.forget(key)
            continue
        elif action < 0.47:
            line = Line(limit)
        history.append(some_message(dice))
        assert spelled(line.turn(key, history)) == spelled(history)
    for key in histories:
        line.forget(key)
    assert len(line.known) == 0


def test_a_turn_sends_what_is_new() -> None:
    """However long the history is: with a thousand messages a turn takes some hundred bytes more for the next ones."""
    dice = random.Random(1)
    history = [some_message(dice) for _ in range(1000)]
    line = Line(1 << 30)
    line.turn("s", history)
    history += [user("and now?")]
    size = len(line.sent.order(GenerationRequest("t", "s", tuple(history), Settings()))[0])
    assert size < 1000
    line.turn("fork", history)
    assert [order.keep for order in line.orders] == [0, 0], "a new key has all of it, once"


def test_what_was_least_recently_used_goes_first() -> None:
    """The bound holds for the worker too, which is told; what goes on is sent in full again."""
    line = Line(3_500)
    for key in ("a", "b", "a", "c", "a", "b"):
        line.turn(key, [user("x" * 600), user("y")])
        assert len(line.known) <= 2
    assert [order.keep for order in line.orders] == [0, 0, 2, 0, 2, 0]


def test_a_request_that_is_no_json_changes_nothing() -> None:
    """It fails by itself; the next turn of its session goes on from what the worker has."""
    line = Line()
    line.turn("s", [user("one")])
    with pytest.raises(EngineError, match="no JSON"):
        line.sent.order(GenerationRequest("t", "s", (user("one"), user("two")), Settings(), ReplyOptions({"a": {1}})))
    assert line.turn("s", [user("one"), user("two")]) == [user("one"), user("two")]
    assert [order.keep for order in line.orders] == [0, 1]


def test_a_worker_that_lacks_what_it_should_keep_says_so() -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="3 messages"):
        KnownHistories().take(protocol.Generate("t", "s", 3, [], {}))


async def test_replies_follow_edits_forgets_and_crashes(tiny: Path, gate: Gate) -> None:
    """Through the real worker: each reply is that of a session which was sent as a whole."""
    async with running(tiny, flash_attention=False) as engine:
        history = [user("one " * 5)]
        for number in range(12):
            if number == 3:
                history[0] = user("another beginning")
            if number == 5:
                engine.forget("s")
            if number == 7:
                speaking = await begin(engine, gate, "first")
                await kill_worker(engine)
                gate.open()
                with pytest.raises(WorkerCrashed):
                    await speaking
            if number == 9:
                del history[3:]
            said = (await ask(engine, history, "s", max_tokens=6)).text
            assert said == (await ask(engine, history, max_tokens=6)).text
            history += [Message(role="assistant", content=said), user(f"and {number}")]


def test_a_long_history_comes_in_parts_and_begins_anew_when_it_is_forgotten() -> None:
    line = Line(limit=64 << 20)
    messages = [user(f"{n} " + "x" * 300) for n in range(12_000)]
    assert spelled(line.turn("a", messages)) == spelled(messages)
    wanted = GenerationRequest("t", "b", tuple(messages), Settings())
    parts = []
    for number in range(100):
        if number == 2:
            line.sent.forget("b")
            line.known.drop("b")
        data, whole = line.sent.order(wanted)
        assert len(data) < 1 << 20
        for frame in _frames(data):
            assert isinstance(frame, protocol.HistoryPart | protocol.Generate)
            parts.append(line.known.take(frame))
        if whole:
            break
    assert spelled(parts[-1]) == spelled(messages)
    assert number > 5
    assert line.sent.check_integrity() == []


async def test_turns_are_cancelled_and_workers_die_between_the_parts(tiny: Path) -> None:
    """A history of many parts, ended at any of them, leaves nothing behind and spoils nothing."""
    messages = [user(f"{n} " + "x" * 3_000) for n in range(2_000)]
    async with running(tiny) as engine:
        engine._context = 10_000_000, 1_000_000  # the bound must let it pass: what is tested comes behind that
        for parts in range(0, 6, 2):
            turn = asyncio.create_task(ask(engine, messages, "long", max_tokens=1))
            for _ in range(parts + 1):
                await asyncio.sleep(0)
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)
        turn = asyncio.create_task(ask(engine, messages, "long", max_tokens=1))
        await asyncio.sleep(0)
        await kill_worker(engine)
        with pytest.raises(ContextTooLong):
            await turn
        assert (await ask(engine, "hello", "other", max_tokens=2)).finished.reason == "length"
