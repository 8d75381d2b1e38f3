"""Repetition is found in cycles of one, two and three, behind changing ids and times; progress is none."""

from collections.abc import Iterable
from itertools import cycle, islice

import pytest

from cfs.wire import ToolCall
from cfs_agents.fibre.guards.repetition import SAME_ERRORS, Repetitions, masked
from cfs_agents.tools.results import ToolResult


def see(watch: Repetitions, name: str, arguments: dict[str, object], result: str, *, ok: bool = True) -> str | None:
    call = ToolCall(id="1", name=name, arguments=arguments)
    return watch.see(call, ToolResult("1", name, result, ok, 0.0))


def first_found(steps: Iterable[tuple[str, str]]) -> tuple[int, str] | None:
    """How many steps it took to find something, and what."""
    watch = Repetitions()
    for number, (name, result) in enumerate(steps, start=1):
        if (reason := see(watch, name, {}, result)) is not None:
            return number, reason
    return None


@pytest.mark.parametrize(
    ("names", "after", "told"),
    [("A", 4, "A, 4 times"), ("AB", 6, "A, B, 3 times"), ("ABC", 9, "A, B, C, 3 times")],
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


@pytest.mark.parametrize(
    "result",
    [
        "job {:08d}-aaaa-4bbb-8ccc-0123456789ab is not ready",
        "2026-11-22T20:{:02d}:11Z nothing new",
        "checked at 1{:09d}, nothing new",
        "exit status 1, 0.{:02d} s",
        "no commit abcdef{:02d}",
        "[process {} runs in the background]",
    ],
)
def test_changing_ids_and_times_do_not_hide_it(result: str) -> None:
    assert first_found(("poll", result.format(number)) for number in range(10)) is not None


@pytest.mark.parametrize("result", ["{} % done", "{} of 90 tests pass", "line {}: something", "step {} is over"])
def test_polling_whose_answer_changes_is_progress(result: str) -> None:
    assert first_found(("poll", result.format(number)) for number in range(60)) is None


def test_the_same_tool_with_other_arguments_is_progress() -> None:
    watch = Repetitions()
    assert not any(see(watch, "write_file", {"path": f"{n}.txt"}, "done") for n in range(60))


def test_the_same_call_with_other_results_between_is_progress() -> None:
    assert first_found([("A", "same"), ("A", "same"), ("A", "same"), ("A", "new")] * 2) is None


def test_the_same_error_is_found_whatever_is_tried() -> None:
    watch = Repetitions()
    found = [see(watch, "run", {"try": n}, "Error: the disk is full", ok=False) for n in range(SAME_ERRORS)]
    assert found[:-1] == [None] * (SAME_ERRORS - 1)
    assert found[-1] is not None


def test_errors_that_differ_or_are_overcome_are_none() -> None:
    watch = Repetitions()
    for number in range(60):
        text = "Error: full" if number % 3 else "fine"
        assert see(watch, "run", {"try": number}, text, ok=text == "fine") is None


def test_a_message_from_outside_begins_anew() -> None:
    watch = Repetitions()
    for _ in range(10):
        for _ in range(3):
            assert see(watch, "A", {}, "same") is None
        watch.clear()


def test_masks_leave_words_and_numbers() -> None:
    assert masked("12 files, 3 of 4 tests, line 17, decade, defaced, 42") == (
        "12 files, 3 of 4 tests, line 17, decade, defaced, 42"
    )
