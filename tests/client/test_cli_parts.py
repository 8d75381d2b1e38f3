"""Parts of the command line that need no process: settings as they are typed, and remarks about events (S9, S10)."""

import os
import subprocess
import sys

import pytest

from cfs.cli.actions import send
from cfs.cli.base.output import print_error, visible
from cfs.cli.base.settings import read_settings, write_settings
from cfs.errors import InvalidSettings
from cfs.state.stream import StreamEvent
from cfs.wire import Settings, SettingsPatch


def test_settings_are_read_as_they_are_written() -> None:
    settings = Settings(temperature=0.1, stop=("a", "b"), system="[1]", seed=7)
    patch = read_settings(write_settings(settings), SettingsPatch)
    assert Settings().patched(patch) == settings


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("stop=END", ("END",)),
        ('stop=["a"]', ("a",)),
        ("stop=5", ("5",)),
        ("temperature=", None),
        ("system=null", "null"),
        ("driver=agent", "agent"),
    ],
)
def test_a_value_is_taken_as_it_is_meant(typed: str, value: object) -> None:
    patch = read_settings([typed], SettingsPatch)
    assert getattr(patch, typed.partition("=")[0]) == value
    assert patch.model_fields_set == {typed.partition("=")[0]}


@pytest.mark.parametrize("typed", ["temperature", "=1", "colour=red", "temperature=9", "temperature=warm", "seed=1.5"])
def test_what_is_no_setting_is_refused(typed: str) -> None:
    with pytest.raises(InvalidSettings):
        read_settings([typed], SettingsPatch)


def message(**fields: object) -> StreamEvent:
    """The event of a message."""
    return StreamEvent("message.added", {"message": {"role": "assistant", "content": ""} | fields})


@pytest.mark.parametrize(
    ("event", "remark"),
    [
        (StreamEvent("state.changed", {"state": "waiting_for_agent", "detail": "no agent attached"}), "no agent"),
        (StreamEvent("state.changed", {"state": "generating"}), None),
        (message(), None),
        (
            message(tool_calls=[{"id": "1", "name": "read_file", "arguments": {"path": "我"}}]),
            'read_file {"path": "我"}',
        ),
        (message(tool_calls=[{"id": "1", "name": "f", "arguments": {"a": "x" * 999}}]), "xxx..."),
        (StreamEvent("stale", {}), "events were lost"),
    ],
)
def test_what_needs_words_gets_them(event: StreamEvent, remark: str | None) -> None:
    said = send.remark(event)
    assert said is None if remark is None else said and remark in said


def test_control_characters_are_shown_and_other_text_is_left() -> None:
    assert visible("a\tb\n\x1b[2J\r\x7f我") == "a\tb\n␛[2J␍␡我"
    assert visible("a\u202ecba\u2028שלום") == "a\ufffdcba\ufffdשלום"


def test_an_error_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Its text may come from a server, an upstream or a file name."""
    print_error("model '\x1b]0;owned\x07' not found\n\x9b2J")
    assert capsys.readouterr().err == "cfs: model '␛]0;owned␇' not found \ufffd2J\n"


WAITING_FOR_QUESTIONS = """
import os
from cfs.cli.actions.terminal_questions import TerminalQuestions
from cfs.transports.http import Client

with Client("http://127.0.0.1:1") as client:
    questions = TerminalQuestions(client, "main")
    before = os.listdir("/proc/self/fd")
    for turn in range(20):
        with questions:
            pass
    print(len(os.listdir("/proc/self/fd")) - len(before))
"""


def test_waiting_for_questions_leaves_no_descriptor() -> None:
    """A chat waits once for each turn, at a terminal."""
    terminal, end = os.openpty()
    try:
        program = [sys.executable, "-c", WAITING_FOR_QUESTIONS]
        done = subprocess.run(program, stdin=end, stderr=end, stdout=subprocess.PIPE, check=True, timeout=60)
    finally:
        os.close(terminal)
        os.close(end)
    assert done.stdout == b"0\n"


def test_a_question_that_never_waits_opens_nothing() -> None:
    """What is made for each turn of a chat holds no descriptor before its block."""
    code = WAITING_FOR_QUESTIONS.replace("with questions:", "if TerminalQuestions(client, 'main'):")
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stdout == b"0\n"
