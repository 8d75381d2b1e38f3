"""The embedded model through the embedded engine: what a newcomer sees first (E5)."""

import asyncio
import json
import re
from pathlib import Path
from typing import Literal

import pytest

from cfs.wire import Message
from tests.engine.support import ask, running, user

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "My name is Alice.": ["Alice"],
    "Tell me a joke.": ["?"],
    "What is 7 + 8?": ["7 + 8 = 15"],
    "Hello! My favourite colour is green.": ["green"],
    "我叫小明。": ["小明"],
    "讲个笑话。": ["？"],
    "7 + 8 等于多少？": ["7 + 8 = 15"],
    "你好！我最喜欢绿色。": ["绿色"],
}
"""What the dashboard suggests to say to the embedded model, and what a right reply has in it."""
Style = Literal["chat", "transcript"]


@pytest.mark.parametrize("style", ["chat", "transcript"])
async def test_it_remembers_a_name_and_ends_its_turns(style: Style) -> None:
    """Both prompt styles; the second turn finds the first one's prompt and reply in the pool, token for token."""
    async with running(None) as engine:
        history = [user("My name is Alice.")]
        first = await ask(engine, history, "s", prompt_style=style, max_tokens=60)
        history += [Message(role="assistant", content=first.text), user("What is my name?")]
        second = await ask(engine, history, "s", prompt_style=style, max_tokens=60)
    assert "Alice" in second.text
    assert (first.finished.reason, second.finished.reason) == ("stop", "stop")
    spent = first.finished.usage.prompt_tokens + first.finished.usage.completion_tokens
    assert second.finished.usage.cached_tokens == pytest.approx(spent, abs=1)


async def test_chinese_leaves_in_whole_characters() -> None:
    """Characters that are several tokens are never shown in parts."""
    async with running(None) as engine:
        history = [user("我叫Alice。"), Message(role="assistant", content="你好，Alice！"), user("我叫什么？")]
        answers = await asyncio.gather(
            *(ask(engine, history, temperature=1.0, seed=seed, max_tokens=60) for seed in range(8)),
            ask(engine, history, max_tokens=60),
        )
    assert "你" in answers[-1].text
    for answer in answers:
        assert not any("\ufffd" in delta.text for delta in answer.deltas)


async def test_a_schema_is_kept() -> None:
    """The model has never seen JSON like this; the grammar makes it write some."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "known": {"type": "boolean"}},
        "required": ["name", "known"],
        "additionalProperties": False,
    }
    async with running(None) as engine:
        answer = await ask(engine, "My name is Alice.", json_schema=schema, max_tokens=200)
    value = json.loads(answer.text)
    assert set(value) == {"name", "known"}
    assert isinstance(value["known"], bool)


async def test_fifty_sessions_get_their_own_right_answer() -> None:
    """Eight run side by side, the others wait; none hears another's name."""
    names = ["Alice", "Bob", "Carol", "David", "Emma"] * 10
    async with running(None) as engine:
        alone = {name: (await ask(engine, f"My name is {name}.", max_tokens=40)).text for name in set(names)}
        answers = await asyncio.gather(*(ask(engine, f"My name is {name}.", max_tokens=40) for name in names))
    wrong = [answer.text for name, answer in zip(names, answers, strict=True) if answer.text != alone[name]]
    assert len(wrong) <= 1, wrong  # a near tie may turn out differently in other company


def test_the_dashboard_suggests_the_examples() -> None:
    folder = ROOT / "server/cfs_server/dashboard"
    function = (folder / "home.js").read_text(encoding="utf-8").partition("function examples")[2].partition("}")[0]
    chinese = (folder / "zh.js").read_text(encoding="utf-8")
    english = re.findall(r't\("([^"]+)"\)', function)
    translated = re.findall("|".join(rf'"{re.escape(text)}": "([^"]+)"' for text in english), chinese)
    assert [*english, *("".join(groups) for groups in translated)] == list(EXAMPLES)


async def test_the_examples_are_answered_rightly_whatever_the_seed() -> None:
    async with running(None) as engine:
        for text, parts in EXAMPLES.items():
            requests = [ask(engine, [user(text)], f"{text}{seed}", seed=seed, max_tokens=60) for seed in range(6)]
            replies = [answer.text for answer in await asyncio.gather(*requests)]
            assert [reply for reply in replies if not all(part in reply for part in parts)] == [], text
