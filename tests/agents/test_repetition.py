"""Repetition: of steps in cycles of one to eight, behind changing ids and times; and of words within a reply."""

import base64
import json
import random
from collections.abc import Callable, Iterable
from itertools import cycle, islice

import pytest

from cfs.wire import ToolCall
from cfs_agents.base.events import ToolResult
from cfs_agents.loop.repetition import LONGEST_CYCLE, SAME_ERRORS, RepeatedSteps, RepeatedText, ends_repeating, masked


def made(name: str, arguments: dict[str, object], result: str, *, ok: bool = True) -> tuple[ToolCall, ToolResult]:
    return ToolCall(id="1", name=name, arguments=arguments), ToolResult("1", name, result, ok, 0.0)


def see(watch: RepeatedSteps, name: str, arguments: dict[str, object], result: str, *, ok: bool = True) -> str | None:
    return watch.see([made(name, arguments, result, ok=ok)])


def first_found(steps: Iterable[tuple[str, str]]) -> tuple[int, str] | None:
    """How many steps it took to find something, and what."""
    watch = RepeatedSteps()
    for number, (name, result) in enumerate(steps, start=1):
        if (reason := see(watch, name, {}, result)) is not None:
            return number, reason
    return None


@pytest.mark.parametrize(
    ("names", "after", "told"),
    [
        ("A", 4, "A, 4 times"),
        ("AB", 6, "A, B, 3 times"),
        ("ABC", 9, "A, B, C, 3 times"),
        *[("ABCDEFGH"[:length], 3 * length, "3 times") for length in range(4, LONGEST_CYCLE + 1)],
    ],
)
def test_cycles_are_found(names: str, after: int, told: str) -> None:
    found = first_found((name, "same") for name in islice(cycle(names), 50))
    assert found is not None
    assert found[0] == after
    assert told in found[1]


def test_a_cycle_is_found_behind_other_steps() -> None:
    found = first_found([("X", "1"), ("Y", "2"), *[("A", "same"), ("B", "same")] * 3])
    assert found is not None
    assert found[0] == 8


def test_the_calls_of_one_reply_are_one_step() -> None:
    """Twenty calls in a reply are twenty calls, however alike; the same reply four times is a repetition."""
    watch = RepeatedSteps()
    step = [made("read_file", {"path": f"{number}.txt"}, "empty") for number in range(10)] * 2
    found = [watch.see(step) for _ in range(4)]
    assert found[:3] == [None] * 3
    assert found[3] is not None
    assert "read_file" in found[3]
    assert watch.see([]) is None


@pytest.mark.parametrize(
    "result",
    [
        "job {:08d}-aaaa-4bbb-8ccc-0123456789ab is not ready",
        "2026-11-22T20:{:02d}:11Z nothing new",
        "checked at 1{:09d}, nothing new",
        "exit status 1, 0.{:02d} s",
        "no commit abcdef{:02d}",
        "[process {} runs in the background]",
        '{{"status": "pending", "request_id": {}}}',
        '{{"status": "pending", "trace_id": "t-{}", "timestamp": "day {}"}}',
        '{{"body": "{{\\"x-request-id\\": \\"r{}\\", \\"state\\": \\"pending\\"}}"}}',
        "GET /poll?request_id={}&page=1 -> 204",
        "X-Request-Id: {}\nnot yet",
        "started_at: tick-{}, elapsed_ms: {}",
        '{{"state": "pending", "run_id": "run-{}", "attempt_id": {}}}',
        '{{"url": "/state?cache_buster={}&page=1", "cacheBuster": "x{}"}}',
        "GET /state?cb={}&rand=0{} -> 204",
    ],
)
def test_changing_ids_and_times_do_not_hide_it(result: str) -> None:
    """In results and in arguments."""
    assert first_found(("poll", result.replace("{}", str(n)).format(n)) for n in range(10)) is not None
    watch = RepeatedSteps()
    asked = [see(watch, "poll", {"what": result.replace("{}", str(n)).format(n)}, "pending") for n in range(10)]
    assert any(asked)


def test_telling_keys_of_arguments_do_not_hide_it() -> None:
    watch = RepeatedSteps()
    asked = [see(watch, "poll", {"job": 7, "meta": {"request_id": n, "timestamp": n}}, "pending") for n in range(5)]
    assert asked[3] is not None


@pytest.mark.parametrize(
    "result",
    [
        "{} % done",
        "{} of 90 tests pass",
        "line {}: something",
        "step {} is over",
        '{{"request_id": 7, "count": {}}}',
        '{{"timestamp": 7, "cursor": {}, "items": []}}',
    ],
)
def test_polling_whose_answer_changes_is_progress(result: str) -> None:
    assert first_found(("poll", result.format(number)) for number in range(60)) is None


def test_the_same_tool_with_other_arguments_is_progress() -> None:
    watch = RepeatedSteps()
    assert not any(see(watch, "write_file", {"path": f"{n}.txt"}, "done") for n in range(60))


def test_long_arguments_that_differ_at_their_end_are_progress() -> None:
    watch = RepeatedSteps()
    assert not any(see(watch, "write_file", {"content": "x" * 50_000 + str(n)}, "done") for n in range(20))


def test_the_same_call_with_other_results_between_is_progress() -> None:
    assert first_found([("A", "same"), ("A", "same"), ("A", "same"), ("A", "new")] * 2) is None


def test_the_same_error_is_found_whatever_is_tried() -> None:
    watch = RepeatedSteps()
    found = [see(watch, "run", {"try": n}, "Error: the disk is full", ok=False) for n in range(SAME_ERRORS)]
    assert found[:-1] == [None] * (SAME_ERRORS - 1)
    assert found[-1] is not None


def test_errors_that_differ_or_are_overcome_are_none() -> None:
    watch = RepeatedSteps()
    for number in range(60):
        text = "Error: full" if number % 3 else "fine"
        assert see(watch, "run", {"try": number}, text, ok=text == "fine") is None


def test_a_message_from_outside_begins_anew() -> None:
    watch = RepeatedSteps()
    for _ in range(10):
        for _ in range(3):
            assert see(watch, "A", {}, "same") is None
        watch.clear()


def test_masks_leave_words_and_numbers() -> None:
    assert masked("12 files, 3 of 4 tests, line 17, decade, defaced, 42, timeout: 5") == (
        "12 files, 3 of 4 tests, line 17, decade, defaced, 42, timeout: 5"
    )


# -- within a reply ---------------------------------------------------------------------------------------------------

_DICE = random.Random(1)
_REFRAIN = (
    "Row, row, row your boat,\nGently down the stream,\nMerrily, merrily, merrily, merrily,\nLife is but a dream.\n"
)
LOOPS = {
    "words": "I will read the file now. ",
    "a line": "- check the tests again\n",
    "two lines": "I'm sorry, I cannot do that.\nLet me try again.\n",
    "a paragraph": " ".join(f"word{number}" for number in range(100)) + "\n\n",
    "a page": " ".join(f"word{number}" for number in range(400)) + "\n\n",
    "one word": "and and ",
    "chinese": "我会再看一遍这个文件。",
    "zeros": "0",
}
FINE: dict[str, Callable[[], str]] = {
    "a table": lambda: "".join(f"| {n} | {n * n} | yes | no |\n" for n in range(400)),
    "an empty table": lambda: ("|" + "   |" * 20 + "\n") * 20,
    "code with similar lines": lambda: "".join(f"    self.field_{n} = field_{n}\n" for n in range(300)),
    "numbers": lambda: ", ".join(str(n) for n in range(5_000)),
    "the same numbers": lambda: "0, " * 1_000,
    "bytes": lambda: "0xFF, " * 600,
    "base64": lambda: base64.encodebytes(_DICE.randbytes(6_000)).decode(),
    "base64 of zeros": lambda: base64.encodebytes(bytes(2_500)).decode(),
    "headings": lambda: "".join(f"## Usage\n\nThe part {n} is used like this.\n\n## Example\n\n" for n in range(100)),
    "a poem": lambda: "".join(f"{_REFRAIN}\nVerse {n} is another one,\nof {n * 7} lines.\n\n" for n in range(30)),
    "a refrain, sung three times": lambda: _REFRAIN * 3,
    "rulers": lambda: ("=" * 120 + "\n") * 8,
    "a list": lambda: "".join(f"{n}. the file is fine\n" for n in range(300)),
    "json": lambda: json.dumps([{"id": n, "name": "x", "tags": []} for n in range(300)], indent=1),
    "empty cells": lambda: "<td></td>" * 300,
    "prose": lambda: " ".join(_DICE.choice(("the", "of", "a", "in", "to", "is", "was", "he")) for _ in range(3_000)),
}


def fed(text: str, size: int = 4) -> int | None:
    """After how many characters the watch has seen enough, if it has."""
    watch = RepeatedText()
    for start in range(0, len(text), size):
        if watch.feed(text[start : start + size]):
            return start + size
    return None


@pytest.mark.parametrize("size", [1, 4, 50])
@pytest.mark.parametrize("name", LOOPS)
def test_a_text_that_only_repeats_itself_is_found(name: str, size: int) -> None:
    """Behind whatever was said before."""
    loop = LOOPS[name]
    before = "This is what I found out about the files, in some words. " * 3
    found = fed(before + loop * (10_000 // len(loop)), size)
    assert found is not None
    assert found <= len(before) + max(1_200, 4_200 if name == "zeros" else 0, min(6 * len(loop), 2 * len(loop) + 2_200))


@pytest.mark.parametrize("size", [1, 4, 50])
@pytest.mark.parametrize("name", FINE)
def test_what_is_alike_is_no_repetition(name: str, size: int) -> None:
    assert fed(FINE[name](), size) is None
    assert not ends_repeating(FINE[name]()) or name == "a refrain, sung three times"


def test_a_repetition_that_ends_by_itself_is_none() -> None:
    """A few times are not enough, and what follows is new again."""
    text = "".join("Let me see. " * 20 + " ".join(str(_DICE.random()) for _ in range(40)) for _ in range(5))
    assert fed(text) is None


def test_the_end_of_a_cut_text_needs_less() -> None:
    """It would be gone on with, and a model that has begun to repeat itself goes on repeating."""
    assert ends_repeating("Well. " + "I will read the file now. " * 9)
    assert not ends_repeating("Well. " + "I will read the file now. " * 3)
    assert not ends_repeating("")


def test_a_long_text_takes_linear_time_and_bounded_memory() -> None:
    """What the watch remembers of a million characters is a window."""
    watch = RepeatedText()
    for number in range(100_000):
        assert not watch.feed(f"{number:09} ")
    assert len(watch._tail) <= 8_192
