"""What a reply says does not depend on how it was cut, and nothing of it is lost (H4, tool calls of local models)."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cfs_server.engine.chat.reply_parser import ReplyReader, new_call_id

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "count": {"type": "integer"}, "deep": {"type": "object"}},
            },
        },
    },
    *({"type": "function", "function": {"name": name}} for name in ("a", "b")),
]


@dataclass(frozen=True)
class Read:
    """Everything that a reader said."""

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()


def read(pieces: Sequence[str], *, tools: bool = True, opened: bool = False, most: int | None = None) -> Read:
    """Feed the pieces of a reply, and put together what comes out; arguments are shown as sorted JSON."""
    reader = ReplyReader(TOOLS if tools else (), most_calls=most)
    if opened:
        reader.open()
    found = [*(reader.feed(piece, 1) for piece in pieces), reader.finish()]
    deltas = [delta for delta in found if delta is not None]
    assert all(delta.text or delta.thinking or delta.calls for delta in deltas)
    assert sum(delta.tokens for delta in deltas) <= len(pieces)
    calls = [call for delta in deltas for call in delta.calls]
    assert [call.index for call in calls] == list(range(len(calls)))
    return Read(
        "".join(delta.text for delta in deltas),
        "".join(delta.thinking for delta in deltas),
        tuple((call.name or "", json.dumps(json.loads(call.arguments), sort_keys=True)) for call in calls),
    )


def call(name: str, **arguments: object) -> tuple[str, str]:
    """What `read` shows of a call."""
    return name, json.dumps(arguments, sort_keys=True)


READ_A = call("read", path="a")

FORMS = [
    ('<tool_call>{"name": "read", "arguments": {"path": "a"}}</tool_call>', [READ_A]),
    ('<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>', [READ_A]),
    ('<tool_call>{"arguments": "{\\"path\\": \\"a\\"}", "name": "read"}</tool_call>', [READ_A]),
    ('<tool_call>{"name": "read", "arguments": {"path": "a"}}', [READ_A]),  # unclosed at the end of the reply
    ('<tool_call>{"name": "read"}</tool_call>', [call("read")]),
    ('<tool_call>{"name": "read", "arguments": {"path": "a"}}\n{"name": "b"}</tool_call>', [READ_A, call("b")]),
    ('<tool_call>{"name": "a"}</tool_call>\n<tool_call>{"name": "b"}</tool_call>', [call("a"), call("b")]),
    ('<tool_call>{"name": "read", "arguments": {"path": "</tool_call>\\" }{"}}</tool_call>',
     [call("read", path='</tool_call>" }{')]),
    ('<tool_call>{"name": "read", "arguments": {"path": "two\nlines"}}</tool_call>', [call("read", path="two\nlines")]),
    ("<tool_call>\n<function=read>\n<parameter=path>\n3\n</parameter>\n<parameter=count>\n3\n</parameter></function></tool_call>",
     [call("read", path="3", count=3)]),
    ('{"name": "read", "arguments": {"path": "a"}}', [READ_A]),
    ('{"name": "read", "parameters": {"path": "a"}}', [READ_A]),
    ('{"type": "function", "function": {"name": "read", "parameters": {"path": "a"}}}', [READ_A]),
    ('[{"name": "read", "arguments": {"path": "a"}}, {"name": "b", "arguments": {}}]', [READ_A, call("b")]),
    ('```json\n{"name": "read", "arguments": {"path": "a"}}\n```', [READ_A]),
    ('```\n{"name": "read", "arguments": {"path": "a"}}', [READ_A]),
    ("[CALL:read('a')]", [READ_A]),
    ("[CALL:read(path='a', count=-2)]", [call("read", path="a", count=-2)]),
    ("[CALL:read({'path': 'a'})]", [READ_A]),
    ("[CALL:read('a', 1, {}, 4)]", [call("read", path="a", count=1, deep={}, argument3=4)]),
    ("[CALL:read('x)]y')]", [call("read", path="x)]y")]),
    ("[CALL:other(1)]", [call("other", argument0=1)]),
    ('[TOOL_CALLS][{"name": "read", "arguments": {"path": "a"}}]', [READ_A]),
    ('[TOOL_CALLS]read[ARGS]{"path": "a"}', [READ_A]),
    ('[TOOL_CALLS]read[CALL_ID]abc123xyz[ARGS]{"path": "a"}', [READ_A]),
    ('[TOOL_CALLS]a{}[TOOL_CALLS]b{}', [call("a"), call("b")]),
    ('<|python_tag|>{"name": "read", "parameters": {"path": "a"}}', [READ_A]),
    ('<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}', [call("a"), call("b")]),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "calls"), FORMS)
def test_forms_of_calls(reply: str, calls: list[tuple[str, str]]) -> None:
    """As one piece, and character by character."""
    assert read([reply]) == read(list(reply)) == Read(calls=tuple(calls))


@pytest.mark.parametrize(("reply", "calls"), FORMS)
def test_without_tools_nothing_is_a_call(reply: str, calls: list[tuple[str, str]]) -> None:
    assert read([reply], tools=False) == Read(reply)


@pytest.mark.parametrize(("reply", "calls"), FORMS)
def test_text_before_and_behind_a_call_stays_text(reply: str, calls: list[tuple[str, str]]) -> None:
    """But for plain JSON, which is a call only where a reply begins with it."""
    plain = reply[0] == "{" or reply.startswith("[{")
    around = f"First.\n{reply}\n\nThen, `this`."
    whole = read([around])
    assert read(list(around)) == whole
    assert whole.calls == (() if plain else tuple(calls))
    assert "".join(whole.text.split()) == "".join((around if plain else "First. Then, `this`.").split())


NO_CALLS = [
    '<tool_call>{"name": "read", "arguments": {"path": }}</tool_call> and more',
    '<tool_call>{"name": 5}</tool_call>',
    '<tool_call>{"name": "read", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "read", "arguments": {"path": "cut off he',
    '<tool_call>{"name": "read", "arguments": {"n": NaN}}</tool_call>',
    '<tool_call>{"name": "read", "arguments": {"path": "\\ud800"}}</tool_call>',
    "<tool_call></tool_call>",
    "<tool_call>",
    "<tool_cal",
    "a < b, a <t",
    '{"answer": 42}',
    '{"name": "Ada", "age": 36}',
    '{"name": "Ada"}',
    '{"name": "read", "arguments": {}, "why": "because"}',
    '{"name": "unknown", "arguments": {}}',
    '[{"name": "read", "arguments": {}}, {"name": "unknown", "arguments": {}}]',
    '```json\n{"name": "unknown", "arguments": {}}\n```',
    '{"name": "read", "arguments": {"path": "cut off',
    "{",
    "[1, 2]",
    '[{"name": "read", "arguments": {}}, 3]',
    "```python\nprint()\n```\nDone.",
    '```json\n{"answer": 42}\n```',
    'not a fence: ```json\n{"name": "read", "arguments": {}}',
    "[CALL:read(open('x'))]",
    "[CALL:read(b'x')]",
    "[CALL:read({1, 2})]",
    "[CALL:read('a'",
    "[CALL:read('a', path='b')]",
    "[CALL:9()]",
    "[CALL]",
    "[TOOL_CALLS] no, nothing",
    "[TOOL_CALLS]read[ARGS]{",
    "<|python_tag|>print(1)",
    '<tool_call>' + "[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("reply", NO_CALLS)
def test_what_is_no_call_comes_out_as_text(reply: str) -> None:
    """Malformed, cut off, or only similar: not a character is lost."""
    cut = [reply[place : place + 7] for place in range(0, len(reply), 7)]
    assert read([reply]) == read(cut) == Read(reply)


def test_text_is_held_back_no_longer_than_needed() -> None:
    """What can no longer become a call leaves at once."""
    reader = ReplyReader(TOOLS)
    said = []
    for piece in ["{", '"', "an", "swer", '": 1', " <", "tool", "box>", " [C", "A", "B", "]", "\n``", "`p"]:
        delta = reader.feed(piece)
        said.append(delta.text if delta else "")
    assert said == ["", "", '{"an', "swer", '": 1', "", "", " <toolbox>", "", "", " [CAB", "]", "", "\n```p"]


def test_thinking_is_kept_apart() -> None:
    """At the beginning only, also when the prompt has opened it; unclosed, all is thinking."""
    assert read(["<think>\nso", "\n</think>\n\nyes"]) == Read("yes", "so")
    assert read(["<think>so</think>", '<tool_call>{"name": "a"}</tool_call>']) == Read("", "so", (call("a"),))
    assert read(["so\n</thi", "nk>yes"], opened=True) == Read("yes", "so")
    assert read(["<think>so</think>yes"], opened=True) == Read("yes", "so")
    assert read(["so, it"], opened=True) == Read("", "so, it")
    assert read(["a <think>b</think>"]) == Read("a <think>b</think>")
    assert read(["<think>so</think>yes"], tools=False) == Read("yes", "so")
    call_a = '<tool_call>{"name": "a"}</tool_call>'
    assert read([f"<think>so</think>{call_a}\n<think>now", "</think>yes"]) == Read("yes", "sonow", (call("a"),))
    assert read([f"so</think>{call_a}yes"], opened=True) == Read("yes", "so", (call("a"),))
    assert read(['<think>{"name": "a", "arguments": {}}</think>']) == Read("", '{"name": "a", "arguments": {}}')


def test_a_reply_is_over_after_the_most_calls() -> None:
    """`parallel_tool_calls=false`: what follows the one call is not even read."""
    reply = '{"name": "a", "arguments": {}}\n{"name": "b", "arguments": {}} text'
    assert read([reply], most=1) == read(list(reply), most=1) == Read(calls=(call("a"),))
    reader = ReplyReader(TOOLS, most_calls=1)
    reader.feed(reply)
    assert (reader.full, reader.reason("cancelled")) == (True, "tool_calls")


def test_the_reason_of_the_end_names_the_calls() -> None:
    """A reply that was cut off stays one that was cut off."""
    reader = ReplyReader(TOOLS)
    assert reader.reason("stop") == "stop"
    reader.feed('<tool_call>{"name": "a"}</tool_call>')
    assert [reader.reason(reason) for reason in ("stop", "length", "cancelled")] == [
        "tool_calls",
        "length",
        "cancelled",
    ]


def test_ids_are_nine_letters_and_digits() -> None:
    """Templates of some models refuse any other."""
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch("[A-Za-z0-9]{9}", each) for each in ids)


PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<", "</", "[CALL:", "[CALL:read(", "'a'", ")]",
    "[TOOL_CALLS]",
    "[ARGS]", "[CALL_ID]", "<|python_tag|>", "```", "```json", "`", "\n", " ", "{", "}", "[", "]", ";", ",", '"', "\\",
    ":",
    '"name"', '"arguments"', '"read"', '{"name": "read", "arguments": {"path": "a"}}', '{"name": "b"}', "read", "é",
    "你",
    "<function=read>", "<parameter=path>", "</parameter>", "</function>", "path='a'",
]  # fmt: skip
replies = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=14).map("".join)
cuts = st.lists(st.integers(0, 200), max_size=12)


def pieces_of(reply: str, places: list[int]) -> list[str]:
    """Cut a reply at some places."""
    ends = sorted({min(place, len(reply)) for place in places} | {len(reply)})
    return [reply[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@given(replies, cuts, st.booleans(), st.booleans())
@example('<tool_call>{"name": "b"}</tool_call>', list(range(40)), True, False)
def test_what_is_read_does_not_depend_on_the_cuts(reply: str, places: list[int], tools: bool, opened: bool) -> None:
    whole = read([reply], tools=tools, opened=opened)
    assert read(pieces_of(reply, places), tools=tools, opened=opened) == whole
    assert read(list(reply), tools=tools, opened=opened) == whole


@given(replies, cuts)
def test_a_reply_without_calls_and_thinking_is_its_own_text(reply: str, places: list[int]) -> None:
    found = read(pieces_of(reply, places))
    if not found.calls and not reply.lstrip().startswith("<think>"):
        assert found == Read(reply.strip())


words = st.text(st.sampled_from("abc .\n"), min_size=1, max_size=8).filter(str.strip)
marked = st.sampled_from([form for form, _ in FORMS if form[0] == "<" or form.startswith(("[CALL", "[TOOL"))])


@given(st.lists(words | marked.map(lambda form: (form,)), max_size=8), cuts)
def test_text_among_calls_is_neither_lost_nor_doubled(parts: list[str | tuple[str]], places: list[int]) -> None:
    """All text is there in its order, but for the white space around the whole."""
    reply = "".join(part if isinstance(part, str) else part[0] for part in parts)
    found = read(pieces_of(reply, places))
    texts = "".join(part for part in parts if isinstance(part, str))
    assert "".join(found.text.split()) == "".join(texts.split())
    wanted = dict(FORMS)
    assert list(found.calls) == [one for part in parts if isinstance(part, tuple) for one in wanted[part[0]]]


@given(replies, cuts)
def test_json_without_a_mark_calls_tools_that_there_are_only(reply: str, places: list[int]) -> None:
    """What is marked as a call is passed on under any name: what to say to that is its reader's affair."""
    known = {"read", "a", "b"}
    marked = any(mark in reply for mark in ("<tool_call>", "[TOOL_CALLS]", "[CALL:", "<|python_tag|>"))
    assert marked or all(name in known for name, _ in read(pieces_of(reply, places)).calls)
