"""The scripted model and the manual clock, which tests of agents rely on."""

import asyncio
from contextlib import aclosing

import pytest

from cfs.errors import Unavailable
from cfs.wire import Message, ToolCall, Usage
from cfs_agents.base.events import Retrying
from cfs_agents.loop.model import CallPiece, Chunk, CompleteResponse, Item, Model
from cfs_agents.main.testing import (
    ManualClock,
    ScriptedModel,
    ScriptOver,
    breaks_off,
    calls,
    garbles,
    raises,
    says,
    together,
)

USER = Message(role="user", content="Write a file.")
TOOL = {"type": "function", "function": {"name": "write_file"}}


async def heard(model: Model, *messages: Message, into: list[Item] | None = None) -> list[Item]:
    """All that one reply brings; `into` a list, where it is also after an error."""
    items = [] if into is None else into
    async for item in model.stream(messages or (USER,), [TOOL]):
        items.append(item)
    return items


async def reply(model: Model) -> CompleteResponse:
    last = (await heard(model))[-1]
    assert isinstance(last, CompleteResponse)
    return last


async def test_a_script_reads_like_the_conversation() -> None:
    model = ScriptedModel(
        [
            calls("write_file", path="a.txt", content="hello"),
            raises(Unavailable("the engine restarts")),
            says("I have written it.", thinking="Done, then."),
        ]
    )
    first = await reply(model)
    assert first.message.tool_calls == (
        ToolCall(id="call_1", name="write_file", arguments={"path": "a.txt", "content": "hello"}),
    )
    assert first.finish_reason == "tool_calls"
    with pytest.raises(Unavailable, match="restarts"):
        await reply(model)
    last = await reply(model)
    assert last.message == Message(role="assistant", content="I have written it.", thinking="Done, then.")
    assert last.finish_reason == "stop"
    model.check_finished()


async def test_what_was_asked_is_remembered() -> None:
    model = ScriptedModel([says("a"), says("b")])
    answer = Message(role="assistant", content="a")
    await heard(model, USER)
    await heard(model, USER, answer, USER)
    assert [len(asked.messages) for asked in model.asked] == [1, 3]
    assert model.asked[1].messages[1] == answer
    assert model.asked[1].last == USER
    assert model.asked[0].tools == (TOOL,)


async def test_a_script_that_is_over_says_where_the_conversation_was() -> None:
    model = ScriptedModel([says("a")])
    await heard(model)
    with pytest.raises(ScriptOver, match=r"1 lines are said.*question 2.*Write a file\."):
        await heard(model)


async def test_lines_that_were_not_said_are_found() -> None:
    model = ScriptedModel([says("a"), says("never")])
    await heard(model)
    with pytest.raises(ScriptOver, match=r"1 of 2 lines.*never"):
        model.check_finished()


async def test_pieces_are_cut_where_a_test_wants_them() -> None:
    """Thinking, text and arguments; together they are the whole."""
    line = together(says("abcde", thinking="xyz"), calls("f", a=1))
    pieces = await heard(ScriptedModel([line], cut=2))
    assert pieces[:-1] == [
        Chunk(thinking="xy"),
        Chunk(thinking="z"),
        Chunk("ab"),
        Chunk("cd"),
        Chunk("e"),
        Chunk(calls=(CallPiece(0, "call_1", "f"),)),
        Chunk(calls=(CallPiece(0, arguments='{"'),)),
        Chunk(calls=(CallPiece(0, arguments='a"'),)),
        Chunk(calls=(CallPiece(0, arguments=": "),)),
        Chunk(calls=(CallPiece(0, arguments="1}"),)),
    ]
    assert (await heard(ScriptedModel([says("one two")], cut=str.split)))[:-1] == [Chunk("one"), Chunk("two")]
    assert (await heard(ScriptedModel([says("one two")])))[:-1] == [Chunk("one two")]


async def test_several_calls_of_one_reply_have_ids_of_their_own() -> None:
    model = ScriptedModel([together(says("Two."), calls("f"), calls("g", b=2)), calls("h")])
    both = (await reply(model)).message
    assert both.content == "Two."
    assert [(call.id, call.name) for call in both.tool_calls] == [("call_1", "f"), ("call_2", "g")]
    assert (await reply(model)).message.tool_calls[0].id == "call_3"


async def test_a_garbled_call_is_told_as_a_server_would() -> None:
    found = await reply(ScriptedModel([garbles("f", '{"a": ')]))
    assert found.message.tool_calls[0].name == "f"
    assert "no JSON object" in found.broken["call_1"]


async def test_a_reply_may_break_off_and_begin_anew() -> None:
    """The next line is the same question's."""
    model = ScriptedModel([breaks_off("I hav", reason="lost", seconds=2), says("I have.")])
    assert (await heard(model))[:-1] == [Chunk("I hav"), Retrying("lost", 2), Chunk("I have.")]
    assert len(model.asked) == 1


async def test_an_error_may_come_after_some_text() -> None:
    items: list[Item] = []
    with pytest.raises(Unavailable):
        await heard(ScriptedModel([raises(Unavailable("gone"), after="so far")]), into=items)
    assert items == [Chunk("so far")]


async def test_usage_is_counted_in_words_or_given() -> None:
    model = ScriptedModel([says("four words are here"), says("x", usage=Usage(prompt_tokens=9, cached_tokens=8))])
    assert (await reply(model)).usage == Usage(prompt_tokens=3, completion_tokens=4)
    assert (await reply(model)).usage.cached_tokens == 8


async def test_a_delay_passes_by_the_clock() -> None:
    clock = ManualClock()
    model = ScriptedModel([says("late", delay=5)], clock=clock)
    asking = asyncio.create_task(heard(model))
    await clock.until_asleep()
    clock.advance(4.9)
    await asyncio.sleep(0)
    assert not asking.done()
    clock.advance(0.1)
    assert (await asking)[0] == Chunk("late")


async def test_a_delay_without_a_clock_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a clock"):
        await heard(ScriptedModel([says("late", delay=5)]))


async def test_a_reply_can_be_left() -> None:
    model = ScriptedModel([says("abc"), says("d")], cut=1)
    async with aclosing(model.stream([USER])) as items:
        assert await anext(items) == Chunk("a")
    assert (await reply(model)).message.content == "d"


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock = ManualClock(100)
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("late", 3))
        group.create_task(sleeper("early", 1))
        group.create_task(sleeper("now", 0))
        await clock.until_asleep(2)
        clock.advance(3)
    assert woken == ["now", "early", "late"]
    assert (clock.time(), clock.sleepers) == (103, 0)
    assert sorted(clock.slept) == [0, 1, 3]


async def test_a_cancelled_sleeper_is_gone() -> None:
    clock = ManualClock()
    sleeping = asyncio.create_task(clock.sleep(1))
    await clock.until_asleep()
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    assert clock.sleepers == 0


async def test_a_clock_that_jumps_holds_nobody_up() -> None:
    clock = ManualClock(jumps=True)
    await clock.sleep(60)
    assert (clock.time(), clock.slept) == (60, [60])
