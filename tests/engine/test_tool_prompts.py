"""Every model can be told of tools: by its template, or else in our words (H4)."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import make_random_gguf
from cfs import FunctionTool
from cfs.contract.tool_calls import find_calls
from cfs.errors import EngineError
from cfs.session.tools import Toolbox
from cfs.wire import Message, Settings, ToolCall
from cfs_server.engine.chat.chat_template import ChatTemplate
from cfs_server.engine.chat.constrained_output import constrained, reply_schema
from cfs_server.engine.chat.described_tools import described_for_transcripts, described_with_tags
from cfs_server.engine.chat.prompt import PromptBuilder
from cfs_server.engine.chat.reply_parser import ReplyReader
from cfs_server.engine.chat.template_abilities import Abilities, abilities_of
from cfs_server.engine.contract.reply_options import ReplyOptions
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import load_weights
from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.grammar import Grammars
from tests.engine.support import user

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "mode": {"enum": ["a", "b"]}},
            "required": ["path"],
        },
    },
}
CALL = ToolCall(id="call_1", name="read", arguments={"path": "a", "n": 1})
HISTORY = [
    user("hi"),
    Message(role="assistant", content="I look.", tool_calls=(CALL,)),
    Message(role="tool", content="found", tool_call_id="call_1"),
    user("thanks"),
]
HEAD = "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
NO_TOOLS = HEAD + "{% endfor %}<assistant>"
STRICT = (
    "{% for m in messages %}"
    "{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('role') }}{% endif %}"
    "{% if loop.index0 > 0 and m.role == messages[loop.index0 - 1].role %}{{ raise_exception('alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
)
AS_TEXT = (
    "{{ tools }}" + HEAD + "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ '' + c.function.arguments }}]"
    "{% endfor %}{% endfor %}"
)
SHORT_IDS = (
    HEAD + "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('9') }}{% endif %}"
    "[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "{% if m.role == 'tool' %}({{ m.tool_call_id }} {{ m.name }}){% endif %}{% endfor %}"
)
PRINTED = (
    HEAD + "{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments }}{% endfor %}{% endfor %}"
)


def build(template: str | None, messages: list[Message], *tools: dict[str, Any], **settings: Any) -> str:
    """Build a prompt and return its text."""
    return PromptBuilder(template).build(messages, Settings.model_validate(settings), tools).text


@pytest.mark.parametrize(
    ("template", "abilities"),
    [
        (make_random_gguf.CHAT_TEMPLATE, Abilities(tools=True, calls=True, results=True)),
        (NO_TOOLS, Abilities()),
        (STRICT, Abilities()),
        (AS_TEXT, Abilities(tools=True, calls=True, results=True, text_arguments=True)),
        (SHORT_IDS, Abilities(calls=True, results=True)),
        (PRINTED, Abilities(calls=True, results=True, text_arguments=True)),
        ("{{ raise_exception('never') }}", Abilities()),
    ],
)
def test_what_a_template_can_say_is_found_out_by_trying(template: str, abilities: Abilities) -> None:
    """Also what it would say wrongly: a mapping in Python's words is no call."""
    assert abilities_of(ChatTemplate(template, begin_text="", end_text="").render) == abilities


def test_a_template_that_knows_no_tools_is_told_of_them_in_the_system_message() -> None:
    """In the form that most models have seen, and that the reader of replies knows."""
    text = build(NO_TOOLS, [Message(role="system", content="Be brief."), *HISTORY], TOOL)
    system, _, rest = text.partition("<user>hi")
    assert system.startswith("<system>")
    assert json.dumps(TOOL["function"]) in system
    assert system.endswith("\n\nBe brief.")
    found = ReplyReader([TOOL]).feed(rest.partition("<assistant>")[2].partition("<user>")[0])
    assert found is not None
    assert found.text == "I look."
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [("read", CALL.arguments)]


def test_results_are_told_by_the_user_where_there_is_no_role_for_them() -> None:
    """In one message with what the user says next: turns alternate."""
    text = build(STRICT, HISTORY, TOOL)
    assert "<user><tool_response>\nResult of read:\nfound\n</tool_response>\n\nthanks<assistant>" in text


ALTERNATING = (
    "{{ tools }}{% for m in messages if m.role not in ['tool', 'system'] and not m.tool_calls %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}"
    "{% endfor %}{% endfor %}"
)


SINGLE = (  # as Llama 3.1's
    "{% for m in messages if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('single') }}{% endfor %}"
    + ALTERNATING
)


def test_a_message_of_the_user_after_a_result_needs_no_other_form_of_calls() -> None:
    """A user may write before a tool's result has been answered: that happens to agents."""
    assert abilities_of(ChatTemplate(ALTERNATING, begin_text="", end_text="").render).results
    steered = build(ALTERNATING, HISTORY, TOOL)
    assert steered.startswith(build(ALTERNATING, HISTORY[:3], TOOL))
    assert steered.endswith("<tool>found<assistant>(no reply)<user>thanks")


def test_what_a_template_refuses_is_told_as_text_that_alternates() -> None:
    calls = (CALL, CALL.model_copy(update={"id": "call_2"}))
    history = [HISTORY[0], HISTORY[1].model_copy(update={"tool_calls": calls}), *HISTORY[2:]]
    steered = build(SINGLE, history, TOOL)
    assert '<assistant>I look.\n<tool_call>{"name": "read"' in steered
    assert "Result of read:\nfound\n</tool_response>\n\n" in steered
    assert steered.endswith("\n</tool_response>\n\nthanks")
    with pytest.raises(EngineError, match="never"):
        build("{{ raise_exception('never') }}", HISTORY)


def test_calls_are_told_in_one_form_where_we_describe_the_tools() -> None:
    """A template may write calls and know no tools: then the model sees our form of calls only."""
    writes_calls = HEAD + "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
    assert abilities_of(ChatTemplate(writes_calls, begin_text="", end_text="").render) == Abilities(
        calls=True, results=True
    )
    assert '<tool_call>{"name": "read"' in build(writes_calls, HISTORY, TOOL)
    assert "<tool_call>" not in build(writes_calls, HISTORY)


def test_without_tools_a_conversation_that_used_them_can_go_on() -> None:
    """The history keeps its calls and results; nothing is described."""
    assert build(NO_TOOLS, HISTORY).startswith('<user>hi<assistant>I look.\n<tool_call>{"name": "read"')


def test_arguments_come_as_the_template_wants_them() -> None:
    assert '[read {"path": "a", "n": 1}]' in build(AS_TEXT, HISTORY, TOOL)


def test_ids_are_shortened_for_templates_that_insist() -> None:
    """The same for the call and its result, which also gets the tool's name."""
    text = build(SHORT_IDS, HISTORY)
    short = text.partition("[")[2][:9]
    assert short.isalnum()
    assert f"({short} read)" in text
    nine = CALL.model_copy(update={"id": "abcdefghi"})
    assert "[abcdefghi read" in build(
        SHORT_IDS, [user("hi"), Message(role="assistant", content="", tool_calls=(nine,))]
    )


def test_transcripts_describe_and_show_calls_in_their_own_form() -> None:
    """Calls are lines of the assistant, results are the tool's; a model that goes on to invent one is stopped."""
    prompt = PromptBuilder(None).build(HISTORY, Settings(system="Be brief."), [TOOL])
    assert prompt.text.startswith(
        "System: Be brief.\nSystem: You can call these tools:\n- read(path: string, mode: 'a' | 'b'"
    )
    assert prompt.text.endswith(
        "User: hi\nAssistant: I look.\n[CALL:read(path='a', n=1)]\nTool: found\nUser: thanks\nAssistant: "
    )
    assert prompt.stops == ("User:", "\nSystem:", "\nAssistant:", "\nTool:")


def test_a_prompt_that_opens_the_thinking_is_known() -> None:
    """Only where the template did it: a message cannot."""
    assert PromptBuilder(NO_TOOLS + "<think>\n").build([user("hi")], Settings()).thinks
    assert not PromptBuilder(NO_TOOLS).build([user("hi")], Settings()).thinks
    assert not PromptBuilder(None).build([user("<think>")], Settings()).thinks


# -- constrained output -----------------------------------------------------------------------------------------------

NESTED: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "nested",
        "parameters": {
            "type": "object",
            "properties": {"point": {"$ref": "#/$defs/P"}, "definitions": {"type": "integer"}},
            "required": ["point", "definitions"],
            "$defs": {"P": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
        },
    },
}


def test_what_must_be_said_is_a_schema() -> None:
    """One call of one of the tools; with a form besides, that or a call."""
    wanted = {"type": "object", "properties": {"mood": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "string"}}}
    assert reply_schema([TOOL], required=False, schema=None) is None
    assert reply_schema([], required=True, schema=wanted) is wanted
    one = reply_schema([TOOL], required=True, schema=None)
    assert one is not None
    assert one["properties"]["name"] == {"const": "read"}
    both = reply_schema([TOOL, NESTED], required=False, schema=wanted)
    assert both is not None
    assert len(both["anyOf"]) == 3
    assert both["$defs"].keys() == {"1.P", "2.P"}
    assert both["anyOf"][1]["properties"]["arguments"]["properties"]["point"] == {"$ref": "#/$defs/1.P"}
    assert "definitions" in both["anyOf"][1]["properties"]["arguments"]["properties"]
    forced_both = reply_schema([TOOL], required=True, schema=wanted)
    assert forced_both == one


def test_a_request_says_in_tools_and_a_schema_how_it_is_answered() -> None:
    free = ReplyOptions(tools=(TOOL,))
    assert constrained(free) is free
    assert constrained(replace(free, tool_choice="none")).tools == ()
    assert constrained(replace(free, tool_choice="required")).json_schema is not None


def test_the_schemas_become_grammars(vocabulary: Vocabulary) -> None:
    """References included."""
    grammars = Grammars(vocabulary)
    for wanted in (None, {"type": "object"}):
        grammar = grammars.of_schema(reply_schema([TOOL, NESTED], required=wanted is None, schema=wanted))
        assert grammar is not None
        grammar.free()
    assert len(grammars) == 2


# -- tokens that are marks --------------------------------------------------------------------------------------------


def test_marks_that_are_control_tokens_can_be_seen(vocabulary: Vocabulary) -> None:
    """Other control tokens stay invisible: they are no text."""
    pieces = {
        vocabulary.text_of(token): vocabulary.piece(token) for token in range(vocabulary.size - 5, vocabulary.size)
    }
    assert pieces["[TOOL_CALLS]"] == b"[TOOL_CALLS]"
    assert pieces["<think>"] == b"<think>"
    assert pieces["<|im_end|>"] == pieces["<|endoftext|>"] == b""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """The tokenizer of a model whose marks are control tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_random_gguf, "SPECIALS", (*make_random_gguf.SPECIALS, "[TOOL_CALLS]", "<think>"))
        path: Path = make_random_gguf.make(tmp_path_factory.mktemp("marks") / "marks.gguf")
    model = load_weights(str(path), NativeLog(lambda _level, _text: None), extra_buffers=True)
    return Vocabulary(model)


# -- what a model says again of the instruction -----------------------------------------------------------------------

CALL_SHAPED = [
    '<tool_call>{"name": "read", "arguments": {}}</tool_call>',
    "[CALL:read('a')]",
    '[TOOL_CALLS]read[ARGS]{"path": "a"}',
    '<|python_tag|>{"name": "read", "parameters": {}}',
    '\n```json\n{"name": "read", "arguments": {}}\n```',
    '\n{"name": "read", "arguments": {}}',
]
descriptions = st.lists(
    st.sampled_from([*CALL_SHAPED, "Reads a file.", "\n", "<", '"', "["]) | st.text(max_size=4)
).map("".join)
kinds = st.sampled_from(["string", "integer", "object"]).map(lambda kind: {"type": kind}) | st.builds(
    lambda *words: {"enum": [*words]}, st.text(max_size=8), st.sampled_from(CALL_SHAPED)
)
described: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda name, description, properties: {
        "type": "function",
        "function": {"name": name}
        | ({"description": description} if description else {})
        | {"parameters": {"type": "object", "properties": properties}},
    },
    st.sampled_from(["read", "name", "tool", "a-b", "KEY"]),
    descriptions,
    st.dictionaries(st.sampled_from(["path", "name", "arguments", "parameters", "x-y"]), kinds, max_size=3),
)
tool_sets = st.lists(described, min_size=1, max_size=3, unique_by=lambda each: each["function"]["name"])


@given(tool_sets)
@example([{"type": "function", "function": {"name": "name"}}, TOOL])
def test_no_part_of_an_instruction_is_a_call(tools: list[dict[str, Any]]) -> None:
    """A weak model says lines of it again, and begins anywhere: at a mark, a brace or a line."""
    for text in (described_with_tags(tools), described_for_transcripts(tools)):
        starts = [match.start() for match in re.finditer(r"^|[{\[<`]", text, re.MULTILINE)]
        for start in starts:
            for end in (text.find("\n", start), len(text)):
                said = text[start : end if end > 0 else len(text)]
                reader = ReplyReader(tools)
                found = [delta for delta in (reader.feed(said), reader.finish()) if delta is not None]
                assert not any(delta.calls for delta in found), said
                assert find_calls(said) == []


def test_the_instruction_of_the_sdk_is_no_call() -> None:
    box = Toolbox([FunctionTool("read", "Read a file.", lambda path: path)])
    assert find_calls(box.describe("Hello.")) == []
