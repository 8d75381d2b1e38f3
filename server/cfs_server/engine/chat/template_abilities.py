"""What a chat template supports of tools.

It is found out by rendering probes, because templates use too many different names.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cfs.errors import EngineError

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
        rendered = _attempt(render, after, offered)
        if _shows_call(rendered):
            return Abilities(tools, calls=True, results=_RESULT in rendered, text_arguments=text_arguments)
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


def _shows_call(rendered: str) -> bool:
    """Whether name and value stand there, the value not as Python writes a mapping."""
    return rendered.count(_NAME) > 0 and _VALUE in rendered and f"'{_VALUE}'" not in rendered


def _attempt(render: Render, rows: Rows, tools: Rows) -> str:
    try:
        return render(rows, tools)
    except EngineError:
        return ""
