"""Search in the messages of sessions: what is found, in which order, and for whom (G9)."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.wire import Message, SearchResults
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.journal.journal import Journal
from cfs_server.journal.sqlite import SqliteBackend
from cfs_server.sessions.search import excerpt, like, search
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore
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
    "fox": [5, 0],
    "strasse": [1],
    "STRAßE": [1],
    "世": [2],
    "好，世": [2],
    "100% of": [3],
    "100%of": [],
    "10_%": [],
    "_under_": [3],
    "_u": [3],
    '"quoted"': [3],
    "\\back\\": [3],
    "slash\nnext": [3],
    "ünïCODE": [4],
    "àé": [4],
    "🦊": [5],
    "ПРИВЕТ": [6],
    "x": [5, 3, 0],
    "*": [],
    "fox' OR 1=1 --": [],
}


async def find(client: httpx.AsyncClient, q: str, **params: Any) -> SearchResults:
    """Search by REST."""
    answer = await client.get("/v1/search", params={"q": q} | params)
    assert answer.status_code == 200, answer.text
    return SearchResults.model_validate_json(answer.content)


def transcript() -> list[dict[str, str]]:
    return [{"role": "system", "content": text} for text in TEXTS]


@pytest.mark.parametrize("query", QUERIES)
async def test_words_are_found_as_they_stand(server: ServerHarness, query: str) -> None:
    await server.client.post("/v1/sessions", json={"id": "a", "messages": transcript()})
    found = await find(server.client, query)
    assert [each.index for each in found.results] == QUERIES[query]
    for each in found.results:
        assert each.role == "system"
        assert each.ranges
        assert {each.text[begin:end].casefold() for begin, end in each.ranges} == {query.casefold()}


async def test_newest_messages_come_first(server: ServerHarness) -> None:
    for session in ("a", "b", "a"):
        await server.say(session, f"hello {session}", wait="true")
    found = await find(server.client, "HELLO", limit=4)
    assert [(each.session, each.index) for each in found.results] == [("a", 3), ("a", 2), ("b", 1), ("b", 0)]
    assert found.truncated
    assert found.results[0].title == "hello a"
    assert not (await find(server.client, "hello")).truncated
    assert [each.session for each in (await find(server.client, "hello", prefix="b")).results] == ["b", "b"]
    await server.client.delete("/v1/sessions/a")
    await server.client.put("/v1/sessions/b/transcript", content="Tool: bye\n", headers={"If-Match": "*"})
    assert (await find(server.client, "hello")).results == ()


async def test_what_cannot_be_searched_for_is_refused(server: ServerHarness) -> None:
    for params in ({}, {"q": ""}, {"q": "x" * 201}, {"q": "x", "limit": "0"}, {"q": "x", "limit": "101"}):
        assert (await server.client.get("/v1/search", params=params)).status_code == 422


async def test_a_tenant_finds_its_own_messages_only(server: ServerHarness) -> None:
    """G9: nor does it learn that there are others: neither by results, nor by their number."""
    mine = {"alice": [grant("/sessions/alice")], "bob": [grant("/sessions/bob")]}
    listing = [grant("/sessions", "list", "file", "write")]
    async with guests(server, **mine, carol=listing) as who:
        for name in ("alice", "bob"):
            await who[name].create(f"{name}/notes", f"User: a secret of {name}\nAssistant: yes\n")
        for name in ("alice", "bob"):
            found = await find(who[name].client, "secret", limit=1)
            assert [each.session for each in found.results] == [f"{name}/notes"]
            assert not found.truncated
        assert (await find(who["alice"].client, "secret", prefix="bob")).results == ()
        assert (await find(who["carol"].client, "secret")) == SearchResults(results=(), truncated=False)
        who["alice"].may(*listing)
        assert (await find(who["alice"].client, "secret")).results == ()


# -- the store --------------------------------------------------------------------------------------------------------


async def indices(sessions: list[Session], journal: Journal, words: str) -> list[tuple[str, int]]:
    found, _ = await search(sessions, journal, words, 100, "test")
    return [(each.session.id, each.index) for each in found]


async def test_unloaded_histories_are_searched_in_the_store(tmp_path: Path) -> None:
    """The same is found as in memory; nothing of what was deleted or replaced."""
    engine = ScriptedEngine()
    await engine.start()
    journal = Journal(SqliteBackend(tmp_path / "sessions.db"))
    await journal.open()
    async with SessionStore(engine, journal=journal) as store:
        history = SizedMessages.of(Message(role="system", content=text) for text in TEXTS)
        kept, copy = store.create("kept", None, history), store.create("other", None, history)
        store.replace("other", SizedMessages.of([Message(role="user", content="a fox, now")]), "*")
        store.create("gone", None, history)
        store.delete("gone")
        await store.wait_settled(copy)
        await journal.durable()
        sessions = list(store)
        before = {query: await indices(sessions, journal, query) for query in QUERIES}
        for session in sessions:
            session.history.unload()
        assert {query: await indices(sessions, journal, query) for query in QUERIES} == before
        assert ("other", 0) in before["fox"]
        assert [index for name, index in before["世"] if name == "kept"] == [2]
        assert not any(name == "other" for name, _ in before["世"])
        assert kept.history.loaded is False
    await journal.close()
    await engine.stop()


@given(st.text(min_size=1, max_size=20), st.text(max_size=200), st.text(max_size=200))
def test_excerpt_shows_each_match(words: str, before: str, after: str) -> None:
    content = before + words + after
    found = excerpt(content, words)
    assert found.ranges
    begin, end = found.ranges[0]
    assert words.casefold() in found.text[begin:end].casefold() or len(words.casefold()) != len(words)
    assert len(found.text) <= 60 + 140 + 20 + 3


def test_pattern_is_the_longest_plain_part() -> None:
    assert like('say "hello world" é') == "%hello world%"
    assert like("éé") == "%%"
    assert like("100%_你好") == "%100%"
