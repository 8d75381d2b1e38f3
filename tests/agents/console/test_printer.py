"""What a person reads, to the letter (A8)."""

import contextlib
import io
import os
import pty
import re
from itertools import count
from typing import TextIO

import pytest

from cfs.wire import ToolCall, Usage
from cfs_agents.base.events import (
    AgentEvent,
    CallFinished,
    CallStarted,
    ContextShortened,
    ContextUpdated,
    Finished,
    Retrying,
    RoundStarted,
    Text,
    Thinking,
    ToolResult,
    TurnUsage,
    Warned,
)
from cfs_agents.main.console import ConsoleStreamHandler
from cfs_agents.main.formatting import ordinal, shortened

IDS = count(1)


def show(out: TextIO, *events: AgentEvent) -> None:
    console = ConsoleStreamHandler(out)
    for event in events:
        console.show(event)
    console.reset()


def printed(*events: AgentEvent) -> str:
    """What a console shows that is no terminal."""
    out = io.StringIO()
    show(out, *events)
    return out.getvalue()


def on_terminal(*events: AgentEvent) -> str:
    """What a terminal is sent."""
    screen, line = pty.openpty()
    seen = b""
    try:
        with os.fdopen(line, "w", encoding="utf-8") as out:
            show(out, *events)
        with contextlib.suppress(OSError):  # Linux says in this way that all was read
            while piece := os.read(screen, 65536):
                seen += piece
    finally:
        os.close(screen)
    return seen.decode().replace("\r\n", "\n")


def call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall(id=f"call_{next(IDS)}", name=name, arguments=arguments)


def done(made: ToolCall, text: str, *, ok: bool = True) -> CallFinished:
    return CallFinished(made, ToolResult(made.id, made.name, text, ok=ok, seconds=0.25))


READ = call("read_file", path="a.txt")
MAKE = call("execute_command", command="make")
LONG = "".join(f"line {number}\n" for number in range(1, 101))


def test_a_whole_task_reads_like_a_conversation() -> None:
    write = call("write_file", path="a.txt", content="one\ntwo\n")
    assert printed(
        RoundStarted(1),
        Thinking("A file,\nthen."),
        Text("I write"),
        Text(" it."),
        TurnUsage(Usage(prompt_tokens=1000, completion_tokens=20)),
        CallStarted(write),
        done(write, "created, 2 lines"),
        RoundStarted(2),
        Text("Done."),
        TurnUsage(Usage(prompt_tokens=1100, cached_tokens=1000, completion_tokens=2)),
        Finished("answered"),
    ) == (
        "~ A file,\n"
        "~ then.\n"
        "I write it.\n"
        "> write_file /workspace/a.txt (1st operation on this file)\n"
        "    content:\n"
        "      one\n"
        "      two\n"
        "< write_file /workspace/a.txt: ok, 0.25 s\n"
        "    created, 2 lines\n"
        "Done.\n"
        "[2 steps, 2,100 tokens read (1,000 of them known), 22 written]\n"
    )


def test_operations_are_counted_for_each_file_under_all_its_names() -> None:
    edit = call("edit_file", path="/workspace/a.txt", old="a", new="b")
    other = call("read_file", path="b.txt")
    shown = printed(*map(CallStarted, (READ, edit, other))).splitlines()
    assert shown == [
        "> read_file /workspace/a.txt (1st operation on this file)",
        '> edit_file /workspace/a.txt (2nd operation on this file) old="a" new="b"',
        "> read_file /workspace/b.txt (1st operation on this file)",
    ]


def test_a_command_is_shown_with_its_status() -> None:
    shown = printed(CallStarted(MAKE), done(MAKE, "built\n"))
    assert shown == "> execute_command\n    $ make\n< execute_command make: exit status 0, 0.25 s\n    built\n"
    failed = printed(done(MAKE, "no rule\n[exit status 2, 0.25 s]"))
    assert failed == "< execute_command make: exit status 2, 0.25 s\n    no rule\n"


def test_a_command_that_goes_on_has_no_status_yet() -> None:
    job = call("execute_command", command="serve", background=True)
    assert ": ok, 0.25 s" in printed(done(job, "[process 7 runs in the background]"))


def test_a_command_that_was_refused_has_none_either() -> None:
    assert "make: failed, 0.25 s\n    Error: no shell" in printed(done(MAKE, "Error: no shell", ok=False))


def test_long_output_is_shortened_in_its_middle() -> None:
    lines = printed(done(READ, LONG)).splitlines()[1:]
    assert [line.strip() for line in lines] == [
        *(f"line {number}" for number in range(1, 11)),
        "[... 85 lines ...]",
        *(f"line {number}" for number in range(96, 101)),
    ]


def test_what_is_a_line_too_long_is_shown_whole() -> None:
    """A remark in the place of one line would save nothing."""
    assert len(shortened("\n".join(map(str, range(16))))) == 16
    assert len(shortened("\n".join(map(str, range(17))))) == 16


def test_a_line_that_is_too_long_is_shortened_too() -> None:
    shown = printed(done(READ, "a" * 5000 + "z"))
    assert "[... 4,701 characters ...]" in shown
    assert len(shown) < 500


def test_the_same_output_is_not_shown_again() -> None:
    shown = printed(done(READ, LONG), done(READ, LONG), done(READ, "other"), done(READ, LONG))
    assert shown.count("line 1\n") == 1
    assert shown.count("[the same output as before: 100 lines]") == 2
    assert "other" in shown


def test_a_command_that_fails_the_same_way_in_another_time_has_the_same_output() -> None:
    shown = printed(done(MAKE, "no rule\n[exit status 2, 0.25 s]"), done(MAKE, "no rule\n[exit status 2, 0.31 s]"))
    assert shown.count("no rule") == 1


def test_the_same_output_of_another_tool_is_shown() -> None:
    shown = printed(done(READ, "hello"), done(MAKE, "hello"))
    assert shown.count("    hello\n") == 2


def test_a_new_conversation_counts_anew() -> None:
    out = io.StringIO()
    console = ConsoleStreamHandler(out)
    before: list[AgentEvent] = [CallStarted(READ), done(READ, "hello"), Text("half")]
    for event in before:
        console.show(event)
    console.reset()
    first = out.getvalue()
    assert first.endswith("half\n")
    after: list[AgentEvent] = [CallStarted(READ), done(READ, "hello"), Finished("answered")]
    for event in after:
        console.show(event)
    second = out.getvalue().removeprefix(first)
    assert "(1st operation on this file)" in second
    assert "    hello\n" in second


def test_context_updates_have_their_lines_and_number() -> None:
    assert printed(ContextUpdated(42, 3), ContextUpdated(1, 4)) == (
        "[context window number 3: 42 lines]\n[context window number 4: 1 line]\n"
    )


def test_a_retry_says_that_what_was_shown_is_void() -> None:
    assert printed(Text("One. Tw"), Retrying("the connection\nwas lost", 2), Text("One. Two.")) == (
        "One. \n"
        "[waiting to ask the model again: the connection was lost; its unfinished reply is discarded]\n"
        "[the model answers again]\n"
        "One. Two.\n"
    )


def test_however_often_a_model_is_asked_again_that_is_said_once() -> None:
    assert printed(
        Retrying("lost", 1), Retrying("lost", 2), Retrying("refused", 4), Text("One. "), Retrying("x", 1)
    ) == (
        "[waiting to ask the model again: lost]\n"
        "[the model answers again]\n"
        "One. \n"
        "[waiting to ask the model again: x; its unfinished reply is discarded]\n"
    )


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Finished("rounds"), "[stopped at the limit of steps]"),
        (Finished("interrupted"), "[interrupted]"),
        (Finished("failed", "the disk is full"), "[failed: the disk is full]"),
    ],
)
def test_an_end_without_an_answer_says_why(event: Finished, line: str) -> None:
    assert printed(event).splitlines()[0] == line


def test_calls_of_unknown_tools_are_shown_as_they_are() -> None:
    shown = printed(CallStarted(call("find", what="a", depth=2, exact=True, none=None, words=["x"])))
    assert shown == '> find what="a" depth=2 exact=true words=["x"]\n'
    assert printed(CallStarted(call("stop"))) == "> stop\n"


def test_odd_arguments_do_no_harm() -> None:
    """A model writes what it likes; the tool will refuse it."""
    for odd in (call("read_file", path=3), call("read_file", path=".."), call("execute_command", command=["a"])):
        assert printed(CallStarted(odd), done(odd, "Error: no", ok=False)).count(odd.name) == 2


def test_nothing_of_a_model_or_tool_steers_the_terminal() -> None:
    """Escapes are shown, in words, thinking, names, arguments, results, reasons; also on a pipe."""
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\rgone\x08\u202erorre\u2066\u2028"
    odd = call(f"tool{evil}", **{f"key{evil}": evil, "many": f"a\n{evil}"})
    said: list[AgentEvent] = [
        Text(evil),
        Thinking(evil),
        CallStarted(odd),
        done(odd, evil),
        Retrying(evil, 1),
        Finished("failed", evil),
    ]
    for shown in (printed(*said), on_terminal(*said)):
        styles = ("\x1b[0m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[36m")
        bare = re.sub("|".join(map(re.escape, styles)), "", shown)
        assert not set(bare) & {"\x1b", "\x07", "\x9b", "\r", "\x08", "\u202e", "\u2066", "\u2028"}
        assert "␛]0;owned␇" in shown


def test_windows_line_ends_are_line_ends() -> None:
    assert "␍" not in printed(done(READ, "a\r\nb\r\n"))


def test_a_terminal_gets_colours_and_dim_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = on_terminal(Thinking("hm\n"), Text("yes\n"), done(MAKE, "[exit status 2, 0.25 s]"))
    assert shown.startswith("\x1b[2mhm\x1b[0m\nyes\n")
    assert "\x1b[31m" in shown


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colours_where_they_are_not_welcome(variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable)
    assert on_terminal(Thinking("hm"), CallStarted(READ)).startswith("~ hm\n> read_file")


def test_ordinals() -> None:
    told = [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111, 1000)]
    assert told == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th", "1,000th"]


def test_warnings_and_shortened_conversations_are_told_where_they_happen() -> None:
    """In lines of their own, also in the middle of what a model says."""
    shown = printed(
        Text("I think"),
        Warned("the disk of /srv is nearly full:\n1,000 bytes left"),
        ContextShortened(24_000, 9_000),
        ContextShortened(24_000, 900, summarised=True),
    )
    assert shown.splitlines() == [
        "I think",
        "[warning: the disk of /srv is nearly full: 1,000 bytes left]",
        "[the conversation was shortened: 24,000 tokens to 9,000]",
        "[the conversation was summed up: 24,000 tokens to 900]",
    ]
    assert "\x1b[33m[warning" in on_terminal(Warned("look"))
