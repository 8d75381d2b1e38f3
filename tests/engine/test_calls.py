"""Calls and thinking on their way from the worker to the reader of a turn (H4)."""

import asyncio
import json
from pathlib import Path
from typing import Any

from cfs_server.engine.contract.interface import Delta
from cfs_server.engine.contract.protocol import Ended, TextDelta, TurnDequeued
from cfs_server.engine.host.streams import BackpressureLimits, TurnStream
from tests.engine.support import Answer, ask, request, running

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "set_mode",
        "parameters": {"type": "object", "properties": {"mode": {"enum": ["on"]}}, "required": ["mode"]},
    },
}


def calls_of(answer: Answer) -> list[tuple[str | None, Any]]:
    """Name the calls, with their arguments."""
    return [(call.name, json.loads(call.arguments)) for delta in answer.deltas for call in delta.calls]


async def test_a_forced_call_is_made_whatever_the_model_would_say(tiny: Path) -> None:
    """Random weights say nothing of their own accord that is JSON."""
    async with running(tiny) as engine:
        for parallel in (True, False):
            answer = await ask(
                engine, "x", tools=(TOOL,), tool_choice="required", parallel_calls=parallel, max_tokens=200
            )
            assert calls_of(answer) == [("set_mode", {"mode": "on"})]
            assert (answer.text, answer.finished.reason) == ("", "tool_calls")
        assert (await engine.stats()).running == 0


async def test_tools_that_may_not_be_called_are_not_told_of(tiny: Path) -> None:
    async with running(tiny) as engine:
        told = await ask(engine, "x", tools=(TOOL,), max_tokens=2)
        hidden = await ask(engine, "x", tools=(TOOL,), tool_choice="none", max_tokens=2)
        none = await ask(engine, "x", max_tokens=2)
    assert told.finished.usage.prompt_tokens > hidden.finished.usage.prompt_tokens == none.finished.usage.prompt_tokens


async def test_tokens_of_texts_and_of_a_prompt_are_counted(tiny: Path) -> None:
    async with running(tiny) as engine:
        wanted = request("hello there")
        counts = await engine.count_tokens(["", "hello"], wanted.messages, [TOOL])
        usage = (await ask(engine, "hello there", tools=(TOOL,), max_tokens=1)).finished.usage
        assert (counts.texts[0], counts.prompt) == (0, usage.prompt_tokens)
        assert counts.texts[1] > 0
        assert (await engine.count_tokens(["a"])).prompt is None


def stream(*texts: str, thinking: bool = False, **changes: Any) -> TurnStream:
    """Make a turn that the worker has begun and that said something."""
    found = TurnStream(request("x", **changes))
    found.start(TurnDequeued("turn", 1, 0, thinking))
    for text in texts:
        found.add(TextDelta("turn", text, 1))
    return found


async def everything(turn: TurnStream) -> Delta:
    """Read a turn to its end, as one delta."""
    turn.finish(Ended("turn", "stop", 9))
    deltas = []
    while (delta := await turn.next()) is not None:
        deltas.append(delta)
    return Delta(
        "".join(delta.text for delta in deltas),
        sum(delta.tokens for delta in deltas),
        "".join(delta.thinking for delta in deltas),
        tuple(call for delta in deltas for call in delta.calls),
    )


async def test_a_reply_that_begins_in_thought_is_read_so() -> None:
    """The worker says that the prompt has opened it; without tools, too."""
    assert await everything(stream("hm", "</think>yes", thinking=True)) == Delta("yes", 2, "hm")
    assert await everything(stream("hm", "</think>yes")) == Delta("hm</think>yes", 2)


async def test_a_call_is_whole_when_it_is_told() -> None:
    turn = stream('<tool_call>{"name": "set_mode",', ' "arguments": {"mode": "on"}}', "</tool_call>", tools=(TOOL,))
    found = await everything(turn)
    assert (found.text, [(call.index, call.name) for call in found.calls]) == ("", [(0, "set_mode")])
    assert turn.reader.reason("stop") == "tool_calls"


async def test_a_turn_that_paused_goes_on_also_while_a_call_is_held_back() -> None:
    """The reader of the turn has seen nothing of it yet, but has taken it."""
    limits = BackpressureLimits(tokens=1)
    turn = stream('<tool_call>{"name": ', '"set_mode"', tools=(TOOL,))
    assert turn.pauses(limits)
    held = await asyncio.wait_for(turn.next(), 10)
    assert held == Delta("", 0)
    assert turn.resumes()
    assert not turn.resumes()
