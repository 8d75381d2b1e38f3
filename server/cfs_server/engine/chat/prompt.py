"""Builds a turn's prompt from structured messages (S8): by the model's own chat template, or as a transcript.

A prompt is a list of pieces. Names of special tokens, such as `<|im_end|>`, become these tokens only in trusted pieces.
In the text of users, tools and models such names remain text.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cfs.contract.transcript import PREFIXES, render, reply_stops
from cfs.errors import EngineError
from cfs.wire import Message, Settings, ToolCall
from cfs_server.engine.chat.reply_parser import THINK
from cfs_server.engine.chat.tool_call_formats import ANYWHERE, Fenced
from cfs_server.engine.contract.fitting import leading_systems
from cfs_server.engine.contract.history_forms import (
    Form,
    calls_as_text,
    in_form,
    results_as_user,
    short_id,
    systems_as_user,
)

# -- tool conversations for models whose template supports no tools, or only parts of them ----------------------------

# A model may repeat the texts below, and the repetition must not parse as a call. So the reply parser refuses text in
# angle brackets, JSON with a description and no mark, and incomplete marks.
_MARKS = re.compile("|".join(re.escape(mark) for mark in (*(form.MARK for form in ANYWHERE), Fenced.MARK)))
_MARKS_IN_TEXT = re.compile(_MARKS.pattern + r'|\{(?=\s*")')

_TAGGED = """\
You can call functions. They are described here, one JSON object a line:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and its arguments between two tags, and nothing after it:
<tool_call>{{"name": <tool>, "arguments": {{<key>: <value>}}}}</tool_call>
For several calls write several of these. The results come with the next message. Call a function only when it helps; \
otherwise just answer."""

_BRACKETED = """\
You can call these tools:
{tools}
To call one, write [CALL:<tool>(<key>=<value>)] with plain values, and nothing after it. The next message brings \
the result. Answer without a call when you know enough."""


def described_with_tags(tools: Iterable[Mapping[str, Any]]) -> str:
    """Describe tools, and the form of calls that most models have seen."""
    lines = [json.dumps(_described(tool), ensure_ascii=False) for tool in tools]
    lines = [_MARKS.sub(lambda mark: f"\\u{ord(mark[0][0]):04x}{mark[0][1:]}", line) for line in lines]
    return _TAGGED.format(tools="\n".join(lines))


def described_for_transcripts(tools: Iterable[Mapping[str, Any]]) -> str:
    """Describe tools, and calls in the form in which transcripts show them (S6, C8)."""
    lines = [_MARKS_IN_TEXT.sub(lambda mark: f"{mark[0][0]}\u2060{mark[0][1:]}", _line(tool)) for tool in tools]
    return _BRACKETED.format(tools="\n".join(lines))


def with_system(messages: Sequence[Message], text: str) -> list[Message]:
    """Put a text before the system message, or make one of it."""
    if not text:
        return list(messages)
    if messages and messages[0].role == "system":
        first = messages[0]
        return [first.model_copy(update={"content": f"{text}\n\n{first.content}".rstrip()}), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def named_results(messages: Iterable[Message]) -> list[Message]:
    """Add the name of the tool to each tool result: some templates need it, and most programs omit it."""
    names: dict[str | None, str] = {}
    found = []
    for message in messages:
        names.update({call.id: call.name for call in message.tool_calls})
        if message.role == "tool" and message.name is None and message.tool_call_id in names:
            message = message.model_copy(update={"name": names[message.tool_call_id]})
        found.append(message)
    return found


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    return {"name": function.get("name"), "description": function.get("description") or "", **function}


def _line(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    schema = function.get("parameters") or {}
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    shown = ", ".join(
        f"{name}: {_kind(of)}{'' if name in required else ' (optional)'}" for name, of in properties.items()
    )
    description = " ".join(str(function.get("description") or "").split())
    return f"- {function.get('name')}({shown}): {description}".rstrip(": ")


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return " | ".join(repr(each) for each in schema["enum"])
    kind = schema.get("type", "any")
    return kind if isinstance(kind, str) else " | ".join(map(str, kind))


# -- tool support of a chat template ----------------------------------------------------------------------------------
#
# It is detected by rendering tests, because templates use too many different names.

Rows = list[dict[str, Any]]
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]

_NAME, _VALUE, _RESULT = "look_up_probe", "value-of-probe", "result-of-probe"
_ID = "probe1234"  # nine letters and digits: some templates take no other id
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


@dataclass(frozen=True, slots=True)
class Abilities:
    """The parts of a tool conversation that a template supports.

    `text_arguments`: it needs the arguments of a call as JSON text, not as a mapping.
    """

    tools: bool = False
    calls: bool = False
    results: bool = False
    text_arguments: bool = False


def abilities_of(render: Render) -> Abilities:
    """Render small conversations with a template and search for their parts in the output."""
    question: Rows = [{"role": "user", "content": "Hello."}]
    tools = _NAME in _attempt(render, question, [_TOOL])
    offered = [_TOOL] if tools else []
    for text_arguments in (False, True):
        called = [*question, _call(json.dumps({"key": _VALUE}) if text_arguments else {"key": _VALUE})]
        answered = [*called, {"role": "tool", "content": _RESULT, "tool_call_id": _ID, "name": _NAME}]
        after = [*answered, {"role": "assistant", "content": "So it is."}, *question]
        shown = _attempt(render, after, offered)
        if _shows_call(shown):
            return Abilities(tools, calls=True, results=_RESULT in shown, text_arguments=text_arguments)
        if _shows_call(_attempt(render, called, offered)):
            return Abilities(tools, calls=True, text_arguments=text_arguments)
    return Abilities(tools)


def takes_later_systems(render: Render) -> bool:
    """Whether a template writes system messages after the first message: others refuse them, or leave them out."""
    rows: Rows = [{"role": role, "content": f"{_VALUE} of {role}"} for role in ("user", "assistant", "system", "user")]
    return f"{_VALUE} of system" in _attempt(render, rows, [])


def _call(arguments: Any) -> dict[str, Any]:
    function = {"name": _NAME, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": _ID, "type": "function", "function": function}]}


def _shows_call(shown: str) -> bool:
    """Whether name and value stand there, the value not as Python writes a mapping."""
    return shown.count(_NAME) > 0 and _VALUE in shown and f"'{_VALUE}'" not in shown


def _attempt(render: Render, rows: Rows, tools: Rows) -> str:
    try:
        return render(rows, tools)
    except EngineError:
        return ""


# -- rendering of a chat template, a Jinja program --------------------------------------------------------------------
#
# The names and filters are those of Transformers (`apply_chat_template`), the target of most templates.


class _GenerationTag(Extension):
    """`{% generation %}` marks training targets; here its content is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Parse the tag's content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. It runs in a sandbox: a model file is not trusted with this process."""

    def __init__(self, source: str, *, begin_text: str, end_text: str) -> None:
        """Compile; raises `EngineError`."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {
            "raise_exception": _refuse,
            "strftime_now": _now,
            "bos_token": begin_text,
            "eos_token": end_text,
        }
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise EngineError(f"the model's chat template does not compile: {_first_line(error)}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        """Write a conversation and the beginning of the reply; raises `EngineError` when the template refuses it."""
        try:
            return self._template.render(messages=messages, tools=tools or None, add_generation_prompt=True)
        except Exception as error:  # a template is a program: its errors have no common class
            raise EngineError(f"the model's chat template refuses this conversation: {_first_line(error)}") from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Write JSON without escapes for HTML, which Jinja's own filter makes and models have never seen."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateRuntimeError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a prompt that is tokenized separately; `trusted` text may name special tokens."""

    text: str
    trusted: bool


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text that the model continues, and the strings that end its reply."""

    pieces: tuple[Piece, ...]
    stops: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole prompt."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def thinks(self) -> bool:
        """Whether the reply begins in the middle of the model's thinking: some templates open it."""
        return bool(self.pieces) and self.pieces[-1].trusted and self.pieces[-1].text.rstrip().endswith(THINK)


_SYSTEM_MESSAGES = {
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face": "You are a helpful assistant.",
}
"""System messages that templates add to conversations without one, and those that give better replies instead.

The smallest model of the family knows more facts with the second one; docs/models.md has the figures.
"""


class PromptBuilder:
    """Builds prompts with a model's template and the names of its special tokens."""

    def __init__(
        self,
        template: str | None,
        *,
        begin_text: str = "",
        end_text: str = "",
        special: re.Pattern[str] | None = None,
    ) -> None:
        """Compile the template; raises `EngineError` when it is not valid."""
        self._special = special
        for poor, better in _SYSTEM_MESSAGES.items():
            template = template and template.replace(poor, better)
        self._template = ChatTemplate(template, begin_text=begin_text, end_text=end_text) if template else None
        self._abilities = abilities_of(self._template.render) if self._template else Abilities()
        self._later_systems = takes_later_systems(self._template.render) if self._template else True

    @property
    def has_template(self) -> bool:
        """Whether chats can be had with this model."""
        return self._template is not None

    def build(self, messages: Sequence[Message], settings: Settings, tools: Sequence[dict[str, Any]] = ()) -> Prompt:
        """Build the prompt of a turn; raises `EngineError` when the model's template refuses it."""
        style = settings.prompt_style
        if style == "auto":
            style = "chat" if self._template else "transcript"
        if style == "chat":
            return Prompt(self._chat(messages, settings, tools), settings.stop or ())
        told = with_system(messages, described_for_transcripts(tools)) if tools else messages
        return Prompt(transcript_pieces(told, settings.system), reply_stops(settings.stop))

    def _chat(
        self, messages: Sequence[Message], settings: Settings, tools: Sequence[dict[str, Any]]
    ) -> tuple[Piece, ...]:
        can = self._abilities
        if not self._later_systems:
            count = leading_systems(messages)
            messages = [*messages[:count], *systems_as_user(messages[count:])]
        if tools and not can.tools:  # then all calls use the CFS format, so the prompt does not mix formats
            messages, tools, can = with_system(messages, described_with_tags(tools)), (), Abilities()
        harmless = [self._harmless(tool) for tool in tools]
        refusal: EngineError | None = None
        for rows in self._tellings(named_results(messages), settings, can):
            try:
                return self._pieces(rows, harmless)
            except EngineError as error:
                refusal = refusal or error
        raise refusal or EngineError("the model's chat template refuses this conversation")

    def _tellings(self, messages: Sequence[Message], settings: Settings, can: Abilities) -> Iterator[_Rows]:
        """Yield forms of a conversation that templates may accept: the unchanged one first, then simpler ones."""
        rows = self._rows(messages, settings, can)
        yield rows
        yield _system_as_user(rows)
        count = leading_systems(messages)
        system = "\n\n".join(message.content for message in messages[:count])
        for form in (Form.STRICT, Form.TEXT):
            turns = with_system(in_form(messages[count:], form), system)
            rows = self._rows(turns, settings, can, short_ids=True)
            yield rows
            yield _system_as_user(rows)

    def _rows(
        self, messages: Sequence[Message], settings: Settings, can: Abilities, *, short_ids: bool = False
    ) -> _Rows:
        own = messages if can.calls else calls_as_text(messages)
        own = own if can.results else results_as_user(own)
        return _with_system([self._row(message, short_ids=short_ids) for message in own], settings.system)

    def _pieces(self, rows: _Rows, tools: _Rows) -> tuple[Piece, ...]:
        text = self._render(rows, tools)
        special = self._special
        if special is None or not any(special.search(row["content"]) for row in rows):
            return (Piece(text, trusted=True),)
        marks = {
            f"\ue000{secrets.token_hex(16)}\ue001": row["content"] for row in rows if special.search(row["content"])
        }
        by_content = {content: mark for mark, content in marks.items()}
        marked = self._render(
            [row | {"content": by_content.get(row["content"], row["content"])} for row in rows], tools
        )
        pieces = _split(marked, marks)
        if "".join(piece.text for piece in pieces) == text:
            return pieces
        # The template changes contents (trims, cuts): no piece of its output is known to be a content.
        harmless = [row | {"content": self._harmless(row["content"])} for row in rows]
        return (Piece(self._render(harmless, tools), trusted=True),)

    def _render(self, rows: _Rows, tools: _Rows) -> str:
        if self._template is None:
            raise EngineError("this model has no chat template: use prompt_style=transcript")
        return self._template.render(rows, tools)

    def _row(self, message: Message, *, short_ids: bool) -> dict[str, Any]:
        row: dict[str, Any] = {"role": message.role, "content": message.content}
        answered = message.tool_call_id
        if message.tool_calls:
            row["tool_calls"] = [
                {
                    "id": short_id(call.id) if short_ids else call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": self._arguments(call)},
                }
                for call in message.tool_calls
            ]
        if short_ids and answered is not None:
            answered = short_id(answered)
        extra = {"tool_call_id": answered, "name": message.name, "reasoning_content": message.thinking}
        return row | {key: self._harmless(value) for key, value in extra.items() if value is not None}

    def _arguments(self, call: ToolCall) -> Any:
        arguments = self._harmless(call.arguments)
        return json.dumps(arguments, ensure_ascii=False) if self._abilities.text_arguments else arguments

    def _harmless(self, value: Any) -> Any:
        """Break names of special tokens, at any depth, by an invisible character."""
        if isinstance(value, str):
            return (
                self._special.sub(lambda match: f"{match[0][0]}\u2060{match[0][1:]}", value) if self._special else value
            )
        if isinstance(value, dict):
            return {self._harmless(key): self._harmless(item) for key, item in value.items()}
        return [self._harmless(item) for item in value] if isinstance(value, list | tuple) else value


def transcript_pieces(messages: Iterable[Message], system: str | None) -> tuple[Piece, ...]:
    """Cut the transcript behind each `Assistant: `.

    That is where the model's own tokens began or will begin: a turn's prompt and reply stay, token for token, the
    beginning of the next prompt.
    """
    leading = [Message(role="system", content=system)] if system else []
    text = render([*leading, *messages]) + PREFIXES["assistant"]
    starts = [match.end() for match in re.finditer(rf"^{PREFIXES['assistant']}", text, re.MULTILINE)]
    return tuple(Piece(text[a:b], trusted=False) for a, b in zip([0, *starts], starts, strict=False))


def _with_system(rows: _Rows, system: str | None) -> _Rows:
    if not system:
        return rows
    if rows and rows[0]["role"] == "system":
        return [rows[0] | {"content": f"{system}\n\n{rows[0]['content']}"}, *rows[1:]]
    return [{"role": "system", "content": system}, *rows]


def _system_as_user(rows: _Rows) -> _Rows:
    """Move the system message into the first user message: some templates have no system role."""
    if not rows or rows[0]["role"] != "system":
        return rows
    system, *rest = rows
    if rest and rest[0]["role"] == "user":
        return [rest[0] | {"content": f"{system['content']}\n\n{rest[0]['content']}"}, *rest[1:]]
    return [system | {"role": "user"}, *rest]


def _split(marked: str, marks: dict[str, str]) -> tuple[Piece, ...]:
    parts = re.split("(" + "|".join(map(re.escape, marks)) + ")", marked)
    pieces = (Piece(marks[part], trusted=False) if part in marks else Piece(part, trusted=True) for part in parts)
    return tuple(piece for piece in pieces if piece.text)
