"""The export format of CFS: its schema, its versions, and that nothing of a tree is lost by it (C10, P)."""

import io
import json
import tarfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfs import api
from cfs.conversations.archive import json_schema
from cfs.transports.http import Client
from cfs.wire import Message, NamedSession, SettingsPatch, ToolCall
from tests.client.terminal import cfs, ended
from tests.conversations.support import imported
from tests.server.support import Process, serving

Json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False, width=32),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
calls = st.builds(ToolCall, id=words, name=words, arguments=st.dictionaries(words, Json, max_size=3))
messages = st.one_of(
    st.builds(Message, role=st.sampled_from(["system", "user"]), content=texts),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=texts,
        tool_calls=st.lists(calls, max_size=2).map(tuple),
        thinking=st.none() | texts.filter(bool),
    ),
    st.builds(Message, role=st.just("tool"), content=texts, tool_call_id=st.none() | words, name=st.none() | words),
)
LAST = Message(role="assistant", content="done")
"""So that the server has nothing to answer."""
patches: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 5),
        "system": texts.filter(str.strip),
        "title": words,
        "stop": st.lists(words, min_size=1, max_size=2),
        "seed": st.integers(0, 9),
        "keep": st.just("forever"),
        "budget": st.just("$5"),
    },
)


@st.composite
def sessions(draw: st.DrawFn, name: str) -> NamedSession:
    history = [*draw(st.lists(messages, max_size=5)), LAST]
    begin = draw(st.integers(1, 2**31))
    times = tuple(begin + number / 8 for number in range(len(history)))
    figures = {"tokens": draw(st.integers(0, 10**9)), "cost": draw(st.integers(0, 10**6)) / 1000}
    patch = SettingsPatch.model_validate(draw(patches))
    return NamedSession(id=name, settings=patch, messages=tuple(history), times=times, **figures)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Process, Process]]:
    with serving("--engine", "scripted") as first, serving("--engine", "scripted") as second:
        yield first, second


def contents(url: str, root: str) -> dict[str, tuple[object, ...]]:
    """What a server has of a tree besides the times of the sessions themselves."""
    return {
        name: (one.history, one.times, one.settings, one.tokens, one.cost, one.title, one.queue)
        for name, one in imported(url).items()
        if name.partition("/")[0] == root
    }


def members(file: Path) -> dict[str, Any]:
    with tarfile.open(file) as archive:
        found = {member.name: archive.extractfile(member) for member in archive if member.name.endswith(".json")}
        return {name: json.loads(data.read()) for name, data in found.items() if data is not None}


numbers = count()


@settings(max_examples=8)
@given(data=st.data())
def test_another_server_has_the_same_tree_after_an_import(
    data: st.DataObject, servers: tuple[Process, Process], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Messages with calls, results and thoughts, their times, settings, tokens and cost, of all sub-sessions."""
    first, second = servers
    root, file = f"tree{next(numbers)}", tmp_path_factory.mktemp("export") / "x.tar.gz"
    names = [root, f"{root}/coder", f"{root}/coder/tester", f"{root}/writer"]
    with Client(first.url) as client:
        client.call(api.import_sessions([data.draw(sessions(name)) for name in names]))
    assert ended(cfs(first.url, "export", str(file), root))[0] == 0
    assert ended(cfs(second.url, "import", str(file))) == (0, "", "cfs: 4 sessions imported\n")
    before = contents(first.url, root)
    assert len(before) == 4
    assert contents(second.url, root) == before
    validator = jsonschema_rs.validator_for(json_schema())
    for name, value in members(file).items():
        assert list(validator.iter_errors(value)) == [], name


def write(file: Path, **changes: Any) -> Path:
    """Write an export of one session, as a version before or after this one might."""
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    session = {"format": 1, "id": "a", "settings": {"temperature": 0.5}, "history": history} | changes
    with tarfile.open(file, "w") as archive:
        for name, value in (("sessions/a/session.json", session), ("index.json", {"format": 1})):
            member, data = tarfile.TarInfo(f"cfs-export/{name}"), json.dumps(value).encode()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file


def test_the_first_exports_open(tmp_path: Path) -> None:
    """They had no times, tokens and costs, and members that are no longer written."""
    file = write(tmp_path / "x.tar", state="idle", etag='"1"', queue=[], partial=None)
    with serving("--engine", "scripted") as server:
        assert ended(cfs(server.url, "import", str(file))) == (0, "", "cfs: 1 session imported\n")
        session = imported(server.url)["a"]
        assert ([message.content for message in session.history], session.settings.temperature) == (
            ["hi", "hello"],
            0.5,
        )


def test_what_a_later_version_adds_is_left_out_and_settings_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "x.tar", mood="good", settings={"temperature": 0.5, "wisdom": 3})
    with serving("--engine", "scripted") as server:
        code, _, said = ended(cfs(server.url, "import", str(file)))
        assert (code, said) == (
            0,
            "cfs: 'a': this version has no setting wisdom; it was left out\ncfs: 1 session imported\n",
        )
        assert imported(server.url)["a"].settings.temperature == 0.5


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "x.tar", format=2)
    with serving("--engine", "scripted") as server:
        code, _, said = ended(cfs(server.url, "import", str(file)))
        assert (code, said) == (1, f"cfs: {file} was written by a newer CFS; import it with that version\n")
        assert imported(server.url) == {}
