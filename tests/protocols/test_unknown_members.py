"""Members that nobody knows, everywhere in the requests of every protocol: they change nothing (docs/protocols.md).

The rule is for the protocols of others, whose clients send what is new before a server reads it. Our own interface
says what it does not know (S9), so that a misspelt setting is noticed.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cfs_server.engine.contract.interface import GenerationRequest
from tests.protocols.scripts import COLOUR, PARAMETERS, obedient
from tests.server.support import ServerHarness, running_server

UNKNOWN: dict[str, Any] = {"nobody_knows": {"deep": [1, {"er": None}]}, "x-null": None}
FREE = frozenset({"action", "parameters", "input_schema", "schema", "format", "arguments", "input", "metadata"})
"""Objects whose members have the names that a program chooses: what they hold is content."""


@dataclass(frozen=True, slots=True)
class Row:
    """A route, and a body with all that a program sends there: every kind of message, part, tool and option."""

    path: str
    body: dict[str, Any]


FUNCTION = {"name": "weather", "description": "Tell the weather.", "parameters": PARAMETERS}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}

ROWS = (
    Row(
        "/v1/chat/completions",
        {
            "model": "x",
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "content": "hello", "name": "bob"},
                {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
                {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "rain"}]},
                {"role": "user", "content": [{"type": "text", "text": "one two"}]},
            ],
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
        },
    ),
    Row(
        "/v1/chat/completions",
        {
            "model": "x",
            "messages": [{"role": "user", "content": "one"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOUR}},
        },
    ),
    Row("/v1/completions", {"model": "x", "prompt": "one two", "max_tokens": 5, "stream_options": {}}),
    Row(
        "/v1/responses",
        {
            "model": "x",
            "store": False,
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"},
                {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "x"},
                {"type": "local_shell_call", "call_id": "3", "action": {"type": "exec"}},
                {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "rain"}]},
                {"type": "custom_tool_call_output", "call_id": "2", "output": "y"},
                {"type": "local_shell_call_output", "call_id": "3", "output": "z"},
            ],
            "tools": [
                {"type": "function", **FUNCTION},
                {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]},
                {"type": "custom", "name": "patch"},
                {"type": "web_search"},
            ],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "patch"}]},
            "text": {"verbosity": "low"},
        },
    ),
    Row(
        "/v1/messages",
        {
            "model": "x",
            "max_tokens": 9,
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hello"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": ""},
                        {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Oslo"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "rain"}]}
                    ],
                },
            ],
            "tools": [{"name": "weather", "input_schema": PARAMETERS}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 2_000},
        },
    ),
    Row(
        "/api/chat",
        {
            "model": "x",
            "stream": False,
            "messages": [
                {"role": "user", "content": "hello"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "weather", "arguments": {}}}],
                },
                {"role": "tool", "content": "rain", "tool_name": "weather"},
                {"role": "user", "content": "one"},
            ],
            "tools": [{"type": "function", "function": FUNCTION}],
            "options": {"temperature": 0.5, "num_ctx": 9},
        },
    ),
    Row("/api/generate", {"model": "x", "stream": False, "prompt": "one", "options": {"seed": 1}}),
)


def with_unknown(value: Any) -> Any:
    """Add unknown members to a body and to all that it holds."""
    if isinstance(value, list):
        return [with_unknown(each) for each in value]
    if not isinstance(value, dict):
        return value
    inner = {key: value[key] if _is_content(key, value[key]) else with_unknown(value[key]) for key in value}
    return inner | UNKNOWN


def _is_content(key: str, value: Any) -> bool:
    return key in FREE and isinstance(value, dict)


def places(value: Any) -> Iterator[Any]:
    """Yield the objects of a body that may have unknown members."""
    if isinstance(value, dict):
        yield value
        for key, inner in value.items():
            if not _is_content(key, inner):
                yield from places(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from places(inner)


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(obedient, may_block=True) as here:
        yield here


def without_ids(request: GenerationRequest) -> GenerationRequest:
    return replace(request, id="")


@pytest.mark.parametrize("row", ROWS, ids=[f"{number}-{row.path}" for number, row in enumerate(ROWS)])
async def test_unknown_members_change_nothing(server: ServerHarness, row: Row) -> None:
    """The model gets the same, and the answer is one."""
    unknown = with_unknown(row.body)
    assert sum("nobody_knows" in place for place in places(unknown)) > len(row.body.get("messages", ()))
    for body in (row.body, unknown):
        answer = await server.client.post(row.path, json=body)
        assert answer.status_code == 200, answer.text
    known, given = server.engine.requests
    assert without_ids(known) == without_ids(given)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions", {"id": "a", "colour": 1}),
        ("/v1/sessions", {"id": "a", "settings": {"colour": 1}}),
        ("/v1/sessions/talk/messages", {"content": "x", "colour": 1}),
        ("/v1/sessions/talk/messages", {"content": "x", "settings": {"colour": 1}}),
        ("/v1/sessions/talk/fork", {"colour": 1}),
        ("/v1/sessions/talk/rename", {"id": "b", "colour": 1}),
    ],
)
async def test_our_own_interface_says_what_it_does_not_know(
    server: ServerHarness, path: str, body: dict[str, Any]
) -> None:
    """And does nothing (S9)."""
    await server.create("talk")
    answer = await server.client.post(path, json=body)
    assert (answer.status_code, "colour" in answer.json()["detail"], len(server.store)) == (422, True, 1), answer.text
    assert server.engine.requests == []
