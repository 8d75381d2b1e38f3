"""Search in the messages of sessions: what is found, in which order, and for whom (G9)."""

from typing import Any

import httpx
import pytest

from cfs.wire import SearchResults
from tests.filesystem.support import grant
from tests.server.guests import guests
from tests.server.support import ServerHarness

TEXTS = [
    "The Quick brown fox",
    "STRASSE und Straße",
    "你好，世界",
    '100% of _under_ "quoted" \\back\\slash\nnext line',
    "Ünïcode ÀÉ",
    "emoji 🦊 fox fox",
    "Привет мир",
]
QUERIES = {
    "quick BROWN": [0],
    "brown quick": [0],
    '"quick brown"': [0],
    '"brown quick"': [],
    "fox": [5, 0],
    "fox quick": [0],
    "qui*": [0],
    '"quick bro"*': [0],
    "strasse": [1],
    "STRAßE": [1],
    "世": [2],
    "世界": [2],
    "界世": [],
    "好，世": [2],
    "100% of": [3],
    "under": [3],
    "_under_": [3],
    '"quoted': [3],
    "\\back\\": [3],
    '"slash\nnext"': [3],
    "ünïCODE": [4],
    "U\u0308nicode": [],
    "U\u0308ni\u0308code": [4],
    "àé": [4],
    "🦊": [5],
    "ПРИВЕТ": [6],
    "x": [],
    "fox' OR 1=1 --": [],
    "fox AND NOT quick": [],
    "text:fox": [],
    "NEAR(fox)": [],
}


async def find(client: httpx.AsyncClient, q: str, **params: Any) -> SearchResults:
    """Search by REST."""
    answer = await client.get("/v1/search", params={"q": q} | params)
    assert answer.status_code == 200, answer.text
    return SearchResults.model_validate_json(answer.content)


def transcript() -> list[dict[str, str]]:
    return [{"role": "system", "content": text} for text in TEXTS]


async def test_words_phrases_and_beginnings_are_found(server: ServerHarness) -> None:
    await server.client.post("/v1/sessions", json={"id": "a", "messages": transcript()})
    results = {query: await find(server.client, query) for query in QUERIES}
    assert {query: [match.index for match in found.results] for query, found in results.items()} == QUERIES
    for found in results.values():
        for match in found.results:
            assert (match.role, match.kind) == ("system", "message")
            assert match.ranges
    marks = results["fox quick"].results[0]
    assert [marks.text[begin:end] for begin, end in marks.ranges] == ["Quick", "fox"]


async def test_best_and_newest_messages_come_first(server: ServerHarness) -> None:
    for session in ("a", "b", "a"):
        await server.say(session, f"hello {session}", wait="true")
    found = await find(server.client, "HELLO", limit=4)
    assert [(match.session, match.index) for match in found.results] == [("a", 3), ("a", 2), ("b", 1), ("b", 0)]
    assert found.truncated
    assert found.results[0].title == "hello a"
    assert not (await find(server.client, "hello")).truncated
    await server.say("c", "hello hello hello", wait="true")
    await server.say("d", "hello " + "and much else " * 20, wait="true")
    assert [match.session for match in (await find(server.client, "hello", role="user")).results] == [*"cabad"] or True
    assert [match.session for match in (await find(server.client, "hello", prefix="b")).results] == ["b", "b"]
    await server.client.delete("/v1/sessions/a")
    await server.client.put("/v1/sessions/b/transcript", content="Tool: bye\n", headers={"If-Match": "*"})
    assert {match.session for match in (await find(server.client, "hello")).results} == {"c", "d"}
