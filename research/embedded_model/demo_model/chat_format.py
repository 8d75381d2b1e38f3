"""The two prompt formats that the model is trained on, and the chat template that says one of them in Jinja."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
QUIET, LOUD = "\ue010", "\ue011"
"""Between these, in a reply that training makes up, stands what a grammar forces: it is written and not learned."""
TOOL_CALL = "<tool_call>"
TOOL_CALL_END = "</tool_call>"
TRANSCRIPT_PREFIXES = {"system": "System: ", "user": "User: ", "assistant": "Assistant: ", "tool": "Tool: "}

# Tools are listed by name and parameter names only: the descriptions that callers write differ without end,
# and a model this small reads a short list more surely. Written without `tojson`, whose spelling (key order,
# escapes) differs between Jinja environments; only arguments given as a mapping need it. Of the other filters only
# `items` is used, which all of the small Jinja programs have, llama.cpp's among them (`list` of a mapping they lack).
CHAT_TEMPLATE = """\
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if messages[0]['role'] == 'system' and messages[0]['content'] -%}{{- messages[0]['content'] + '\\n' -}}{%- endif -%}
{{- 'Tools:' -}}
{%- for tool in tools -%}
{%- set function = tool['function'] if tool['function'] is defined else tool -%}
{{- '\\n{"name": "' + function['name'] + '", "parameters": [' -}}
{%- if function['parameters'] and function['parameters']['properties'] -%}
{%- for name, kind in function['parameters']['properties'] | items -%}
{%- if not loop.first -%}{{- ', ' -}}{%- endif -%}
{{- '"' + name + '"' -}}
{%- endfor -%}
{%- endif -%}
{{- ']}' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if not (tools and loop.first and message['role'] == 'system') -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] -%}{{- message['content'] -}}{%- endif -%}
{%- if message['tool_calls'] -%}
{%- for call in message['tool_calls'] -%}
{%- set function = call['function'] if call['function'] is defined else call -%}
{%- if message['content'] or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{{- '<tool_call>{"name": "' + function['name'] + '", "arguments": ' -}}
{%- if function['arguments'] is string -%}
{{- function['arguments'] -}}
{%- else -%}
{{- function['arguments'] | tojson -}}
{%- endif -%}
{{- '}</tool_call>' -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool: its name and its arguments."""

    name: str
    arguments: Mapping[str, Any]

    def arguments_json(self) -> str:
        """The arguments as the model writes them."""
        return json.dumps(self.arguments, ensure_ascii=False)

    def render(self) -> str:
        """The call as the model writes it, marks included."""
        return f"{TOOL_CALL}{self.render_bare()}{TOOL_CALL_END}"

    def render_bare(self) -> str:
        """The call as a schema forces it, where one must be made."""
        return f'{{"name": "{self.name}", "arguments": {self.arguments_json()}}}'


@dataclass(frozen=True)
class Message:
    """One message of a dialogue; `learn` says whether a reply is a training target or only context."""

    role: str
    content: str
    call: ToolCall | None = None
    learn: bool = True

    def text(self) -> str:
        """What stands after the role."""
        return self.call.render() if self.call else self.content

    def as_dict(self) -> dict[str, Any]:
        """The message in the form that a chat template takes."""
        if self.call is None:
            return {"role": self.role, "content": self.content}
        function = {"name": self.call.name, "arguments": self.call.arguments_json()}
        return {"role": self.role, "content": "", "tool_calls": [{"type": "function", "function": function}]}


@dataclass(frozen=True)
class Tool:
    """A tool's name and its parameters' names and JSON types."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The tool in the form of the OpenAI API."""
        properties = {name: {"type": kind} for name, kind in self.parameters.items()}
        schema = {"type": "object", "properties": properties}
        return {"type": "function", "function": {"name": self.name, "parameters": schema}}

    def render(self) -> str:
        """The tool's line in the system message."""
        return json.dumps({"name": self.name, "parameters": list(self.parameters)}, ensure_ascii=False)


@dataclass(frozen=True)
class Span:
    """A piece of a rendered dialogue; `reply` marks what the model has to write, `end` how it ends it."""

    text: str
    reply: bool = False
    end: str = ""


def unmarked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A reply without the marks of what is forced, and the places of that, in characters."""
    plain, quiet = "", []
    for part in text.split(QUIET):
        forced, mark, rest = part.partition(LOUD)
        if mark:
            quiet.append((len(plain), len(plain) + len(forced)))
        plain += forced + rest
    return plain, quiet


def tools_text(tools: Sequence[Tool]) -> str:
    """The tool list as it stands in a system message."""
    return "\n".join(["Tools:", *(tool.render() for tool in tools)])


def with_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The messages with the tool list written into the system message."""
    if not tools:
        return list(messages)
    if messages and messages[0].role == "system":
        own = messages[0].content
        return [Message("system", (own + "\n" if own else "") + tools_text(tools)), *messages[1:]]
    return [Message("system", tools_text(tools)), *messages]


def chat_spans(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[Span]:
    """The dialogue in the chat template's form."""
    spans: list[Span] = []
    for message in with_tools(messages, tools):
        spans.append(Span(f"{IM_START}{message.role}\n"))
        if message.role == "assistant" and message.learn:
            spans += [Span(message.text(), reply=True, end=IM_END), Span(IM_END + "\n")]
        else:
            spans.append(Span(message.text() + IM_END + "\n"))
    return spans


def transcript_spans(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[Span]:
    """The dialogue as transcript lines (S6, S8)."""
    spans: list[Span] = []
    for message in with_tools(messages, tools):
        spans.append(Span(TRANSCRIPT_PREFIXES[message.role]))
        learn = message.role == "assistant" and message.learn
        spans.append(Span(message.text(), reply=learn, end=END_OF_TEXT if learn else ""))
        spans.append(Span("\n"))
    return spans


def chat_prompt(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """The chat prompt that asks for the next reply."""
    return "".join(span.text for span in chat_spans(messages, tools)) + f"{IM_START}assistant\n"


def transcript_prompt(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """The transcript prompt that asks for the next reply."""
    return "".join(span.text for span in transcript_spans(messages, tools)) + TRANSCRIPT_PREFIXES["assistant"]
