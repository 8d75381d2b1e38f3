"""Many sessions by one request: checked as a whole, created one by one, each failure reported (S14)."""

from typing import Any

import pytest

from tests.filesystem.support import grant
from tests.server.guests import guests
from tests.server.support import ServerHarness, running_server

HISTORY = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def session(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "messages": HISTORY, **more}


async def outcomes(server: ServerHarness, *sessions: dict[str, Any], check: bool = False) -> list[tuple[str, str]]:
    """What became of each session."""
    answer = await server.client.post("/v1/imports", json={"sessions": sessions, "check": check})
    assert answer.status_code == 200, answer.text
    return [(each["id"], each["outcome"]) for each in answer.json()["results"]]


async def test_sessions_are_created_with_settings_and_tokens(server: ServerHarness) -> None:
    batch = session("a", settings={"temperature": 0.5}, tokens=41), session("a/b"), session("empty", messages=[])
    before = server.store.bus.log.last
    assert await outcomes(server, *batch, check=True) == [("a", "absent"), ("a/b", "absent"), ("empty", "absent")]
    assert server.store.bus.log.last == before, "a check changes nothing"
    assert await outcomes(server, *batch) == [("a", "created"), ("a/b", "created"), ("empty", "created")]
    a = (await server.client.get("/v1/sessions/a")).json()
    assert (a["tokens"], a["settings"]["temperature"]) == (41, 0.5)
    assert [message["content"] for message in a["history"]] == ["hi", "hello"]
    assert await outcomes(server, *batch) == [("a", "same"), ("a/b", "same"), ("empty", "same")]
    other = session("a", messages=[{"role": "user", "content": "something else"}])
    assert await outcomes(server, other, session("c")) == [("a", "other"), ("c", "created")]


async def test_messages_have_their_times_and_sessions_their_cost(server: ServerHarness) -> None:
    """Of times that do not go as far as the messages, the rest is now; one request for a session takes them, too."""
    assert await outcomes(server, session("a", times=[5, 6.5], cost=0.25), session("b", times=[7])) == [
        ("a", "created"),
        ("b", "created"),
    ]
    answer = await server.client.post("/v1/sessions", json=session("c", times=[1, 2], cost=1))
    assert answer.status_code == 201
    a, b, c = [(await server.client.get(f"/v1/sessions/{name}")).json() for name in "abc"]
    assert (a["times"], a["cost"], c["times"], c["cost"]) == ([5, 6.5], 0.25, [1, 2], 1)
    assert b["times"][0] == 7
    assert b["times"][1] == b["created_at"] == b["updated_at"]


@pytest.mark.parametrize(
    "wrong",
    [
        session("b", times=[-1]),
        session("b", cost=-0.5),
        session("../x"),
        session("b", settings={"temperature": 9}),
        session("b", messages=[{"role": "nobody", "content": ""}]),
        {"messages": HISTORY},
        session("b", tokens=-1),
        session("b", transcript="User: hi\n"),
    ],
)
async def test_one_session_that_is_not_valid_refuses_all(server: ServerHarness, wrong: dict[str, Any]) -> None:
    answer = await server.client.post("/v1/imports", json={"sessions": [session("a"), wrong]})
    assert (answer.status_code, len(server.store)) == (422, 0), answer.text


async def test_each_failure_is_reported_and_the_others_are_created() -> None:
    async with running_server(max_sessions=2, max_messages=3) as server:
        long = session("long", messages=HISTORY * 2)
        answer = await server.client.post(
            "/v1/imports", json={"sessions": [session("a"), long, session("b"), session("c")]}
        )
        results = {each["id"]: each for each in answer.json()["results"]}
        assert {name: each["outcome"] for name, each in results.items()} == {
            "a": "created",
            "long": "refused",
            "b": "created",
            "c": "refused",
        }
        assert "3 messages at most" in results["long"]["error"]
        assert "2 sessions" in results["c"]["error"]


async def test_a_caller_imports_only_where_it_may_write(server: ServerHarness) -> None:
    async with guests(server, alice=[grant("/sessions/alice")]) as callers:
        alice = callers["alice"].client
        both = await alice.post("/v1/imports", json={"sessions": [session("alice"), session("bob")]})
        assert both.status_code == 404
        assert (await alice.get("/v1/sessions/alice")).status_code == 404
        assert (await alice.post("/v1/imports", json={"sessions": [session("alice")]})).status_code == 200
