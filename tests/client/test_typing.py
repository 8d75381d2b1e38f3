"""What type checkers say of programs that use the SDK: a typing error of a setting or an event is an error (C1, S9)."""

import subprocess
import sys
from pathlib import Path

import pytest

from cfs.contract.random_names import ADJECTIVES, ANIMALS, unique_name
from cfs.session.options import SessionOptions, TurnOptions
from cfs.wire import SettingsPatch, TurnSettings

_PROGRAM = """
import asyncio
from cfs import AsyncSession, Session, SessionOptions
from cfs.api import events
from cfs.transports.http import Client

session = Session("a", url="http://127.0.0.1:9")
options: SessionOptions = {{"temperature": 0.2, "stop": ["END"]}}
session.configure(**options)
session.configure(temperature=1, driver="agent", title=None, keep="90d")
session.send("hi", settings={{"max_tokens": 5}})
for event in Client("http://127.0.0.1:9").events(events()):
    if event.type == "turn.finished":
        print(event.data)


async def main() -> None:
    await AsyncSession("a").configure(seed=1)


asyncio.run(main())
{}
"""
MISTAKES = [
    ("", ""),
    ("session.configure(temprature=1)", "temprature"),
    ('session.configure(temperature="warm")', '"str"'),
    ('session.configure(driver="human")', "driver"),
    ('session.send("hi", settings={"max_token": 5})', 'No overload variant of "send"'),
    ('asyncio.run(AsyncSession("a").configure(sed=1))', "sed"),
    ('print([event for event in Client("x").events(events()) if event.type == "turn.finnished"])', "finnished"),
]


def test_type_checkers_find_typing_errors_of_settings_and_events(tmp_path: Path) -> None:
    """One run of mypy over a program for each mistake, and one without any."""
    for number, (line, _) in enumerate(MISTAKES):
        (tmp_path / f"program{number}.py").write_text(_PROGRAM.format(line))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, "."], cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    found = [[error for error in errors if error.startswith(f"program{n}.py")] for n in range(len(MISTAKES))]
    assert found[0] == [], done.stdout + done.stderr
    for (line, word), reports in zip(MISTAKES[1:], found[1:], strict=True):
        assert len(reports) == 1, (line, done.stdout)
        assert word in reports[0]


@pytest.mark.parametrize(("options", "model"), [(TurnOptions, TurnSettings), (SessionOptions, SettingsPatch)])
def test_the_options_are_the_settings(options: type, model: type[TurnSettings]) -> None:
    assert options.__annotations__.keys() | TurnOptions.__annotations__.keys() == model.model_fields.keys()


def test_names_of_sessions_can_be_read_and_are_unique() -> None:
    names = {unique_name() for _ in range(1_000)}
    assert len(names) == 1_000
    for name in names:
        adjective, animal, suffix = name.split("-")
        assert (adjective in ADJECTIVES, animal in ANIMALS, len(suffix)) == (True, True, 11)
    assert len(ADJECTIVES) * len(ANIMALS) * 31**11 >= 2**64
