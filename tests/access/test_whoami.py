"""Who the caller is to the server, what it may do and how much it has taken (G9, H7)."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cfs.wire import Message, Price, WhoAmI
from cfs_server.access import tokens
from cfs_server.config.settings import ServerSettings
from cfs_server.domain.message_sizes import cost_of
from tests.access.support import bearer, gated, make
from tests.server.support import EventStream, ServerHarness, running_server, until

SCRIPTED = {
    "name": "scripted",
    "embedded": False,
    "context": 2048,
    "price": None,
    "notes": [],
    "loaded": True,
}
NOTHING = {"sessions": None, "bytes": None, "streams": None, "requests": None, "daily_tokens": None, "daily_cost": None}
NONE_SPENT = {"daily_tokens": 0, "daily_cost": 0.0}


async def test_a_token_learns_its_name_its_grants_its_limits_and_what_it_has_taken(file: Path) -> None:
    secret = make(file, "alice", "/sessions/alice", "/workspaces/=read,file", sessions=3, bytes=10_000, requests=50)
    async with gated(file, {"alice": secret}, token_streams=4) as gate:
        answer = await gate["alice"].get("/v1/whoami")
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.json() == {
            "name": "alice",
            "grants": [
                {"prefix": "/sessions/alice", "ops": ["delete", "file", "list", "read", "write"]},
                {"prefix": "/workspaces/", "ops": ["file", "read"]},
            ],
            "limits": NOTHING | {"sessions": 3, "bytes": 10_000, "streams": 4, "requests": 50},
            "usage": {"sessions": 0, "bytes": 0, "streams": 0, "requests": None, **NONE_SPENT},
            "model": SCRIPTED,
            "models": [SCRIPTED],
        }
        said = await gate["alice"].post("/v1/sessions/alice/one/messages?wait=true", content=b"hello")
        assert said.status_code == 200, said.text
        messages = (await gate["alice"].get("/v1/sessions/alice/one")).json()["history"]
        taken = sum(cost_of(Message.model_validate(each)) for each in messages)
        async with await EventStream.open(gate.server.url, "/v1/sessions/alice/events", bearer(secret)):
            used = await gate.used("alice")
            assert used.pop("daily_tokens") > 0
            assert used == {"sessions": 2, "bytes": taken, "streams": 1, "requests": None, "daily_cost": 0.0}
        await until(lambda: gate.server.parts.streams.open == 0)
        assert (await gate.used("alice"))["streams"] == 0


async def test_a_token_without_grants_may_ask_who_it_is(file: Path) -> None:
    secret = tokens.create(file, "nobody", [], expires=datetime.now(UTC) + timedelta(days=1))
    async with gated(file, {"nobody": secret}) as gate:
        who = WhoAmI.model_validate_json((await gate["nobody"].get("/v1/whoami")).content)
        assert (who.name, who.grants, who.limits.model_dump()) == ("nobody", (), NOTHING)
        assert (await gate["nobody"].get("/v1/sessions")).json()["sessions"] == []


async def test_what_a_token_made_counts_for_it_whoever_writes_there_later(file: Path) -> None:
    secrets = {name: make(file, name, "/sessions/") for name in ("alice", "bob")}
    async with gated(file, secrets) as gate:
        await gate["alice"].post("/v1/sessions", json={"id": "a"})
        await gate["bob"].post("/v1/sessions/a/messages?wait=true", content=b"hello")
        await gate["bob"].post("/v1/sessions", json={"id": "a/b"})
        alice, bob = await gate.used("alice"), await gate.used("bob")
        assert (alice["sessions"], bob["sessions"], alice["bytes"] > 0, bob["bytes"]) == (1, 1, True, 0)
        assert (await gate["bob"].delete("/v1/sessions/a")).status_code == 204
        assert (await gate.used("alice"))["sessions"] == (await gate.used("bob"))["sessions"] == 0
        assert (await gate.used("alice"))["bytes"] == 0


async def test_a_price_of_tokens_is_told() -> None:
    async with running_server(upstream_price="3, 0.25 EUR") as server:
        model = (await server.client.get("/v1/whoami")).json()["model"]
    assert model["price"] == {"prompt": 3.0, "completion": 0.25, "currency": "EUR", "cached": None}
    assert ServerSettings(upstream_price="3,15").price == Price(prompt=3, completion=15, currency="USD")
    for wrong in ("3", "3, x", "-1, 2", "1, 2 euros", "nan, 1", "3; 4"):
        with pytest.raises(ValueError, match="two numbers and a currency"):
            ServerSettings(upstream_price=wrong)


async def test_without_tokens_the_caller_is_local(server: ServerHarness) -> None:
    assert (await server.client.get("/v1/whoami")).json() == {
        "name": "local",
        "grants": [
            {
                "prefix": "/",
                "ops": ["delete", "file", "list", "read_binary", "read_file", "read_re", "write"],
            }
        ],
        "limits": NOTHING,
        "usage": {"sessions": 0, "bytes": 0, "streams": 0, "requests": None, **NONE_SPENT},
        "model": SCRIPTED,
        "models": [SCRIPTED],
    }
