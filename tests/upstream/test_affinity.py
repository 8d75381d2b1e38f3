"""What a router in front of many workers learns of a session: the same opaque value with each of its turns."""

import re
from typing import Any

import pytest

from cfs_server.engine.contract.interface import AffinityKind, UpstreamKind
from cfs_server.engine.upstream.options import InvalidOptions, affinity_of
from tests.engine.support import ask
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import MODEL, Refusal
from tests.upstream.support import pair
from tests.upstream.test_serve import in_front_of, refused

OPAQUE = re.compile(r"[0-9a-f]{32}")
BOTH = pytest.mark.parametrize("kind", ["openai", "anthropic"])


@BOTH
@pytest.mark.parametrize("affinity", ["x-session-id", "x-session-affinity"])
async def test_a_header_names_the_family(kind: UpstreamKind, affinity: AffinityKind) -> None:
    async with pair(kind, affinity=affinity) as both:
        for key, family in (("a", ""), ("a", ""), ("b", ""), ("c", "a")):
            await ask(both.engine, "hello", key, family=family)
        first, again, other, child = (head[affinity] for head in both.stub.heads)
        assert first == again == child != other
        assert all(OPAQUE.fullmatch(value) for value in (first, other))
        assert {"x-session-id", "x-session-affinity"} & both.stub.heads[0].keys() == {affinity}


def member(kind: UpstreamKind, affinity: AffinityKind, body: dict[str, Any]) -> str | None:
    """What a body says of the family."""
    found = body.get("metadata", {}).get("user_id") if kind == "anthropic" else body.get(affinity)
    assert found is None or isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("kind", "affinity"), [("openai", "prompt_cache_key"), ("openai", "user"), ("anthropic", "user")]
)
async def test_a_member_of_the_body_names_the_family(kind: UpstreamKind, affinity: AffinityKind) -> None:
    async with pair(kind, affinity=affinity) as both:
        await ask(both.engine, "hello", "a")
        await ask(both.engine, "hello", "b", family="a")
        first, again = (member(kind, affinity, body) for body in both.stub.bodies)
        assert first is not None
        assert OPAQUE.fullmatch(first)
        assert first == again
        assert both.stub.refused == []
        assert "x-session-id" not in both.stub.heads[0]


async def test_a_member_that_the_upstream_refuses_is_left_out() -> None:
    refusal = Refusal(400, "invalid_request_error", "Unrecognized request argument supplied: prompt_cache_key")
    async with pair("openai", refusal, affinity="prompt_cache_key") as both:
        answer = await ask(both.engine, "hello")
        assert answer.text == "hello"
        assert ["prompt_cache_key" in body for body in both.stub.bodies] == [True, False]


@BOTH
async def test_nothing_is_said_if_nothing_shall_be(kind: UpstreamKind) -> None:
    stub_says = "pod-7"
    async with pair(kind, affinity="none") as both:
        both.stub.token = stub_says
        for _ in range(2):
            await ask(both.engine, "hello", "a")
        assert not any(name.startswith("x-session") for head in both.stub.heads for name in head)
        assert not {"user", "metadata", "prompt_cache_key"} & both.stub.bodies[0].keys()


@BOTH
async def test_the_token_of_a_gateway_is_sent_back(kind: UpstreamKind) -> None:
    """Each family gets its own; the newest counts; one that is too long to be one is ignored."""
    async with pair(kind) as both:
        for key, token in (("a", "pod-1"), ("b", "pod-2"), ("a", "pod-3"), ("a", "x" * 5000), ("a", "")):
            both.stub.token = token
            await ask(both.engine, "hello", key)
        sent = [head.get("x-session-token") for head in both.stub.heads]
        assert sent == [None, None, "pod-1", "pod-3", "pod-3"]


def test_the_protocol_of_anthropic_has_no_key_of_a_cache() -> None:
    assert affinity_of("user", "anthropic") == "user"
    with pytest.raises(InvalidOptions, match="prompt_cache_key"):
        affinity_of("prompt_cache_key", "anthropic")


def test_a_tree_has_one_value_and_keeps_it_through_a_rename() -> None:
    """By the real server: a session, its child, another one, and the first under another name."""
    stub = OpenAIStub()
    with in_front_of(stub, "--upstream-model", MODEL) as (_, client):

        def value(session: str) -> str:
            where = f"/v1/sessions/{session}/messages"
            client.post(where, params={"wait": "true"}, content=b"hello").raise_for_status()
            return stub.heads[-1]["x-session-id"]

        found = [value("tree"), value("other"), value("tree")]
        client.post("/v1/sessions/tree/rename", json={"id": "renamed"}).raise_for_status()
        found += [value("renamed"), value("tree")]
        client.post("/v1/sessions", json={"id": "renamed/child"}).raise_for_status()
        found.append(value("renamed/child"))
        first, other, again, renamed, another, child = found
        assert first == again == renamed == child
        assert len({first, other, another}) == 3


def test_an_affinity_that_the_protocol_does_not_have_ends_the_start_with_one_line() -> None:
    flags = ("--upstream-affinity", "prompt_cache_key", "--upstream-kind", "anthropic")
    assert "no member prompt_cache_key" in refused("--upstream", "127.0.0.1:1", *flags)
