"""What type checkers say of programs that use the SDK: a typing error of a setting or an event is an error (C1, S9)."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from cfs.contract.options import SessionOptions, TurnOptions
from cfs.contract.random_names import ADJECTIVES, ANIMALS, unique_name
from cfs.state import event_types
from cfs.state.stream import EventName
from cfs.wire import SettingsPatch, TurnSettings

ROOT = Path(__file__).parents[2]
PYRIGHT = ROOT / "node_modules/.bin/pyright"
RECORDED = ROOT / "tests/fixtures/events"

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
    if event.type == "turn.failed":
        print(event.data["error"].upper())
    match event.type:
        case "message.added":
            print([call["name"] for call in event.data["message"].get("tool_calls", ())])
        case "turn.started" | "turn.interrupted":
            print(event.data["turn"].upper())
        case _:
            pass


async def main() -> None:
    await AsyncSession("a").configure(seed=1)


asyncio.run(main())
{}
"""
_EVENTS = 'event in Client("x").events(events())'
MISTAKES = [
    ("", ""),
    ("session.configure(temprature=1)", "temprature"),
    ('session.configure(temperature="warm")', "str|warm"),
    ('session.configure(driver="human")', "human|driver"),
    ('session.send("hi", settings={"max_token": 5})', "send"),
    ('asyncio.run(AsyncSession("a").configure(sed=1))', "sed"),
    (f'print([event for {_EVENTS} if event.type == "turn.finnished"])', "finnished"),
    (f'print([event.data["eror"] for {_EVENTS} if event.type == "turn.failed"])', "TypedDict"),
    (f'print([event.data["text"] + 1 for {_EVENTS} if event.type == "token"])', "str|operand"),
    (f'print([event.data["error"] for {_EVENTS} if event.type == "turn.finished"])', "TypedDict"),
]


def _environment() -> dict[str, str]:
    """A Node.js of the system, or the one that the extra `dev` installs."""
    return os.environ | {"PATH": f"{os.environ['PATH']}:{Path(sys.executable).parent}"}


def reports(checker: str, folder: Path) -> list[str]:
    """Run a type checker over the programs of a folder; its errors, a line each."""
    if checker == "mypy":
        command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(folder / "cache")]
    elif not PYRIGHT.exists():
        pytest.skip(f"{PYRIGHT} is missing: npm install")
    else:
        (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
        command = [str(PYRIGHT), "--pythonpath", sys.executable]
    done = subprocess.run([*command, "."], cwd=folder, capture_output=True, text=True, check=False, env=_environment())
    assert done.returncode == 1, done.stdout + done.stderr
    return [line.strip().removeprefix(f"{folder}/") for line in done.stdout.splitlines() if " error: " in line]


@pytest.mark.parametrize("checker", [pytest.param("mypy", marks=pytest.mark.slow), "pyright"])
def test_type_checkers_find_typing_errors_of_settings_and_events(tmp_path: Path, checker: str) -> None:
    """One run over a program for each mistake, and one without any."""
    for number, (line, _) in enumerate(MISTAKES):
        (tmp_path / f"program{number}.py").write_text(_PROGRAM.format(line))
    last_line = _PROGRAM.count("\n")
    errors = reports(checker, tmp_path)
    for number, (line, words) in enumerate(MISTAKES):
        of_program = [error for error in errors if error.startswith(f"program{number}.py:")]
        of_line = [error for error in of_program if error.startswith(f"program{number}.py:{last_line}:")]
        assert of_program == of_line
        assert any(re.search(words, error) for error in of_line) == bool(line), (line, of_line)


def data_type(kind: str) -> type:
    """The type of the data of an event, which is named after it: `turn.started` has `TurnStartedData`."""
    named: type = getattr(event_types, f"{kind.title().replace('.', '')}Data")
    return named


def differences(value: Any, kind: Any) -> Iterator[str]:
    """Where keys of a value, or of values in it, are not those of its type."""
    if get_origin(kind) is NotRequired:
        yield from differences(value, get_args(kind)[0])
    elif get_origin(kind) is list:
        for item in value:
            yield from differences(item, get_args(kind)[0])
    elif is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        yield from (f"{kind.__name__} lacks {key}" for key in value.keys() - hints.keys())
        yield from (f"{key} is not in {value}" for key in kind.__required_keys__ - value.keys())
        for key in value.keys() & hints.keys():
            yield from differences(value[key], hints[key])


def test_every_event_has_a_type_of_its_data() -> None:
    kinds = [kind for literal in get_args(EventName) for kind in get_args(literal) or [literal]]
    assert "connected" in kinds
    assert all(is_typeddict(data_type(kind)) for kind in kinds)


@pytest.mark.parametrize("file", sorted(RECORDED.glob("*.json")), ids=lambda file: file.stem)
def test_the_types_of_events_are_what_a_server_sends(file: Path) -> None:
    """The recorded events of a server have the keys that their types say."""
    for event in json.loads(file.read_text(encoding="utf-8"))["events"]:
        assert list(differences(event["data"], data_type(event["type"]))) == []


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
