"""Renders a chat template, a Jinja program.

The names and filters are those of Transformers (`apply_chat_template`), the target of most templates.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cfs.errors import EngineError


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
