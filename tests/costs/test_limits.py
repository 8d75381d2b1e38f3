"""Limits of spending hold for every way in, over restarts, and say which one it is and when it ends (H10)."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from cfs_server.access import tokens
from cfs_server.domain.quotas import Quota, StorageUsage
from cfs_server.domain.spending import SpendingLimit
from tests.access.support import make
from tests.costs.support import Priced, priced_server
from tests.server.openai_client import blocking
from tests.upstream.stub import Speech

HELLO: Any = [{"role": "user", "content": "hello"}]
DAILY = "the daily limit; it ends at 00:00 UTC, in"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Priced]:
    """A server whose default model has a price."""
    with priced_server(tmp_path_factory.mktemp("limits")) as found:
        yield found


def budget(server: Priced, session: str, value: str | None) -> httpx.Response:
    """Set the budget of a session."""
    return server.client.patch(f"/v1/sessions/{session}/settings", json={"budget": value})


def spent_session(server: Priced, name: str, value: str = "$0.01") -> str:
    """Make a session that has spent its budget."""
    settings = {"budget": value}
    server.client.post("/v1/sessions", json={"id": name, "settings": settings}).raise_for_status()
    assert server.say(name, "hello").status_code == 200, "the limit is looked at before a turn, not in it"
    return name


def refused(answer: httpx.Response, reason: str) -> None:
    """Check that an answer is a refusal for this reason."""
    assert answer.status_code == 429, answer.text
    assert reason in answer.text, answer.text


def test_a_session_beyond_its_budget_gets_no_turn_until_the_budget_is_raised(server: Priced) -> None:
    name = spent_session(server, "money", "$0.01")
    before = server.client.get(f"/v1/sessions/{name}").json()
    asked = len(server.stub.bodies)
    refused(server.say(name, "again"), "of $0.01, its budget; it goes on when its setting budget is raised")
    after = server.client.get(f"/v1/sessions/{name}").json()
    assert (after["messages"], after["etag"], len(server.stub.bodies)) == (before["messages"], before["etag"], asked)
    budget(server, name, "$5").raise_for_status()
    assert server.say(name, "again").status_code == 200
    budget(server, name, None).raise_for_status()
    assert server.say(name, "again").status_code == 200


def test_a_budget_may_be_in_tokens(server: Priced) -> None:
    name = spent_session(server, "tokens", "2")
    refused(server.say(name, "again"), "of 2 tokens, its budget")


@pytest.mark.parametrize("value", ["0", "-1", "$", "$-1", "1.5", "$1.0000000", "five", "", "€1"])
def test_a_budget_that_is_none_is_refused(server: Priced, value: str) -> None:
    server.client.put("/dav/sessions/bad", content=b"").raise_for_status()
    assert budget(server, "bad", value).status_code == 422


def test_messages_that_wait_are_answered_by_the_reason(server: Priced) -> None:
    """They were accepted when there was something left."""
    server.client.post("/v1/sessions", json={"id": "queue", "settings": {"budget": "$0.01"}}).raise_for_status()
    server.stub.acts.append(Speech(words=["word"] * 20))
    server.stub.pace = 0.05
    for text in ("one", "two"):
        server.client.post("/v1/sessions/queue/messages", content=text.encode()).raise_for_status()
    server.stub.pace = 0
    history = server.client.get("/v1/sessions/queue", params={"wait": 30}).json()["history"]
    assert [message["role"] for message in history] == ["user", "assistant", "user", "assistant"]
    assert "[Error: session 'queue' has spent" in history[-1]["content"]


def test_webdav_refuses_a_message_beyond_the_budget(server: Priced) -> None:
    name = spent_session(server, "dav")
    answer = server.client.put(f"/dav/sessions/{name}", content=b"again")
    assert answer.status_code == 429, answer.text
    assert server.client.get(f"/v1/sessions/{name}").json()["messages"] == 2


def test_openais_protocol_says_it_in_its_shape(server: Priced) -> None:
    name = spent_session(server, "openai")
    with (
        blocking(server.process.url) as client,
        pytest.raises(openai.RateLimitError, match="its budget") as caught,
    ):
        client.chat.completions.create(model="paid", messages=HELLO, extra_headers={"X-CFS-Session": name})
    assert isinstance(caught.value.body, dict)


def test_anthropics_protocol_says_it_in_its_shape(server: Priced) -> None:
    name = spent_session(server, "anthropic")
    with (
        anthropic.DefaultHttpxClient(trust_env=False, verify=False) as http,
        anthropic.Anthropic(api_key="none", base_url=server.process.url, max_retries=0, http_client=http) as client,
        pytest.raises(anthropic.RateLimitError, match="its budget") as caught,
    ):
        client.messages.create(model="paid", max_tokens=9, messages=HELLO, extra_headers={"X-CFS-Session": name})
    assert caught.value.body["error"]["type"] == "rate_limit_error"


def test_ollamas_protocol_says_it_in_its_shape(server: Priced) -> None:
    name = spent_session(server, "ollama")
    headers = {"X-CFS-Session": name}
    with (
        ollama.Client(server.process.url, headers=headers, trust_env=False) as client,
        pytest.raises(ollama.ResponseError, match="its budget") as caught,
    ):
        client.chat("paid", HELLO)
    assert caught.value.status_code == 429


def test_a_limit_in_dollars_refuses_a_price_in_another_currency(server: Priced) -> None:
    settings = {"budget": "$1", "model": "foreign"}
    server.client.post("/v1/sessions", json={"id": "euros", "settings": settings}).raise_for_status()
    refused(server.say("euros", "hello"), "the price of model 'foreign' is in EUR")


def test_a_daily_limit_holds_for_all_sessions_and_protocols_and_over_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    alice = make(file, "alice", "/sessions/", daily_cost=0.01)
    bob = make(file, "bob", "/sessions/", daily_tokens=1_000_000)
    flags = ("--store", str(tmp_path / "sessions.db"), "--tokens", str(file))
    body = {"model": "paid", "messages": HELLO}
    other = {"Authorization": f"Bearer {bob}"}
    with priced_server(tmp_path, *flags, token=alice) as server:
        server.client.post("/v1/chat/completions", json=body).raise_for_status()
        refused(server.say("new", "hello"), DAILY)
        assert server.client.get("/v1/sessions/new").status_code == 404, "a refusal makes no session"
        server.process.signal(signal.SIGKILL)
    with priced_server(tmp_path, *flags, token=alice) as server:
        answer = server.client.post("/v1/chat/completions", json=body)
        refused(answer, DAILY)
        assert answer.json()["error"]["message"].startswith("alice has spent $")
        assert 0 < float(answer.headers["Retry-After"]) <= 86_400
        claude = {"model": "paid", "max_tokens": 9, "messages": HELLO}
        answer = server.client.post("/v1/messages", json=claude)
        refused(answer, DAILY)
        assert answer.json()["error"]["type"] == "rate_limit_error"
        refused(server.client.post("/api/chat", json=body), DAILY)
        refused(server.client.post("/v1/responses", json={"model": "paid", "input": "hello"}), DAILY)
        import_ = {"id": "imported", "transcript": "User: hello\n"}
        refused(server.client.post("/v1/sessions", json=import_), DAILY)
        refused(server.client.put("/dav/sessions/dav", content=b"hello"), "")
        me = server.client.get("/v1/whoami").json()
        assert me["limits"]["daily_cost"] == 0.01
        assert me["usage"]["daily_cost"] > 0.01
        assert server.say("bobs", "hello", **other).status_code == 200
        rows = server.client.get("/v1/costs", headers=other).json()["costs"]
        assert {row["principal"] for row in rows} == {"bob"}, "others' costs are nobody's business"
        assert {row["principal"] for row in server.costs()} == {"alice"}


def test_embeddings_count_for_the_daily_limit_in_both_protocols(tmp_path: Path) -> None:
    """A token that may not write gets none."""
    file = tmp_path / "tokens.toml"
    alice = make(file, "alice", "/sessions/", daily_tokens=10)
    reader = {"Authorization": f"Bearer {make(file, 'reader', '/sessions/=read')}"}
    body = {"model": "paid", "input": ["a", "b"]}
    with priced_server(tmp_path, "--tokens", str(file), token=alice) as server:
        usage = server.client.post("/v1/embeddings", json=body).raise_for_status().json()["usage"]
        assert usage == {"prompt_tokens": 14, "total_tokens": 14, "cost": 0.14}
        me = server.client.get("/v1/whoami").json()["usage"]
        assert (me["daily_tokens"], me["daily_cost"]) == (14, 0.14)
        asked = len(server.stub.bodies)
        for path, request in (
            ("/v1/embeddings", body),
            ("/api/embed", body),
            ("/api/embeddings", {"model": "paid", "prompt": "a"}),
        ):
            refused(server.client.post(path, json=request), DAILY)
            denied = server.client.post(path, json=request, headers=reader)
            assert (denied.status_code, "may not use the model" in denied.text) == (403, True)
        assert len(server.stub.bodies) == asked
        assert isinstance(server.client.post("/api/embed", json=body).json()["error"], str)
        assert server.client.post("/v1/embeddings", json=body).json()["error"]["type"] == "rate_limit_error"


def test_the_tokens_file_and_the_command_state_daily_limits(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    make(file, "alice", "/sessions/", daily_tokens=5, daily_cost=0.5)
    limits = tokens.load(file)["alice"].limits
    assert (limits.daily_tokens, limits.daily_cost) == (5, 0.5)
    assert "daily_cost = 0.5" in file.read_text()


def test_a_share_spends_for_its_principal() -> None:
    server = StorageUsage("the server", Quota())
    alice = server.part("alice", Quota(daily=SpendingLimit(tokens=1)))
    alice.pays = True
    assert alice.part("share:x", Quota()).payer is alice
