"""Builds a turn's prompt from structured messages (S8): by the model's own chat template, or as a transcript.

A prompt is a list of pieces. Names of special tokens, such as `<|im_end|>`, become these tokens only in trusted pieces.
In the text of users, tools and models such names remain text.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cfs.contract.transcript import PREFIXES, render, reply_stops
from cfs.errors import EngineError
from cfs.wire import Message, Settings, ToolCall
from cfs_server.engine.chat.chat_template import ChatTemplate, _Rows
from cfs_server.engine.chat.described_tools import (
    described_for_transcripts,
    described_with_tags,
    named_results,
    with_system,
)
from cfs_server.engine.chat.reply_parser import THINK
from cfs_server.engine.chat.template_abilities import Abilities, abilities_of, takes_later_systems
from cfs_server.engine.contract.fitting import leading_systems
from cfs_server.engine.contract.history_forms import (
    HistoryForm,
    calls_as_text,
    in_form,
    results_as_user,
    short_id,
    systems_as_user,
)


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
        described = with_system(messages, described_for_transcripts(tools)) if tools else messages
        return Prompt(transcript_pieces(described, settings.system), reply_stops(settings.stop))

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
        for form in (HistoryForm.STRICT, HistoryForm.TEXT):
            turns = with_system(in_form(messages[count:], form), system)
            rows = self._rows(turns, settings, can, short_ids=True)
            yield rows
            yield _system_as_user(rows)

    def _rows(
        self, messages: Sequence[Message], settings: Settings, can: Abilities, *, short_ids: bool = False
    ) -> _Rows:
        rows = messages if can.calls else calls_as_text(messages)
        rows = rows if can.results else results_as_user(rows)
        return _with_system([self._row(message, short_ids=short_ids) for message in rows], settings.system)

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
