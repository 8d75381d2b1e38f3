"""The embedded model (E5): the file that is shipped, the format it was trained on, and what it can do."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import gguf
import jinja2.sandbox
import llama_cpp
import pytest

from demo_model import names, tool_scenes
from demo_model.chat_format import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    IM_START,
    TOOL_CALL,
    TOOL_CALL_END,
    Message,
    Tool,
    ToolCall,
    chat_prompt,
    chat_spans,
    transcript_prompt,
    transcript_spans,
)
from demo_model.dialogues import Dialogue, dialogue, long_dialogue
from demo_model.examination import recall_cases
from demo_model_quality import Model, converse

SHIPPED = Path(__file__).resolve().parents[2] / "server" / "cfs_server" / "models" / "cfs-demo.gguf"
TOOLS = tool_scenes.TOOLS


@pytest.fixture(scope="module")
def reader() -> gguf.GGUFReader:
    return gguf.GGUFReader(SHIPPED)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(SHIPPED)


def field(reader: gguf.GGUFReader, key: str) -> Any:
    found = reader.get_field(key)
    assert found is not None, key
    return found.contents()


def drawn(seed: int, count: int) -> list[Dialogue]:
    rng = Random(seed)
    return [long_dialogue(rng) if index % 10 == 0 else dialogue(rng) for index in range(count)]


def text(one: Dialogue) -> str:
    return "".join(span.text for span in one.spans())


def tokens_of(model: Model, words: str) -> list[int]:
    return list(model.llama.tokenize(words.encode(), add_bos=False, special=True))


@functools.cache
def template(trim: bool) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=trim, lstrip_blocks=trim)
    return environment.from_string(CHAT_TEMPLATE)


def jinja(messages: Sequence[Message], tools: Sequence[Tool], ask: bool, trim: bool) -> str:
    rendered: str = template(trim).render(
        messages=[message.as_dict() for message in messages],
        tools=[tool.as_dict() for tool in tools] or None,
        add_generation_prompt=ask,
    )
    return rendered


class TestShippedFile:
    def test_is_small_enough_to_ship(self) -> None:
        assert SHIPPED.stat().st_size <= 8_000_000

    def test_describes_itself(self, reader: gguf.GGUFReader) -> None:
        assert field(reader, "general.architecture") == "llama"
        assert field(reader, "general.name") == "cfs-demo"
        assert field(reader, "general.license") == "apache-2.0"
        assert field(reader, "llama.context_length") >= 2048

    def test_carries_the_template_that_training_used(self, reader: gguf.GGUFReader) -> None:
        assert field(reader, "tokenizer.chat_template") == CHAT_TEMPLATE

    def test_marks_are_single_tokens_and_both_ends_end_generation(self, model: Model) -> None:
        def only_token(mark: str) -> int:
            (token,) = tokens_of(model, mark)
            return token

        for mark in (IM_START, TOOL_CALL, TOOL_CALL_END):
            assert not llama_cpp.llama_vocab_is_eog(model.vocabulary, only_token(mark)), mark
        for end in (IM_END, END_OF_TEXT):
            assert llama_cpp.llama_vocab_is_eog(model.vocabulary, only_token(end)), end

    def test_adds_no_token_of_its_own(self, model: Model) -> None:
        assert model.llama.tokenize(b"hello", add_bos=True) == model.llama.tokenize(b"hello", add_bos=False)

    def test_prompt_and_reply_have_the_same_tokens_together_and_apart(self, model: Model) -> None:
        for one in drawn(3, 150):
            apart = [token for span in one.spans() for token in tokens_of(model, span.text)]
            assert apart == tokens_of(model, text(one))

    @pytest.mark.parametrize("name", ["Alice", "Vler", "王小明", "Zoë"])
    def test_a_name_has_the_same_tokens_wherever_it_stands(self, model: Model, name: str) -> None:
        alone = tokens_of(model, name)
        for around in ("My name is *.", "我叫*。", '"*"', "*, hello", "Hi *!"):
            before, after = around.split("*")
            whole = tokens_of(model, around.replace("*", name))
            assert any(whole[start : start + len(alone)] == alone for start in range(len(whole))), before + after


class TestFormat:
    @pytest.mark.parametrize("trim", [False, True])
    def test_template_says_what_training_says(self, trim: bool) -> None:
        for one in drawn(4, 300):
            python = "".join(span.text for span in chat_spans(one.messages, one.tools))
            assert jinja(one.messages, one.tools, ask=False, trim=trim) == python
            asked = list(one.messages[:-1])
            assert jinja(asked, one.tools, ask=True, trim=trim) == chat_prompt(asked, one.tools)

    def test_template_takes_arguments_given_as_a_mapping(self) -> None:
        call = ToolCall("read_file", {"path": "a.txt"})
        function = {"name": call.name, "arguments": dict(call.arguments)}
        message = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
        assert template(False).render(messages=[message]) == f"{IM_START}assistant\n{call.render()}{IM_END}\n"

    def test_transcript_is_role_lines(self) -> None:
        messages = [Message("system", "Be brief."), Message("user", "hi"), Message("assistant", "Hello!")]
        rendered = "".join(span.text for span in transcript_spans(messages))
        assert rendered == "System: Be brief.\nUser: hi\nAssistant: Hello!\n"
        assert transcript_prompt(messages[:2]) == "System: Be brief.\nUser: hi\nAssistant: "


class TestGenerator:
    def test_same_seed_same_dialogues(self) -> None:
        assert [text(one) for one in drawn(7, 60)] == [text(one) for one in drawn(7, 60)]
        assert [text(one) for one in drawn(7, 60)] != [text(one) for one in drawn(8, 60)]

    @pytest.mark.parametrize("language", ["en", "zh"])
    def test_held_out_names_are_never_drawn_for_training(self, language: str) -> None:
        rng = Random(5)
        training = {names.name(rng, language) for _ in range(4000)}
        held_out = {names.name(rng, language, held_out=True) for _ in range(1000)}
        assert len(held_out) > 400
        assert not training & held_out
        assert not {name.lower() for name in training} & {name.lower() for name in held_out}

    def test_every_call_is_json_with_known_arguments(self) -> None:
        known = {tool.name: set(tool.parameters) for tool in TOOLS}
        calls = [message.call for one in drawn(6, 400) for message in one.messages if message.call]
        assert len(calls) > 100
        for call in calls:
            written = json.loads(call.render().removeprefix(TOOL_CALL).removesuffix(TOOL_CALL_END))
            assert written == {"name": call.name, "arguments": call.arguments}
            assert set(call.arguments) <= known[call.name]


class TestAbility:
    def test_recalls_names_it_was_not_trained_on(self, model: Model) -> None:
        results = [result for case in recall_cases(2024, 20) for result in converse(model, case)]
        assert sum(result.right for result in results) >= 18
        assert all(result.ended for result in results)

    @pytest.mark.parametrize("render", [chat_prompt, transcript_prompt])
    def test_knows_alice_in_both_languages_and_formats(self, model: Model, render: Any) -> None:
        for told, asked in (("My name is Alice.", "What is my name?"), ("我叫Alice", "我叫什么？")):
            messages = [Message("user", told)]
            messages.append(Message("assistant", model.reply(render(messages)).text))
            messages.append(Message("user", asked))
            assert "Alice" in model.reply(render(messages)).text

    @pytest.mark.parametrize("path", ["quarterly_plan.md", "src/vexlorp.py"])
    def test_calls_a_tool_with_an_unseen_file_name(self, model: Model, path: str) -> None:
        asked = [Message("user", f'Write "seven green kettles" to {path}.')]
        reply = model.reply(chat_prompt(asked, TOOLS))
        assert reply.ended
        assert reply.text.startswith(TOOL_CALL)
        assert reply.text.endswith(TOOL_CALL_END)
        call = json.loads(reply.text.removeprefix(TOOL_CALL).removesuffix(TOOL_CALL_END))
        assert call == {"name": "write_file", "arguments": {"path": path, "content": "seven green kettles"}}

    def test_closes_in_words_after_a_tool_result(self, model: Model) -> None:
        call = Message("assistant", "", ToolCall("write_file", {"path": "plan_b.md", "content": "seven kettles"}))
        messages = [Message("user", 'Write "seven kettles" to plan_b.md.'), call]
        done = model.reply(chat_prompt([*messages, Message("tool", "Wrote 13 bytes to plan_b.md")], TOOLS))
        assert done.ended
        assert done.text == "I wrote the file plan_b.md."
        failed = model.reply(chat_prompt([*messages, Message("tool", "Error: permission denied")], TOOLS))
        assert failed.ended
        assert failed.text == "I could not write plan_b.md: permission denied."

    def test_answers_in_words_without_tools(self, model: Model) -> None:
        reply = model.reply(chat_prompt([Message("user", "Read the file notes.txt")]))
        assert reply.ended
        assert reply.text
        assert TOOL_CALL not in reply.text

    @pytest.mark.parametrize("said", ["hi", "hello", "你好", "测试消息", "build it", "Tell me a joke", "讲个笑话"])
    def test_answers_everyday_messages_and_stops(self, model: Model, said: str) -> None:
        for render in (chat_prompt, transcript_prompt):
            reply = model.reply(render([Message("user", said)]))
            assert reply.ended
            assert reply.text
            assert "User:" not in reply.text
