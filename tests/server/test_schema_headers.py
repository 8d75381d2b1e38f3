"""An answer says which keywords of its JSON schema the reply may break: the real worker, the embedded model."""

from typing import Any

import httpx
import pytest

from cfs_server.engine.gbnf.keeping import unkept
from tests.server.support import House, Process

HEADER = "X-CFS-Schema-Unkept"
KEPT: Any = {"type": "integer", "minimum": 1, "maximum": 9}
UNKEPT: Any = {"type": "array", "items": KEPT | {"multipleOf": 3}, "uniqueItems": True, "maxItems": 2}
FEW: Any = {"max_tokens": 12, "temperature": 0}


def form(schema: Any) -> dict[str, Any]:
    """Write a response format."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("schema", "told"), [(KEPT, None), (UNKEPT, "multipleOf, uniqueItems"), (None, None)])
async def test_a_completion_names_what_its_grammar_does_not_keep(
    model_server: Process, stream: bool, schema: Any, told: str | None
) -> None:
    """Whether it comes at once or in pieces; without a schema, or where all of it is kept, there is no header."""
    asked = {"model": "x", "messages": [{"role": "user", "content": "Hello!"}], "stream": stream, **FEW}
    if schema is not None:
        asked["response_format"] = form(schema)
    async with httpx.AsyncClient(base_url=model_server.url, timeout=60) as client:
        answer = await client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200
    assert answer.headers.get(HEADER) == told


@pytest.mark.parametrize("query", ["", "?wait=true"])
async def test_a_message_names_what_its_grammar_does_not_keep(model_server: Process, query: str) -> None:
    """In the acceptance, and in the reply that was waited for; the events of the turn tell the same."""
    said = {"content": "Hello!", "settings": FEW, "response_format": form(UNKEPT)}
    async with httpx.AsyncClient(base_url=model_server.url, timeout=60) as client:
        path = f"/v1/sessions/unkept{len(query)}/messages{query}"
        answer = await client.post(path, json=said)
        assert answer.headers.get(HEADER) == "multipleOf, uniqueItems"
        events = await client.post(path.partition("?")[0], json=said, headers={"Accept": "text/event-stream"})
        assert events.headers.get(HEADER) == "multipleOf, uniqueItems"
        plain = await client.post(path, json={"content": "Hello!", "settings": FEW})
        assert HEADER not in plain.headers


async def test_an_engine_that_does_not_know_says_nothing(home: House) -> None:
    """What another server keeps of a schema is its own affair."""
    answer = await home.client.post(
        "/v1/sessions/a/messages?wait=true", json={"content": "x", "response_format": form(UNKEPT)}
    )
    assert answer.status_code == 200
    assert HEADER not in answer.headers


async def test_a_schema_that_is_refused_has_nothing_to_tell() -> None:
    """It gets an error, which says why."""
    assert await unkept({"type": "no-such-type"}) == ()
    assert await unkept({"not": {}, "type": "string"}) == ("not",)
