"""The cost of a turn is computed when it ends, stored with its usage, and the same on all interfaces (H10)."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfs.contract.money import money
from cfs.wire import Price, Usage
from cfs_server.config.settings import price_of
from cfs_server.connect.known_prices import default_price
from cfs_server.domain.spending import priced
from tests.costs.support import PRICE, Priced, cost_of, priced_server
from tests.upstream.stub import Speech


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Priced]:
    """A server whose default model has a price."""
    with priced_server(tmp_path_factory.mktemp("costs")) as found:
        yield found


def test_a_turn_costs_what_its_tokens_cost_and_all_interfaces_agree(server: Priced) -> None:
    server.stub.acts.append(Speech(words=("one", "two"), cached=2))
    usage = server.say("agree", "a message of some words").json()["usage"]
    assert usage["cached_tokens"] == 2
    assert usage["cost"] == cost_of(usage) > 0
    detail = server.client.get("/v1/sessions/agree").json()
    assert detail["cost"] == usage["cost"]
    with server.client.stream("GET", "/v1/sessions/agree/events", params={"after": 0}) as stream:
        finished = next(json.loads(line[6:]) for line in stream.iter_lines() if '"finish_reason"' in line)
    assert finished["data"]["usage"] == usage
    (row,) = [row for row in server.costs() if row["session"] == "agree"]
    assert (row["principal"], row["model"], row["turns"], row["cost"]) == ("local", "paid", 1, usage["cost"])
    assert (row["prompt_tokens"], row["cached_tokens"]) == (usage["prompt_tokens"], 2)
    me = server.client.get("/v1/whoami").json()
    assert me["usage"]["daily_cost"] == pytest.approx(sum(row["cost"] for row in server.costs()))
    assert 'cfs_cost_dollars_total{model="paid",principal="local"}' in server.client.get("/metrics").text


def test_a_model_without_a_price_costs_nothing_and_says_so(server: Priced) -> None:
    server.client.post("/v1/sessions", json={"id": "free", "settings": {"model": "free"}}).raise_for_status()
    usage = server.say("free", "hello").json()["usage"]
    assert usage["cost"] is None
    (row,) = [row for row in server.costs() if row["session"] == "free"]
    assert (row["cost"], row["unpriced_tokens"]) == (0, usage["prompt_tokens"] + usage["completion_tokens"])


def test_completions_without_a_session_are_counted_too(server: Priced) -> None:
    body = {"model": "paid", "messages": [{"role": "user", "content": "hello"}]}
    before = sum(row["cost"] for row in server.costs())
    server.client.post("/v1/chat/completions", json=body).raise_for_status()
    (row,) = [row for row in server.costs() if row["session"] == ""]
    assert row["cost"] > 0
    assert sum(row["cost"] for row in server.costs()) > before


def test_a_client_that_leaves_in_the_middle_of_a_reply_pays_for_what_it_got(server: Priced) -> None:
    server.stub.acts.append(Speech(words=["word"] * 10_000))
    server.stub.pace = 0.01
    body = {"model": "free", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(line for line in answer.iter_lines() if "word" in line)
    server.stub.pace = 0
    while not any(row["model"] == "free" and row["session"] == "" for row in server.costs()):
        pass
    (row,) = [row for row in server.costs() if row["model"] == "free" and row["session"] == ""]
    assert row["prompt_tokens"] > 0
    assert row["completion_tokens"] > 0


def test_costs_outlive_a_change_of_prices_a_deletion_and_a_restart(tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "sessions.db"))
    with priced_server(tmp_path, *store) as server:
        cost = server.say("a", "hello").json()["usage"]["cost"]
        gone = server.say("b", "hello").json()["usage"]["cost"]
        server.client.delete("/v1/sessions/b").raise_for_status()
        text = server.file.read_text()
        server.file.write_text(text.replace(PRICE, "20000, 2000, 100000 USD"))
        while server.client.get("/v1/whoami").json()["model"]["price"]["prompt"] != 20_000:
            pass  # the server looks at the file by and by
        assert server.client.get("/v1/sessions/a").json()["cost"] == cost
        rows = server.costs()
        assert sorted(row["session"] for row in rows) == ["a", "b"]
        server.process.signal(signal.SIGKILL)
    with priced_server(tmp_path, *store) as server:
        assert server.costs() == rows
        assert server.client.get("/v1/sessions/a").json()["cost"] == cost
        assert server.client.get("/v1/whoami").json()["usage"]["daily_cost"] == pytest.approx(cost + gone)


def test_prices_of_public_servers_come_with_the_program() -> None:
    """Nothing is fetched: a server on this machine has no price, whatever its model is called."""
    openai = f"https://{'api.openai.com/v1'}"
    price = default_price(openai, "gpt-4o")
    assert price == Price(prompt=2.5, cached=1.25, completion=10, currency="USD")
    assert default_price("http://127.0.0.1:8080/v1", "gpt-4o") is None
    assert default_price(openai, "no-such-model") is None
    assert default_price(None, "gpt-4o") is None


def test_cached_tokens_cost_what_their_price_says_or_as_much_as_others() -> None:
    usage = Usage(prompt_tokens=1000, cached_tokens=400, completion_tokens=100)
    assert priced(usage, price_of("3, 0.3, 15")).cost == pytest.approx((600 * 3 + 400 * 0.3 + 100 * 15) / 1e6)
    assert priced(usage, price_of("3, 15")).cost == pytest.approx((1000 * 3 + 100 * 15) / 1e6)
    assert priced(usage, price_of("3, 15 EUR")).cost is None
    assert priced(usage, None).cost is None
    assert [money(each) for each in (0, 0.5, 0.000123, 12)] == ["$0.00", "$0.50", "$0.000123", "$12.00"]
