"""Bodies of answers as real servers send them, wherever the network cuts them; `seen_at` says who saw one."""

import json
from pathlib import Path
from typing import Any

import pytest

from cfs.completions import read_arguments
from cfs.errors import EngineError
from cfs_server.engine.contract.interface import Delta
from cfs_server.engine.upstream.answers import AnswerDecoder
from cfs_server.engine.upstream.anthropic_replies import AnthropicReply
from cfs_server.engine.upstream.failures import Failure
from cfs_server.engine.upstream.openai import OpenAIReply, ThinkingMember
from cfs_server.engine.upstream.protocol import UpstreamReply
from tests.engine.support import ask
from tests.upstream.stub import Raw
from tests.upstream.support import STUBS, pair

Case = dict[str, Any]
CASES: list[Case] = json.loads((Path(__file__).parent / "streams.json").read_text(encoding="utf-8"))
NAMES = [case["name"] for case in CASES]
ALL = pytest.mark.parametrize("case", CASES, ids=NAMES)


def reply_of(case: Case) -> UpstreamReply:
    return OpenAIReply(ThinkingMember()) if case["protocol"] == "openai" else AnthropicReply()


def outcome_of(case: Case, pieces: list[bytes]) -> Case:
    """Read a body in pieces, and describe it as `right` does."""
    decoder, reply = AnswerDecoder(), reply_of(case)
    deltas: list[Delta] = []
    end: Case = {}
    try:
        for piece in pieces:
            for event in decoder.feed(piece):
                deltas += reply.feed(event)
        for event in decoder.finish():
            deltas += reply.feed(event)
        deltas += reply.rest()
        end = {"finish": reply.finish(), "warns": " ".join(reply.warnings)}
    except Failure as failure:
        end = {"error": failure.error.detail, "status": failure.error.status, "repeat": failure.repeat}
    calls: dict[int, list[Any]] = {}
    for call in (call for delta in deltas for call in delta.calls):
        begun = calls.setdefault(call.index, [call.id, call.name, ""])
        assert call.index == max(calls), "a call goes on after the next one has begun"
        begun[2] += call.arguments
    ids = [call[0] for call in calls.values()]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    return end | {
        "text": "".join(delta.text for delta in deltas),
        "thinking": "".join(delta.thinking for delta in deltas),
        "calls": [[name, read_arguments(text)] for _, name, text in calls.values() if text],
        "cut": next(([name, text] for _, name, text in calls.values() if not text), []),
        "usage": [reply.spent.prompt, reply.spent.completion],
    }


def check(outcome: Case, right: Case) -> None:
    """Compare; what `right` does not name is empty, and its sentences are parts of longer ones."""
    for name in ("error", "warns"):
        assert (right.get(name) or "") in outcome.get(name, "")
        assert bool(right.get(name)) == bool(outcome.get(name))
    for name, empty in (("text", ""), ("thinking", ""), ("calls", []), ("cut", [])):
        assert outcome[name] == right.get(name, empty), name
    for name in right.keys() & {"finish", "status", "repeat", "usage"}:
        assert outcome[name] == right[name], name


def test_each_body_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)


@ALL
def test_a_body_is_read_as_it_is_meant(case: Case) -> None:
    """As a whole, and byte by byte."""
    body = case["body"].encode()
    check(outcome_of(case, [body]), case["right"])
    check(outcome_of(case, [body[at : at + 1] for at in range(len(body))]), case["right"])


@ALL
def test_the_events_of_a_body_are_the_same_wherever_it_is_cut(case: Case) -> None:
    body = case["body"].encode()
    whole = events_of(body)
    for cut in range(len(body)):
        assert events_of(body[:cut], body[cut:]) == whole


def events_of(*pieces: bytes) -> list[tuple[str, str]]:
    decoder = AnswerDecoder()
    found = [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish()
    return [(event.event, event.data) for event in found]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_the_engine_reads_them_from_the_network(kind: Any) -> None:
    """Those that are answers: text, thinking and calls arrive, and tokens are estimated where none are counted."""
    cases = [case for case in CASES if case["protocol"] == kind and not case["right"].keys() & {"error", "cut"}]
    acts = [Raw(case["body"].encode(), case.get("content_type", "text/event-stream")) for case in cases]
    async with pair(kind, stub=STUBS[kind](*acts)) as both:
        for case in cases:
            answer = await ask(both.engine, "go on")
            assert answer.text.strip() == case["right"].get("text", "").strip(), case["name"]
            names = [call.name for delta in answer.deltas for call in delta.calls if call.name]
            assert names == [name for name, _ in case["right"].get("calls", [])], case["name"]
            assert answer.finished.usage.prompt_tokens > 0, case["name"]
            assert answer.finished.usage.completion_tokens > 0, case["name"]


async def test_an_error_in_a_success_is_the_error_of_the_turn() -> None:
    body = json.dumps({"error": {"message": "out of credit", "type": "insufficient_quota"}}).encode()
    async with pair("openai", stub=STUBS["openai"](Raw(body, "application/json"))) as both:
        with pytest.raises(EngineError, match="out of credit") as failure:
            await ask(both.engine, "hello")
        assert (failure.value.status, failure.value.should_retry) == (429, False)
