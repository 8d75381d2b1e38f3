"""Search in the messages of sessions: what is found, in which order, and for whom (G9, S15)."""

from typing import Any

import httpx

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
    await server.say("d", "hello " + "and much else " * 40, wait="true")
    best = await find(server.client, "hello", role="user")
    assert [match.session for match in best.results] == ["c", "a", "b", "a", "d"]
    assert {match.role for match in best.results} == {"user"}
    since = best.results[0].time
    assert {match.session for match in (await find(server.client, "hello", since=since)).results} == {"c", "d"}
    assert [match.session for match in (await find(server.client, "hello", prefix="b")).results] == ["b", "b"]
    await server.client.delete("/v1/sessions/a")
    await server.client.put("/v1/sessions/b/transcript", content="Tool: bye\n", headers={"If-Match": "*"})
    assert {match.session for match in (await find(server.client, "hello")).results} == {"c", "d"}


async def test_what_cannot_be_searched_for_is_refused(server: ServerHarness) -> None:
    for params in ({}, {"q": ""}, {"q": "x" * 201}, {"q": "x", "limit": "0"}, {"q": "x", "limit": "101"}):
        assert (await server.client.get("/v1/search", params=params)).status_code == 422
    for params, reason in (
        ({"q": '*" ( '}, "contains no word"),
        ({"q": "fox a*"}, "'a*' stands for too many words"),
        ({"q": "x", "role": "robot"}, "role"),
        ({"q": "x", "since": "soon"}, "since"),
    ):
        answer = await server.client.get("/v1/search", params=params)
        assert answer.status_code == 422
        assert reason in answer.text


async def test_a_tenant_finds_its_own_messages_only(server: ServerHarness) -> None:
    """G9: nor does it learn that there are others: neither by results, nor by their number."""
    mine = {"alice": [grant("/sessions/alice")], "bob": [grant("/sessions/bob")]}
    listing = [grant("/sessions", "list", "file", "write")]
    async with guests(server, **mine, carol=listing) as who:
        for name in ("alice", "bob"):
            await who[name].create(f"{name}/notes", f"User: a secret of {name}\nAssistant: yes\n")
        for name in ("alice", "bob"):
            found = await find(who[name].client, "secret", limit=1)
            assert [match.session for match in found.results] == [f"{name}/notes"]
            assert not found.truncated
        assert (await find(who["alice"].client, "secret", prefix="bob")).results == ()
        assert (await find(who["carol"].client, "secret")) == SearchResults(results=(), truncated=False)
        who["alice"].may(*listing)
        assert (await find(who["alice"].client, "secret")).results == ()


async def test_a_search_can_be_limited_to_a_session_and_those_below_it(server: ServerHarness) -> None:
    for session in ("main", "main/coder", "main2"):
        await server.client.post(
            "/v1/sessions", json={"id": session, "messages": [{"role": "tool", "content": "apple"}]}
        )
    for root, sessions in {"main": ["main", "main/coder"], "main/coder": ["main/coder"], "no-such": []}.items():
        found = await find(server.client, "apple", **{"in": root})
        assert sorted(match.session for match in found.results) == sessions


async def test_titles_and_names_are_found(server: ServerHarness) -> None:
    await server.client.post("/v1/sessions", json={"id": "a", "settings": {"title": "A plan for the garden"}})
    await server.client.post("/v1/sessions", json={"id": "garden-shed"})
    found = await find(server.client, "garden")
    assert {(match.session, match.kind, match.role) for match in found.results} == {
        ("a", "title", None),
        ("garden-shed", "title", None),
    }
    assert (await find(server.client, "garden", role="user")).results == ()
    await server.client.patch("/v1/sessions/a/settings", json={"title": "A house"})
    assert [match.session for match in (await find(server.client, "garden")).results] == ["garden-shed"]
