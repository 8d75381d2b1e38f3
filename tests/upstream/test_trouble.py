"""What goes wrong with an upstream, when it is tried again, and what a session is told in the end (S5)."""

import asyncio
import json

import pytest

from cfs.errors import EngineError
from cfs_server.engine.contract.interface import Delta, Engine, UpstreamKind
from cfs_server.engine.upstream.engine import UpstreamEngine
from cfs_server.engine.upstream.failures import RetryPolicy
from tests.engine.support import ask, request
from tests.upstream.stub import KEY, Refusal, Speech, served
from tests.upstream.support import STUBS, Naps, options, pair, until_ready

BOTH = pytest.mark.parametrize("kind", ["openai", "anthropic"])
BUSY = Refusal(429, "rate_limit_error", headers={"retry-after": "7"})


@BOTH
async def test_an_upstream_that_asks_for_patience_gets_it(kind: UpstreamKind) -> None:
    """429 with `Retry-After`, twice, then it answers."""
    async with pair(kind, BUSY, BUSY) as both:
        assert (await ask(both.engine, "hello")).text == "hello"
        assert both.naps.taken == [7, 7]
        assert (await both.engine.stats()).gauges == {"upstream_requests": 3, "upstream_requests_repeated": 2}


@BOTH
async def test_patience_has_an_end(kind: UpstreamKind) -> None:
    async with pair(kind, *[BUSY] * 9) as both:
        with pytest.raises(EngineError, match="no more requests now") as failure:
            await ask(both.engine, "hello")
        assert failure.value.retry_after == 7
        assert len(both.stub.bodies) == 4
        assert both.engine.ready


@BOTH
@pytest.mark.parametrize(("status", "outage"), [(500, False), (502, True), (503, True), (529, True)])
async def test_an_upstream_that_stays_away_says_when_to_ask_again(
    kind: UpstreamKind, status: int, outage: bool
) -> None:
    """So that an agent waits for it instead of failing; an upstream that fails at this request is no outage."""
    async with pair(kind, *[Refusal(status, "overloaded_error")] * 4) as both:
        with pytest.raises(EngineError) as failure:
            await ask(both.engine, "hello")
        assert (failure.value.retry_after is not None) is outage


@BOTH
async def test_an_upstream_that_asks_for_an_hour_is_not_waited_for(kind: UpstreamKind) -> None:
    async with pair(kind, Refusal(429, headers={"retry-after": "3600"})) as both:
        with pytest.raises(EngineError, match="no more requests now"):
            await ask(both.engine, "hello")
        assert (both.naps.taken, len(both.stub.bodies)) == ([], 1)


@BOTH
@pytest.mark.parametrize("status", [500, 502, 503, 529])
async def test_a_server_in_trouble_is_asked_again_with_growing_pauses(kind: UpstreamKind, status: int) -> None:
    async with pair(kind, *[Refusal(status, "overloaded_error")] * 3) as both:
        assert (await ask(both.engine, "hello")).text == "hello"
        assert all(0 <= nap <= bound for nap, bound in zip(both.naps.taken, (0.5, 1, 2), strict=True))


@BOTH
@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (Refusal(401, "authentication_error", f"no such key: {KEY}"), "refuses the key that this server has for it"),
        (
            Refusal(403, "permission_error", "not for you"),
            "forbids this to the key that this server has.*: not for you",
        ),
        (Refusal(404, "not_found_error", "who?"), "no model 'small-1'.*: who?"),
        (Refusal(400, message="what?"), "refuses the request: what?"),
        (Refusal(307), "sends elsewhere"),
        (Refusal(429, extra={"code": "insufficient_quota"}, kind="billing_error", message="pay"), "pay"),
    ],
)
async def test_what_cannot_get_better_is_told_at_once(kind: UpstreamKind, refusal: Refusal, told: str) -> None:
    async with pair(kind, refusal) as both:
        with pytest.raises(EngineError, match=told) as failure:
            await ask(both.engine, "hello")
        assert KEY not in failure.value.detail
        assert both.naps.taken == []


@BOTH
@pytest.mark.parametrize("how", ["hard", "clean"])
async def test_an_answer_that_breaks_off_fails_the_turn_and_is_not_repeated(kind: UpstreamKind, how: str) -> None:
    """What was said before has been shown already; the next turn works."""
    async with pair(kind, Speech(words=[f"{n} " for n in range(20)], cut=8, how=how)) as both:
        said: list[str] = []
        with pytest.raises(EngineError, match=r"broke off|was lost"):
            await listen(both.engine, said)
        assert "".join(said).startswith("0 1 2 ")
        assert len(both.stub.bodies) == 1
        assert (await ask(both.engine, "again")).text == "again"


@BOTH
@pytest.mark.parametrize("how", ["hard", "clean"])
async def test_an_answer_that_breaks_off_in_a_call_fails_the_turn(kind: UpstreamKind, how: str) -> None:
    pieces = ('{"a": ', "1", ", ", '"b": ', "2", "}")
    async with pair(kind, Speech(words=["x"], calls=(("f", pieces),), cut=9, how=how)) as both:
        with pytest.raises(EngineError, match=r"broke off|was lost"):
            await ask(both.engine, "call", tools=({"type": "function", "function": {"name": "f"}},))


@BOTH
@pytest.mark.parametrize("how", ["hard", "clean"])
async def test_an_answer_that_breaks_off_before_its_first_word_is_asked_for_again(kind: UpstreamKind, how: str) -> None:
    async with pair(kind, Speech(cut=0, how=how), Speech(cut=1, how=how)) as both:
        assert (await ask(both.engine, "hello")).text == "hello"
        assert len(both.naps.taken) == 2


@BOTH
async def test_an_error_in_the_middle_of_an_answer_is_told(kind: UpstreamKind) -> None:
    async with pair(kind, Speech(words=["well "], failing=("overloaded_error", "Overloaded"))) as both:
        with pytest.raises(EngineError, match="the upstream failed: Overloaded"):
            await ask(both.engine, "hello")
        assert both.naps.taken == []


@BOTH
async def test_an_error_before_the_first_word_is_one_that_may_pass(kind: UpstreamKind) -> None:
    async with pair(kind, Speech(words=[], failing=("overloaded_error", "Overloaded"))) as both:
        assert (await ask(both.engine, "hello")).text == "hello"
        assert len(both.naps.taken) == 1


@BOTH
@pytest.mark.parametrize("junk", ["data: {not json\n\n", "data: [1]\n\n", 'data: {"type": 7, "choices": "x"}\n\n'])
async def test_nonsense_is_told_as_that(kind: UpstreamKind, junk: str) -> None:
    async with pair(kind, Speech(junk=(2, junk))) as both:
        with pytest.raises(EngineError, match="its protocol does not know"):
            await ask(both.engine, "hello")


@BOTH
async def test_an_upstream_that_says_nothing_for_too_long_fails_the_turn(kind: UpstreamKind) -> None:
    async with pair(kind, Speech(gate=asyncio.Event()), silence=0.05, check=False) as both:
        with pytest.raises(EngineError, match=r"said nothing for 0\.05 seconds"):
            await ask(both.engine, "hello")
        assert (await both.settled()).running == 0


def chunk(**delta: object) -> str:
    """Write a piece of a reply as OpenAI does."""
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"


def change(kind: str, **delta: str) -> str:
    """Write a piece of a reply as Anthropic does."""
    return f"data: {json.dumps({'type': 'content_block_delta', 'index': 0, 'delta': {'type': kind, **delta}})}\n\n"


MUCH = "x" * 700
CALL = {"index": 0, "function": {"arguments": MUCH}}
TOO_MUCH: dict[str, tuple[UpstreamKind, str]] = {
    "text": ("openai", chunk(content=MUCH)),
    "thinking": ("openai", chunk(reasoning_content=MUCH)),
    "arguments": ("openai", chunk(tool_calls=[CALL | {"id": "a", "function": {"name": "f", "arguments": MUCH}}])),
    "calls": ("openai", chunk(tool_calls=[{"index": 0, "id": n, "function": {"name": "f"}} for n in "abab"])),
    "text of anthropic": ("anthropic", change("text_delta", text=MUCH)),
    "thinking of anthropic": ("anthropic", change("thinking_delta", thinking=MUCH)),
}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
EMPTY = f"data: {json.dumps(BLOCK)}\n\n"
NO_WORD: dict[str, tuple[UpstreamKind, str]] = {
    "comments": ("openai", ": still here\n\n"),
    "comments to anthropic": ("anthropic", ": still here\n\n"),
    "a line": ("openai", MUCH),
    "data without an end": ("anthropic", f"data: {MUCH}\n"),
    "empty pieces": ("openai", chunk(content="")),
    "no choices": ("openai", 'data: {"choices": []}\n\n'),
    "pings": ("anthropic", 'event: ping\ndata: {"type": "ping"}\n\n'),
    "empty blocks": ("anthropic", EMPTY),
}


@pytest.mark.parametrize("flood", TOO_MUCH)
async def test_a_reply_that_never_ends_is_cut_off(flood: str) -> None:
    """Not every upstream keeps to `max_tokens`; what was said is passed on, and the connection is closed."""
    kind, piece = TOO_MUCH[flood]
    speech = Speech(words=["a ", "b ", "c "], cut=4, how="flood", flood=piece)
    async with pair(kind, speech, reply_bytes=20_000) as both:
        said: list[str] = []
        with pytest.raises(EngineError, match=r"more than (20000 bytes \(--max-reply-bytes\)|1000 calls)"):
            await listen(both.engine, said)
        assert "".join(said).startswith("a ")
        assert len("".join(said)) <= 20_000
        assert (await both.settled()).running == 0
        assert (both.stub.left_early, both.naps.taken) == (1, [])
        assert (await ask(both.engine, "again")).text == "again"


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("flood", NO_WORD)
async def test_what_says_nothing_without_end_is_cut_off(flood: str, begun: bool) -> None:
    kind, piece = NO_WORD[flood]
    speech = Speech(words=["a ", "b ", "c "], cut=4 if begun else 2, how="flood", flood=piece)
    async with pair(kind, speech, reply_bytes=20_000) as both:
        with pytest.raises(EngineError, match=r"sent \d+ bytes without a word of its reply"):
            await ask(both.engine, "hello")
        assert (await both.settled()).running == 0
        assert (both.stub.left_early, both.naps.taken) == (1, [])


@BOTH
async def test_a_reply_within_its_bytes_is_whole(kind: UpstreamKind) -> None:
    """Also one in a single event, whose characters take more bytes in JSON than in UTF-8."""
    async with pair(kind, Speech(words=["é" * 10_000]), reply_bytes=20_000) as both:
        assert (await ask(both.engine, "hello")).text == "é" * 10_000


async def test_a_server_may_leave_out_the_last_marker() -> None:
    """Some that speak as OpenAI does end the stream after the reason."""
    async with pair("openai", Speech(marker=False)) as both:
        assert (await ask(both.engine, "hello")).text == "hello"


async def test_a_message_of_anthropic_without_its_end_is_broken() -> None:
    async with pair("anthropic", Speech(marker=False)) as both:
        with pytest.raises(EngineError, match="broke off"):
            await ask(both.engine, "hello")


@BOTH
async def test_a_setting_that_the_model_does_not_take_is_left_out_from_then_on(kind: UpstreamKind) -> None:
    """Asking costs one request, once."""
    refusal = Refusal(400, "invalid_request_error", "`temperature` is deprecated for this model.")
    async with pair(kind, refusal) as both:
        assert (await ask(both.engine, "hello")).text == "hello"
        assert (await ask(both.engine, "again")).text == "again"
        assert ["temperature" in body for body in both.stub.bodies] == [True, False, False]
        assert both.naps.taken == []


@BOTH
async def test_turns_that_learn_the_same_at_the_same_time_all_go_on(kind: UpstreamKind) -> None:
    message = "`temperature` is deprecated for this model."
    refusal = Refusal(400, "invalid_request_error", message, together=asyncio.Barrier(3))
    async with pair(kind, refusal, refusal, refusal) as both:
        answers = await asyncio.gather(*(ask(both.engine, f"number {n}") for n in range(3)))
        assert [answer.text for answer in answers] == ["number 0", "number 1", "number 2"]


async def test_newer_models_of_openai_have_another_name_for_the_length() -> None:
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    async with pair("openai", Refusal(400, "invalid_request_error", message, extra={"param": "max_tokens"})) as both:
        assert (await ask(both.engine, "one two three four", max_tokens=3)).finished.reason == "length"
        assert both.stub.bodies[1]["max_completion_tokens"] == 3
        assert "max_tokens" not in both.stub.bodies[1]


@BOTH
async def test_an_upstream_that_goes_away_is_seen_and_seen_again_when_it_is_back(kind: UpstreamKind) -> None:
    """Turns fail meanwhile; later ones work, without being asked (H6)."""
    naps = Naps()
    async with served(STUBS[kind]()) as url:
        engine = UpstreamEngine(options(url, kind, retries=RetryPolicy(most=1, sleep=naps)))
        await engine.start()
    try:
        with pytest.raises(EngineError, match="cannot be reached"):
            await ask(engine, "anybody?")
        assert not engine.ready
        assert (await engine.stats()).state == "restarting"
        async with served(STUBS[kind](), port=int(url.split(":")[2].split("/")[0])):
            await until_ready(engine)
            assert (await ask(engine, "hello again")).text == "hello again"
    finally:
        await engine.stop()


async def listen(engine: Engine, said: list[str]) -> None:
    """Note what is said until it ends."""
    async for item in engine.generate(request("count")):
        assert isinstance(item, Delta)
        said.append(item.text)
