"""A call of a tool always comes to a result, with a reason that a model can act on (A3)."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import PurePosixPath
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field
from structlog.testing import capture_logs

from cfs.wire import Message, ToolCall
from cfs_agents.tools import PendingCall, Registry, ToolDefinitionError, ToolError, ToolResult, tool
from cfs_agents.tools.results import text_of
from cfs_filesystem import NotFoundError
from tests.agents.tools.test_tool import Place, look


async def result_of(registry: Registry, name: str, /, **arguments: Any) -> ToolResult:
    """Call a tool as a model does."""
    return await registry.call(ToolCall(id="call-1", name=name, arguments=arguments))


@tool("Return a value")
def give(what: str) -> object:
    """Values of all kinds, by name."""

    @dataclass
    class Point:
        x: int
        when: date

    circle: list[object] = []
    circle.append(circle)
    values: dict[str, object] = {
        "text": "as it is\n",
        "nothing": None,
        "bytes": b"\x00\xff",
        "list": [1, "é", None],
        "model": Place(line=2),
        "dataclass": Point(1, date(2024, 1, 2)),
        "odd": {"path": PurePosixPath("/a"), "set": {1}, "bytes": b"\xff", "object": complex(1, 2)},
        "circle": circle,
        "surrogate": "a\ud800b",
        "surrogates": ["\ud800"],
    }
    return values[what]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("text", "as it is\n"),
        ("nothing", "done"),
        ("bytes", "[2 bytes of binary data, which is not shown]"),
        ("list", '[1,"é",null]'),
        ("model", '{"line":2,"title":"none"}'),
        ("dataclass", '{"x":1,"when":"2024-01-02"}'),
        ("odd", '{"path":"/a","set":[1],"bytes":"_w==","object":"1+2j"}'),
        ("circle", "[[...]]"),
        ("surrogate", "a?b"),
        ("surrogates", "['\\ud800']"),
    ],
)
async def test_whatever_a_tool_returns_is_told_as_text(what: str, text: str) -> None:
    """Text as it is, all else as JSON, and never something that cannot be sent."""
    result = await result_of(Registry([give]), "give", what=what)
    assert (result.text, result.ok, result.truncated) == (text, True, False)
    assert result.seconds >= 0
    result.text.encode()


async def test_result_becomes_the_message_that_answers_the_call() -> None:
    """With the id of the call, so that both stay together."""
    result = await result_of(Registry([give]), "give", what="text")
    assert result.message() == Message(role="tool", content="as it is\n", tool_call_id="call-1", name="give")


async def test_arguments_reach_the_function_in_their_types() -> None:
    """Numbers in quotes are read, models are made, defaults filled in."""
    result = await result_of(Registry([look]), "look", path=7, count="5", place={"line": "1"}, names=["a"])
    assert result.text == "7 5 up None ['a'] None line=1 title='none' False"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, '\'path\' is missing (text). The right form: {"path": "text"}'),
        ({"path": None}, "'path' must be text, not null"),
        ({"path": "a", "count": "x"}, "'count' must be a whole number, not \"x\""),
        ({"path": "a", "count": 1}, "'count' is not right: 1, input should be greater than or equal to 2"),
        ({"path": "a", "order": "no"}, '\'order\' must be one of "up", "down", not "no". The right form: '),
        ({"path": "a", "Names": []}, "there is no parameter 'Names', did you mean 'names'? (there are: path, count,"),
        ({"path": "a", "names": "a, b"}, '\'names\' must be a list, not "a, b". The right form: {"path": "text", '),
        (
            {"path": "a", "place": {}},
            '\'place.line\' is missing. The right form: {"path": "text", "place": {"line": 1}}',
        ),
        ({"path": "a", "names": [None]}, "'names[0]' is not right: null"),
        ({"path": "a", "limit": []}, "'limit' must be a whole number, not []"),
    ],
)
async def test_malformed_arguments_are_told_with_the_right_form(arguments: dict[str, Any], reason: str) -> None:
    """Which parameter, what was expected, an example; the function is not run."""
    result = await result_of(Registry([look]), "look", **arguments)
    assert not result.ok
    assert result.text.startswith("Error: look was not run: ")
    assert reason in result.text
    assert "\n" not in result.text


async def test_nested_arguments_that_a_model_sends_as_text_are_read() -> None:
    """Only where the signature allows no text."""

    @tool("Look at values")
    def show(places: list[Place], extra: dict[str, Any] | None, text: str, either: str | list[int]) -> str:
        return repr((places, extra, text, either))

    sent = {"places": '[{"line": "3"}]', "extra": '{"a": 1}', "text": "[1]", "either": "[1]"}
    result = await result_of(Registry([show]), "show", **sent)
    assert result.text == repr(([Place(line=3)], {"a": 1}, "[1]", "[1]"))
    refused = await result_of(Registry([show]), "show", **{**sent, "places": "line 3"})
    assert not refused.ok
    assert "'places' must be" in refused.text


async def test_example_of_the_right_form_is_itself_right() -> None:
    """A model that copies the example gets through."""

    @tool("many bounds")
    def bounded(
        a: Annotated[int, Field(gt=9)], b: list[Place], c: Annotated[str, Field(examples=["x@y"])], d: bool, e: float
    ) -> str:
        return f"{a} {b} {c} {d} {e}"

    registry = Registry([bounded])
    refused = await result_of(registry, "bounded")
    form = ToolCall.model_validate_json(
        '{"id": "1", "name": "bounded", "arguments": ' + refused.text.partition("right form: ")[2] + "}"
    )
    assert (await registry.call(form)).text == "10 [Place(line=1, title='none')] x@y True 1.5"


async def test_unknown_tool_is_told_with_what_there_is() -> None:
    """A near miss is guessed."""
    registry = Registry([look, give])
    assert (await result_of(registry, "lok")).text == (
        "Error: there is no tool 'lok', did you mean 'look'? (there are: look, give)."
        ' The right form of look: {"path": "text"}'
    )
    assert len((await result_of(registry, "x" * 100_000)).text) < 300


class _OddError(Exception):
    def __str__(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("use a file that exists"), "Error: use a file that exists"),
        (NotFoundError("there is no entry '/a'", "/a"), "Error: there is no entry '/a'"),
        (FileNotFoundError(2, "No such file or directory", "/a"), "Error: No such file or directory: /a"),
        (ValueError("broken"), "Error: ValueError: broken"),
        (TimeoutError("the other side is slow"), "Error: TimeoutError: the other side is slow"),
        (StopIteration("end"), "Error: RuntimeError: StopIteration: end"),
        (SystemExit(3), "Error: SystemExit: 3"),
        (RecursionError(), "Error: RecursionError"),
        (_OddError(), "Error: _OddError"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_whatever_a_tool_raises_is_a_result(error: BaseException, text: str) -> None:
    """Sync and async; never a crash, never a traceback."""

    @tool("fail")
    def fail() -> None:
        raise error

    @tool("fail")
    async def fail_later() -> None:
        raise error

    result = await result_of(Registry([fail]), "fail")
    assert (result.text, result.ok) == (text, False)
    if not isinstance(error, StopIteration):  # which no coroutine can raise
        assert (await result_of(Registry([fail_later]), "fail_later")).text == text


async def test_traceback_of_a_failure_goes_to_the_log() -> None:
    """Of a defect only: a reason that the tool gives is no defect."""

    @tool("fail")
    def fail(kindly: bool) -> None:
        raise ToolError("no") if kindly else ZeroDivisionError("defect")

    with capture_logs() as logs:
        await result_of(Registry([fail]), "fail", kindly=True)
        await result_of(Registry([fail]), "fail", kindly=False)
    failed = [entry for entry in logs if entry["event"] == "tool.failed"]
    assert [(entry["tool"], type(entry["exc_info"])) for entry in failed] == [("fail", ZeroDivisionError)]


async def test_coroutine_is_ended_when_its_time_is_over() -> None:
    """It is really cancelled, and says so."""
    ended = asyncio.Event()

    @tool("wait", timeout=0.01)
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    result = await result_of(Registry([wait]), "wait")
    assert (result.text, result.ok) == ("Error: wait took longer than 0.01 s; it was ended", False)
    assert ended.is_set()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a blocking tool of a test waits for; always opened in the end."""
    event = threading.Event()
    yield event
    event.set()


async def test_function_that_blocks_is_left_alone_when_its_time_is_over(gate: threading.Event) -> None:
    """Nothing can stop a thread, and the model is told so; the loop goes on meanwhile."""

    @tool("block", timeout=0.01)
    def block() -> None:
        gate.wait()

    result = await result_of(Registry([block]), "block")
    assert result.text == "Error: block took longer than 0.01 s; it cannot be stopped and may still be at work"


def test_function_that_hangs_does_not_keep_the_program_from_ending(gate: threading.Event) -> None:
    """The loop waits for no thread of a tool; a result that comes too late is dropped."""

    @tool("block", timeout=0.01)
    def block() -> None:
        gate.wait()

    async def program() -> bool:
        return (await result_of(Registry([block]), "block")).ok

    assert not asyncio.run(program())


async def test_cancelling_a_call_is_no_result(gate: threading.Event) -> None:
    """A caller that cancels an agent gets its task back at once."""

    @tool("block")
    def block() -> None:
        gate.wait()

    task = asyncio.create_task(result_of(Registry([block]), "block"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_sync_tools_do_not_hold_up_the_loop(gate: threading.Event) -> None:
    """Two calls of a blocking function run side by side."""
    both = threading.Barrier(2)

    @tool("meet")
    def meet() -> int:
        return both.wait(60)

    registry = Registry([meet])
    results = await asyncio.gather(result_of(registry, "meet"), result_of(registry, "meet"))
    assert sorted(result.text for result in results) == ["0", "1"]


async def test_long_result_is_cut_only_where_the_tool_says_so() -> None:
    """In the middle, and the result says how much is missing."""

    def text() -> str:
        """Give a long text."""
        return "a" * 1000 + "b" * 1000

    whole = await result_of(Registry([text]), "text")
    cut = await result_of(Registry([tool(most_characters=300)(text)]), "text")
    assert (len(whole.text), whole.truncated, cut.truncated) == (2000, False, True)
    assert cut.text == "a" * 200 + "\n[... 1,700 of 2,000 characters left out ...]\n" + "b" * 100


def test_registry_refuses_doubles_and_unknown_names() -> None:
    """Nothing is added when one of several names is taken."""
    registry = Registry([look])
    with pytest.raises(ToolDefinitionError, match="look"):
        registry.add(give, look)
    assert registry.names == ["look"]
    with pytest.raises(ToolDefinitionError, match="nothing"):
        registry.get("nothing")
    with pytest.raises(ToolDefinitionError, match="nothing"):
        registry.narrow(["look", "nothing"])


def test_a_model_sees_no_escape_sequences_and_control_characters() -> None:
    shown = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07a\x1b]8;;x\x1b\\b\x1bPq\x1b\\c\x1b(Bd\te\r\nf\x00\x08\x7f\x9bg"
    assert text_of(shown) == "red abcd\te\r\nfg"


async def test_narrowed_registry_has_the_rest_no_more() -> None:
    """What a sub-agent is given is all that it can call."""
    registry = Registry([look, give])
    narrow = registry.narrow(["give"])
    assert (narrow.names, len(registry), "look" in narrow) == (["give"], 2, False)
    assert [schema["function"]["name"] for schema in narrow.schemas()] == ["give"]
    refused = (await result_of(narrow, "look", path="a")).text
    assert refused == "Error: in this step you can call give only; call look again in the step after it"
    assert "there is no tool 'leave'" in (await result_of(narrow, "leave")).text


class Gate:
    """A gate that records the calls, and refuses those of some tools."""

    def __init__(self, *refused: str) -> None:
        self.passed: list[tuple[str, dict[str, Any]]] = []
        self._refused = refused

    async def __call__(self, pending: PendingCall) -> None:
        """Decide about one call."""
        await asyncio.sleep(0)
        self.passed.append((pending.tool.name, dict(pending.values)))
        if pending.call.name in self._refused:
            raise ToolError("a rule forbids it")


async def test_each_call_passes_the_gate_before_it_happens() -> None:
    """Also in a step with fewer tools; what is refused does not run, and the model reads why."""
    happened: list[str] = []

    @tool("Note a word")
    async def note(word: str, times: int = 1) -> str:
        happened.append(word * times)
        return "noted"

    gate = Gate()
    registry = Registry([note, look], gate=gate)
    assert (await result_of(registry, "note", word="a", times="2")).ok
    assert (await result_of(registry.narrow(["note"]), "note", word="b")).ok
    assert gate.passed[0] == ("note", {"word": "a", "times": 2})
    assert [name for name, _ in gate.passed] == ["note", "note"]
    refused = await result_of(Registry([note], gate=Gate("note")), "note", word="c")
    assert (refused.ok, refused.text, happened) == (False, "Error: a rule forbids it", ["aa", "b"])


async def test_a_call_that_cannot_run_does_not_reach_the_gate() -> None:
    gate = Gate()
    registry = Registry([give, look], gate=gate)
    assert not (await result_of(registry, "leave")).ok
    assert not (await result_of(registry, "give")).ok
    assert not (await result_of(registry.narrow(["give"]), "look", path="a")).ok
    assert gate.passed == []


async def test_the_time_limit_of_a_tool_begins_behind_the_gate() -> None:
    """A person who decides may take any time."""

    @tool("Return at once", timeout=0)
    async def quick() -> str:
        return "done"

    assert (await result_of(Registry([quick], gate=Gate()), "quick")).text == "done"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(["path", "count", "order", "place", "table", "x"]), _JSON, max_size=4))
def test_no_arguments_can_break_a_call(arguments: dict[str, Any]) -> None:
    """Whatever JSON a model writes, the answer is a result that can be sent."""
    result = asyncio.run(result_of(Registry([look]), "look", **arguments))
    result.message().model_dump_json().encode()
    assert result.ok or result.text.startswith("Error: look was not run: ")
