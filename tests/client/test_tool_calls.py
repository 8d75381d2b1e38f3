"""Calls are read from replies as literals, whatever a model writes (C8)."""

import keyword
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.contract.tool_calls import MOST_CALLS, ToolRequest, find_calls
from cfs.session.tools import FunctionTool, Toolbox

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES: st.SearchStrategy[str] = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name)
)
WORDS = st.text(st.characters(codec="utf-8")).filter(lambda text: "[CALL:" not in text)


def written(name: str, arguments: list[Any], keywords: dict[str, Any]) -> str:
    parts = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in keywords.items())]
    return f"[CALL:{name}({', '.join(parts)})]"


@given(NAMES, st.lists(VALUES, max_size=4), st.dictionaries(NAMES, VALUES, max_size=4), WORDS, WORDS)
def test_what_is_written_is_what_is_read(
    name: str, arguments: list[Any], keywords: dict[str, Any], before: str, after: str
) -> None:
    reply = f"{before}{written(name, arguments, keywords)}{after}"
    assert find_calls(reply) == [ToolRequest(name, tuple(arguments), keywords)]


@given(st.lists(st.tuples(NAMES, st.lists(VALUES, max_size=2)), max_size=5), WORDS)
def test_calls_are_read_in_their_order(calls: list[tuple[str, list[Any]]], between: str) -> None:
    reply = between.join(written(name, arguments, {}) for name, arguments in calls)
    assert [(call.name, list(call.arguments)) for call in find_calls(reply)] == calls


@given(st.text(st.sampled_from("[CALL:f(x)]'\"\\,=*1 {}\n#é")))
def test_no_text_breaks_the_reader(text: str) -> None:
    for call in find_calls(text):
        assert call.refusal is None or not call.arguments


@pytest.mark.parametrize(
    "arguments",
    [
        "x",
        "f()",
        "open('/etc/passwd')",
        "().__class__",
        "[i for i in range(9)]",
        "lambda: 1",
        "1 if True else 2",
        "f'{1}'",
        "*[1]",
        "**{'a': 1}",
        "x=y",
        "a=1, a=2",
        "(yield)",
        "x := 1",
        "2 ** 99",
        "'a' * 9",
        "1)(2",
        "1); (2",
        "__import__('os').system('true')",
        "'open",
        "9" * 5000,
        "(" * 500 + ")" * 500,
        "-" * 3000 + "1",
        "\0",
    ],
)
def test_what_is_no_literal_is_refused_and_not_run(arguments: str) -> None:
    calls = find_calls(f"[CALL:show({arguments})]")
    assert [call.name for call in calls] == ["show"]
    assert calls[0].refusal
    assert (calls[0].arguments, calls[0].keywords) == ((), {})


@pytest.mark.parametrize("text", ["", "CALL:f(1)", "[CALL:f]", "[CALL: f(1)]", "[call:f(1)]", "[CALL:1f(1)]"])
def test_what_is_no_call_is_text(text: str) -> None:
    assert find_calls(text) == []


def test_nested_arguments_that_a_model_sends_as_text_are_read() -> None:
    """By the annotations of the function, or by the schema that the tool has."""

    def add(numbers: list[int], options: dict[str, bool], note: str) -> str:
        """Add numbers."""
        return repr((numbers, options, note))

    def anything(**values: object) -> str:
        return repr(values)

    schema = {"type": "object", "properties": {"values": {"type": "array"}}}
    box = Toolbox([FunctionTool.of(add), FunctionTool("anything", "", anything, schema)])
    sent = {"numbers": "[1, 2]", "options": '{"fast": true}', "note": "[1]"}
    calls = [ToolRequest("add", keywords=sent, id="1"), ToolRequest("anything", keywords={"values": "[1]"}, id="2")]
    expected = ["([1, 2], {'fast': True}, '[1]')", "{'values': [1]}"]
    assert [result.content for result in box.run(calls)] == expected


def test_a_call_may_go_over_lines() -> None:
    assert find_calls("[CALL:write('a',\n  text='''x\ny''',  # why\n)]") == [
        ToolRequest("write", ("a",), {"text": "x\ny"})
    ]


def test_a_reply_full_of_calls_is_read_up_to_a_limit() -> None:
    assert len(find_calls("[CALL:f()]" * 1000)) == MOST_CALLS
    assert len(find_calls("[CALL:f(" * 1000)) == MOST_CALLS
    assert find_calls("[CALL:f('" + "x" * 20_000 + "')]")[0].refusal
