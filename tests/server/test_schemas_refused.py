"""JSON schemas that cannot be enforced are refused, by name and place: the real worker, the embedded model."""

import json
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.server.support import Process, ServerHarness

KEPT: Any = {"type": "integer", "minimum": 1, "maximum": 9}
UNKEPT: Any = {"type": "array", "items": KEPT, "uniqueItems": True, "maxItems": 2}
FEW: Any = {"max_tokens": 60, "temperature": 0}
HELLO: Any = [{"role": "user", "content": "Hello!"}]


def form(schema: Any) -> dict[str, Any]:
    """Write a response format."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def tool(schema: Any) -> dict[str, Any]:
    """Describe a tool."""
    return {"type": "function", "function": {"name": "pick", "parameters": schema}}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_completion_under_a_schema_that_cannot_be_enforced_is_refused(
    model_server: Process, stream: bool
) -> None:
    """With the keyword and its place; what can be enforced is answered."""
    async with httpx.AsyncClient(base_url=model_server.url, timeout=60) as client:
        for schema, status in ((UNKEPT, 400), (KEPT, 200)):
            asked = {"model": "x", "messages": HELLO, "stream": stream, "response_format": form(schema), **FEW}
            answer = await client.post("/v1/chat/completions", json=asked)
            assert answer.status_code == status
            assert ("'uniqueItems' at # cannot be enforced" in answer.text) == (status == 400)


async def test_a_message_under_a_schema_that_cannot_be_enforced_fails(model_server: Process) -> None:
    async with httpx.AsyncClient(base_url=model_server.url, timeout=60) as client:
        said = {"content": "Hello!", "settings": FEW, "response_format": form(UNKEPT)}
        answer = await client.post("/v1/sessions/refused/messages?wait=true", json=said)
    assert answer.json()["finish_reason"] == "error"
    assert "'uniqueItems' at # cannot be enforced" in answer.json()["error"]


async def test_a_call_that_is_required_is_made_whatever_its_schema_says(model_server: Process) -> None:
    """What cannot be enforced of a tool's arguments is left out, as it is of calls that the model makes by itself."""
    schema = {"type": "object", "properties": {"numbers": UNKEPT}, "required": ["numbers"]}
    asked = {"model": "x", "messages": HELLO, "tools": [tool(schema)], "tool_choice": "required", **FEW}
    async with httpx.AsyncClient(base_url=model_server.url, timeout=60) as client:
        answer = await client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "pick"
    properties = {"numbers": {key: value for key, value in UNKEPT.items() if key != "uniqueItems"}}
    jsonschema_rs.validate(schema | {"properties": properties}, json.loads(call["function"]["arguments"]))


async def test_an_engine_that_does_not_know_leaves_schemas_alone(server: ServerHarness) -> None:
    """What another server makes of a schema is its own affair."""
    answer = await server.client.post(
        "/v1/sessions/a/messages?wait=true", json={"content": "x", "response_format": form(UNKEPT)}
    )
    assert answer.status_code == 200
