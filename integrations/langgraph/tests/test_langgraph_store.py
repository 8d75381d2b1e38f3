"""The store of LangGraph on a real server, by itself and in a graph (C11)."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore, GetOp, InvalidNamespaceError, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from cfs import Forbidden, InvalidIdentifier, InvalidRequest, Unsupported, api
from cfs.transports.http import Client
from cfs_langgraph import CFSStore
from pytest_cfs import ScriptedServer
from tests.access.support import make
from tests.server.support import serving

BOOKS = ("users", "7", "books")


@pytest.fixture
def store(cfs_server: ScriptedServer) -> Iterator[CFSStore]:
    with CFSStore() as made:
        yield made


def keys(found: Any) -> list[str]:
    return sorted(item.key for item in found)


def test_an_item_comes_back(store: CFSStore, cfs_server: ScriptedServer) -> None:
    """Another program sees it, too; a change keeps the time of its creation."""
    assert store.get(BOOKS, "emma") is None
    store.put(BOOKS, "emma", {"author": "Austen", "pages": [1, None, 2.5], "nested": {"日本": True}})
    with CFSStore() as another:
        first = another.get(BOOKS, "emma")
        assert first is not None
        assert (first.namespace, first.key) == (BOOKS, "emma")
        assert first.value == {"author": "Austen", "pages": [1, None, 2.5], "nested": {"日本": True}}
        another.put(BOOKS, "emma", {"author": "Jane Austen"})
    second = store.get(BOOKS, "emma")
    assert second is not None
    assert second.value == {"author": "Jane Austen"}
    assert second.created_at == first.created_at < second.updated_at
    store.delete(BOOKS, "emma")
    store.delete(BOOKS, "emma")
    assert store.get(BOOKS, "emma") is None
    assert store.search(()) == []


def test_a_person_can_read_an_item(store: CFSStore, cfs_server: ScriptedServer) -> None:
    store.put(BOOKS, "emma", {"author": "Björk"})
    with Client(cfs_server.url) as client:
        text = client.call(api.read_file("/workspaces/langgraph-store/users/7/books/emma.json")).content.decode()
    assert '"value": {\n "author": "Björk"\n}' in text
    assert json.loads(text).keys() == {"created_at", "updated_at", "value"}


async def test_coroutines_do_the_same(cfs_server: ScriptedServer) -> None:
    async with CFSStore() as store:
        await store.aput(BOOKS, "emma", {"pages": 474})
        item = await store.aget(BOOKS, "emma")
        assert item is not None
        assert item == store.get(BOOKS, "emma")
        assert await store.asearch(("users",), filter={"pages": {"$gt": 400}}) == [item]
        assert await store.alist_namespaces() == [BOOKS]
        await store.adelete(BOOKS, "emma")
        assert await store.aget(BOOKS, "emma") is None


def filled(store: BaseStore) -> BaseStore:
    store.put(BOOKS, "emma", {"author": "Austen", "pages": 474, "tags": ["novel"], "where": {"shelf": 2, "row": 1}})
    store.put(BOOKS, "ulysses", {"author": "Joyce", "pages": 730, "tags": ["novel", "long"], "where": {"shelf": 3}})
    store.put(("users", "7"), "name", {"name": "Alice"})
    store.put(("users", "77", "books"), "emma", {"author": "Austen", "pages": 480})
    store.put(("teams",), "a", {"pages": 1})
    return store


@pytest.mark.parametrize(
    ("prefix", "wanted"),
    [
        ((), None),
        (("users", "7"), None),
        (BOOKS, None),
        (("us",), None),
        (("users",), {"author": "Austen"}),
        (("users",), {"author": {"$ne": "Austen"}}),
        (BOOKS, {"pages": {"$gt": 474}}),
        (BOOKS, {"pages": {"$gte": 474, "$lt": 730}}),
        (BOOKS, {"pages": {"$lte": 474}, "author": "Austen"}),
        (BOOKS, {"where": {"shelf": 2}}),
        (BOOKS, {"where": {"shelf": {"$gt": 2}}}),
        (BOOKS, {"tags": ["novel"]}),
        (BOOKS, {"tags": {"$eq": ["novel", "long"]}}),
        (("users",), {"missing": None}),
    ],
)
def test_a_search_finds_what_the_store_in_memory_finds(
    store: CFSStore, prefix: tuple[str, ...], wanted: dict[str, Any] | None
) -> None:
    other = filled(InMemoryStore())
    expected = {(item.namespace, item.key) for item in other.search(prefix, filter=wanted)}
    assert {(item.namespace, item.key) for item in filled(store).search(prefix, filter=wanted)} == expected


def test_a_comparison_with_something_else_does_not_fit(store: CFSStore) -> None:
    filled(store)
    assert store.search((), filter={"author": {"$gt": 3}}) == []
    assert keys(store.search((), filter={"pages": {"$lt": 10}})) == ["a"]
    with pytest.raises(InvalidRequest, match=r"'\$near'"):
        store.search((), filter={"pages": {"$near": 10}})


def test_pages_of_a_search(store: CFSStore, cfs_server: ScriptedServer) -> None:
    """What changed last comes first, with a filter and without."""
    with Client(cfs_server.url) as client:
        last = 0.0
        for number in (0, 1, 2, 3, 4, 5, 6, 2):
            path = f"/workspaces/langgraph-store/n/{number}.json"
            store.put(("n",), f"{number}", {"number": number, "odd": bool(number % 2)})
            while (now := client.call(api.file(path)).updated_at) <= last:  # the clock of files has coarse ticks
                store.put(("n",), f"{number}", {"number": number, "odd": bool(number % 2)})
            last = now
    assert [item.key for item in store.search(("n",))] == ["2", "6", "5", "4", "3", "1", "0"]
    assert [item.key for item in store.search(("n",), limit=2, offset=3)] == ["4", "3"]
    assert [item.key for item in store.search(("n",), filter={"odd": False}, limit=2, offset=1)] == ["6", "4"]
    assert store.search(("n",), offset=9) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prefix": ("users",)},
        {"prefix": ("users", "*", "books")},
        {"suffix": ("books",)},
        {"suffix": ("*", "books"), "prefix": ("users",)},
        {"max_depth": 1},
        {"max_depth": 2, "prefix": ("users",)},
        {"limit": 2, "offset": 1},
        {"prefix": ("nothing",)},
    ],
)
def test_namespaces_are_those_of_the_store_in_memory(store: CFSStore, arguments: dict[str, Any]) -> None:
    expected = filled(InMemoryStore()).list_namespaces(**arguments)
    assert filled(store).list_namespaces(**arguments) == expected


def test_operations_together(store: CFSStore) -> None:
    """Reads see what was there before; of two writes of one item the last one counts."""
    store.put(BOOKS, "emma", {"pages": 1})
    results = store.batch(
        [
            PutOp(BOOKS, "emma", {"pages": 2}),
            GetOp(BOOKS, "emma"),
            PutOp(BOOKS, "emma", {"pages": 3}),
            PutOp(BOOKS, "ulysses", {"pages": 4}),
            SearchOp(("users",)),
            PutOp(BOOKS, "ulysses", None),
        ]
    )
    assert cast("Any", results[1]).value == {"pages": 1}
    assert len(cast("Any", results[4])) == 1
    assert [results[index] for index in (0, 2, 3, 5)] == [None] * 4
    assert [(item.key, item.value) for item in store.search(())] == [("emma", {"pages": 3})]


@pytest.mark.parametrize("label", ["a/b", "100%", "*", "日本", "a b", "\\", "\u2044", "x\ny"])
def test_names_may_have_any_characters(store: CFSStore, label: str) -> None:
    for key in (label, f"{label}.json", "..", "", ".hidden"):
        store.put((label, "x"), key, {"key": key})
        item = store.get((label, "x"), key)
        assert item is not None
        assert (item.namespace, item.key, item.value) == ((label, "x"), key, {"key": key})
    assert keys(store.search((label,))) == sorted((label, f"{label}.json", "..", "", ".hidden"))
    assert store.list_namespaces() == [(label, "x")]


def test_what_is_not_supported_is_refused_and_nothing_is_stored(store: CFSStore) -> None:
    with pytest.raises(Unsupported, match="without a query"):
        store.search((), query="books about love")
    with pytest.raises(NotImplementedError, match="TTL is not supported by CFSStore"):
        store.put(BOOKS, "emma", {}, ttl=5)
    with pytest.raises(Unsupported, match="do not expire"):
        store.batch([PutOp(BOOKS, "ulysses", {}), PutOp(BOOKS, "emma", {}, ttl=5)])
    for wrong in ({"x": {1, 2}}, {"x": float("nan")}):
        with pytest.raises(InvalidRequest, match="'emma' cannot be stored as JSON"):
            store.batch([PutOp(BOOKS, "ulysses", {}), PutOp(BOOKS, "emma", wrong)])
    for namespace in ((), ("a.b",), ("",), ("langgraph", "x")):
        with pytest.raises(InvalidNamespaceError):
            store.put(namespace, "emma", {})
    with pytest.raises(InvalidNamespaceError):
        store.batch([PutOp(("..",), "emma", {})])
    with pytest.raises(InvalidIdentifier):
        store.put(("\ud800",), "emma", {})
    assert store.search(()) == []


def test_writers_at_the_same_time_leave_one_whole_item_each(store: CFSStore) -> None:
    def write(number: int) -> None:
        for name in ("shared", f"own {number}"):
            store.put(BOOKS, name, {"number": number, "text": "x" * 10_000})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(24)))
    found = {item.key: item.value for item in store.search(BOOKS, limit=100)}
    assert len(found) == 25
    assert all(found[f"own {number}"]["number"] == number for number in range(24))
    assert found["shared"]["number"] in range(24)


def test_what_others_put_beside_items(store: CFSStore, cfs_server: ScriptedServer) -> None:
    """Files of other names are left alone; one that looks like an item and is none is named, and may be replaced."""
    store.put(BOOKS, "emma", {})
    folder = "/workspaces/langgraph-store"
    with Client(cfs_server.url) as client:
        for path in (f"{folder}/users/7/notes.txt", f"{folder}/top.json"):
            client.call(api.write_file(path, b"{}"))
        assert keys(store.search(())) == ["emma"]
        assert store.list_namespaces() == [BOOKS]
        client.call(api.write_file(f"{folder}/users/7/broken.json", b"[]"))
    with pytest.raises(InvalidRequest, match=f"{folder}/users/7/broken.json cannot be read as an item"):
        store.search(())
    store.put(("users", "7"), "broken", {"now": "whole"})
    assert keys(store.search(())) == ["broken", "emma"]


def test_stores_are_apart(store: CFSStore) -> None:
    with CFSStore("team/memory") as other:
        other.put(BOOKS, "emma", {"pages": 1})
        assert keys(other.search(())) == ["emma"]
    assert store.search(()) == []


def test_grants_and_restarts(tmp_path: Path) -> None:
    tokens, data = tmp_path / "tokens.toml", tmp_path / "data"
    writer = make(tokens, "writer", "/workspaces/memory/")
    reader = make(tokens, "reader", "/workspaces/memory/users/7/=list,file,read")
    flags = ("--engine", "scripted", "--tokens", str(tokens), "--data-dir", str(data))
    with serving(*flags) as server:
        with CFSStore("memory", url=server.url, token=writer) as store:
            store.put(BOOKS, "emma", {"pages": 474})
            store.put(("users", "8"), "secret", {})
        server.process.kill()
        server.process.wait()
    with serving(*flags) as server, CFSStore("memory", url=server.url, token=reader) as store:
        assert keys(store.search(())) == ["emma"]
        item = store.get(BOOKS, "emma")
        assert item is not None
        assert item.value == {"pages": 474}
        with pytest.raises(Forbidden):
            store.put(BOOKS, "emma", {})
        with pytest.raises(Forbidden):
            store.delete(BOOKS, "emma")


def test_nodes_of_a_graph_share_what_they_remember(store: CFSStore) -> None:
    def remember(state: MessagesState, runtime: Runtime[Any]) -> dict[str, list[tuple[str, str]]]:
        assert runtime.store is not None
        known = runtime.store.search(("facts",))
        runtime.store.put(("facts",), f"{len(known)}", {"text": state["messages"][-1].text})
        return {"messages": [("ai", f"{len(known)} facts before")]}

    graph = StateGraph(MessagesState)
    graph.add_node("remember", remember)
    graph.add_edge(START, "remember")
    app = cast("Any", graph.compile(store=store))
    for expected in ("0 facts before", "1 facts before"):
        assert app.invoke({"messages": [("user", "I like tea.")]})["messages"][-1].text == expected
