"""Several upstreams of one model: sessions stay at one, and another takes over before and after the first text."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from cfs import Session
from cfs.errors import EngineError
from cfs_server.engine.contract.interface import Delta, Engine, Finished, GenerationRequest, ModelLoadError, ReplyLost
from cfs_server.engine.upstream.failures import RetryPolicy
from cfs_server.engine.upstream.group import Upstream, UpstreamGroup
from tests.engine.conformance import EngineConformance
from tests.engine.support import ask, collect, request
from tests.models.support import KEY_VARIABLE, models_file, upstream
from tests.server.support import serving
from tests.upstream import process
from tests.upstream.openai_stub import OpenAIStub, VLLMStub
from tests.upstream.stub import KEY, MODEL, Refusal, Speech, Stub, served, served_aside
from tests.upstream.support import Naps, options

WORDS = "one two three four five six"
NOWHERE = "http://127.0.0.1:9/v1"


@dataclass
class Clock:
    """Time as a test sets it."""

    now: float = 0.0

    def __call__(self) -> float:
        """Return the seconds since the beginning."""
        return self.now


@dataclass(frozen=True)
class Group:
    """A group of upstreams with the stubs behind it."""

    engine: UpstreamGroup
    stubs: tuple[Stub, ...]
    naps: Naps
    clock: Clock

    async def key_at(self, stub: Stub) -> str:
        """Return the key of a session that is at a stub."""
        for number in range(100):
            count = len(stub.bodies)
            await ask(self.engine, "hello", f"key-{number}")
            if len(stub.bodies) > count:
                return f"key-{number}"
        raise AssertionError("no session is there")

    def other(self, stub: Stub) -> Stub:
        """Return the other one of two."""
        return next(each for each in self.stubs if each is not stub)

    async def figure(self, name: str) -> float:
        """Return one of the gauges."""
        return (await self.engine.stats()).gauges[name]


@asynccontextmanager
async def group(*stubs: Stub, continues: bool = False, away: int = 0, **changes: Any) -> AsyncIterator[Group]:
    """Run a group in front of stubs, and of addresses without a server."""
    naps, clock = Naps(), Clock()
    stubs = stubs or (OpenAIStub(), OpenAIStub())
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(served(stub)) for stub in stubs] + [NOWHERE] * away
        made = [options(url, "openai", **{"retries": RetryPolicy(1, sleep=naps)} | changes) for url in urls]
        engine = UpstreamGroup([Upstream(each, continues) for each in made], clock)
        try:
            await engine.start()
            yield Group(engine, stubs, naps, clock)
        finally:
            await engine.stop()
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("upstream")] == []


class TestUpstreamGroup(EngineConformance):
    """It does what every engine does."""

    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        """Two upstreams, and one that is away."""
        async with group(away=1) as here:
            yield here.engine

    def failing(self) -> GenerationRequest:
        """Ask with more than the context holds."""
        return request("too long " * 5000)


# -- where a session is -----------------------------------------------------------------------------------------------


async def test_a_session_stays_at_one_upstream_and_all_are_used() -> None:
    async with group(OpenAIStub(), OpenAIStub(), OpenAIStub()) as here:
        for _ in range(4):
            await ask(here.engine, "hello", "the-same")
        assert sorted(len(stub.bodies) for stub in here.stubs) == [0, 0, 4]
        for number in range(40):
            await ask(here.engine, "hello", f"key-{number}")
        assert all(len(stub.bodies) > 4 for stub in here.stubs)


async def test_a_tree_of_agents_is_at_one_upstream() -> None:
    """Their prompts have much in common."""
    async with group() as here:
        for number in range(6):
            await ask(here.engine, "hello", f"agent-{number}", family="the-tree")
        assert sorted(len(stub.bodies) for stub in here.stubs) == [0, 6]


# -- before the first text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [Refusal(429), Refusal(500), Refusal(503), Speech(words=["lost"], cut=0), Speech(failing=("server_error", "x"))],
)
async def test_a_failure_before_the_first_text_goes_to_the_next_upstream(act: Refusal | Speech) -> None:
    """Without a pause. The failed one rests, and is tried again when it has rested."""
    async with group() as here:
        first = here.stubs[0]
        key, other = await here.key_at(first), here.other(first)
        first.acts.append(act if isinstance(act, Refusal) or act.words else Speech(words=(), failing=act.failing))
        seen = len(other.bodies)
        assert (await ask(here.engine, WORDS, key)).text == WORDS
        assert (len(other.bodies), here.naps.taken) == (seen + 1, [])
        assert (await here.figure("upstreams_resting"), await here.figure("upstream_requests_moved")) == (1, 1)
        count = len(first.bodies)
        await ask(here.engine, WORDS, key)
        assert (len(first.bodies), len(other.bodies)) == (count, seen + 2)
        here.clock.now += 1.5
        await ask(here.engine, WORDS, key)
        assert (len(first.bodies), len(other.bodies)) == (count + 1, seen + 2)
        assert await here.figure("upstreams_resting") == 0


async def test_rests_grow_and_an_upstream_may_ask_for_a_longer_one() -> None:
    async with group() as here:
        first = here.stubs[0]
        key = await here.key_at(first)
        first.acts += [Refusal(503), Refusal(503), Refusal(429, headers={"Retry-After": "30"})]
        tried = []
        for moment in (0, 1.5, 3.0, 3.6, 20.0, 34.0):
            here.clock.now = moment
            count = len(first.bodies)
            assert (await ask(here.engine, "hello", key)).text == "hello"
            tried.append(len(first.bodies) > count)
        assert tried == [True, True, False, True, False, True]


async def test_an_error_that_another_upstream_would_repeat_does_not_move() -> None:
    async with group() as here:
        first = here.stubs[0]
        key, other = await here.key_at(first), here.other(first)
        seen = len(other.bodies)
        first.acts.append(Refusal(400, "invalid_request_error", "no such thing"))
        with pytest.raises(EngineError, match="no such thing"):
            await ask(here.engine, "hello", key)
        assert (len(other.bodies), await here.figure("upstreams_resting")) == (seen, 0)


async def test_when_all_fail_they_are_tried_again_after_a_pause() -> None:
    async with group() as here:
        for stub in here.stubs:
            stub.acts += [Refusal(503, message="down")] * 2
        with pytest.raises(EngineError, match="503: down"):
            await ask(here.engine, "hello")
        assert ([len(stub.bodies) for stub in here.stubs], len(here.naps.taken)) == ([2, 2], 1)
        assert (await ask(here.engine, "hello")).text == "hello"


async def test_a_turn_can_be_cancelled_in_the_pause() -> None:
    waits = asyncio.Event()

    async def pause(_: float) -> None:
        waits.set()
        await asyncio.Event().wait()

    async with group(retries=RetryPolicy(3, sleep=pause)) as here:
        for stub in here.stubs:
            stub.acts.append(Refusal(503))
        wanted = request("hello")
        reading = asyncio.create_task(collect(here.engine, wanted))
        await waits.wait()
        here.engine.cancel(wanted.id)
        assert (await reading).finished.reason == "cancelled"


# -- after the first text ---------------------------------------------------------------------------------------------


async def test_a_reply_that_breaks_off_is_lost_if_nobody_can_continue_it() -> None:
    """The same request gets a new one, from another upstream."""
    async with group() as here:
        first = here.stubs[0]
        key, other = await here.key_at(first), here.other(first)
        first.acts.append(Speech(words=WORDS.split(), cut=3))
        seen = len(other.bodies)
        with pytest.raises(ReplyLost):
            await ask(here.engine, WORDS, key)
        assert len(other.bodies) == seen
        assert (await ask(here.engine, WORDS, key)).text == WORDS
        assert len(other.bodies) == seen + 1


@pytest.mark.parametrize("cut", [2, 3, 6])
async def test_an_upstream_that_can_continues_the_reply(cut: int) -> None:
    """Nothing is lost or said twice, and the usage is that of the whole."""
    async with group(VLLMStub(), VLLMStub(), continues=True) as here:
        first = here.stubs[0]
        key, other = await here.key_at(first), here.other(first)
        assert isinstance(other, VLLMStub)
        first.acts.append(Speech(cut=cut))
        answer = await ask(here.engine, WORDS, key, max_tokens=50)
        assert answer.text == WORDS
        assert other.continued == [" ".join(WORDS.split()[: cut - 1])]
        assert other.bodies[-1]["max_tokens"] == 50 - (cut - 1)
        usage = answer.finished.usage
        assert usage.completion_tokens >= len(WORDS.split())
        assert await here.figure("upstream_replies_continued") == 1


async def test_a_space_at_the_seam_is_said_once() -> None:
    async with group(VLLMStub(), VLLMStub(), continues=True) as here:
        first = here.stubs[0]
        key, other = await here.key_at(first), here.other(first)
        first.acts.append(Speech(words=["one ", "two "], cut=3))
        other.acts.append(Speech(words=[" three"]))
        assert (await ask(here.engine, WORDS, key)).text == "one two three"


async def test_a_reply_that_is_full_is_not_continued() -> None:
    async with group(VLLMStub(), VLLMStub(), continues=True) as here:
        first = here.stubs[0]
        key, other = await here.key_at(first), here.other(first)
        seen = len(other.bodies)
        first.acts.append(Speech(cut=4))
        answer = await ask(here.engine, WORDS, key, max_tokens=3)
        assert (answer.text, answer.finished.reason) == ("one two three", "length")
        assert (answer.finished.usage.completion_tokens, len(other.bodies)) == (3, seen)


TOOLS = ({"type": "function", "function": {"name": "f"}},)


@pytest.mark.parametrize(
    ("speech", "changes"),
    [
        (Speech(thinking=("hm",), words=["so"], cut=3), {}),
        (
            Speech(words=[], calls=(("f", ('{"a":', "1}")),), cut=3),
            {"tools": ({"type": "function", "function": {"name": "f"}},)},
        ),
        (Speech(words=["{"], cut=2), {"json_schema": {"type": "object"}}),
    ],
    ids=["thinking", "call", "schema"],
)
async def test_only_text_is_continued(speech: Speech, changes: dict[str, Any]) -> None:
    async with group(VLLMStub(), VLLMStub(), continues=True) as here:
        first = here.stubs[0]
        key = await here.key_at(first)
        first.acts.append(speech)
        with pytest.raises(ReplyLost):
            await ask(here.engine, WORDS, key, **changes)


async def test_an_upstream_that_refuses_to_continue_is_not_asked_again() -> None:
    """The operator was wrong about it; the reply begins again."""
    async with group(continues=True) as here:
        first = here.stubs[0]
        key, other = await here.key_at(first), here.other(first)
        for count in (1, 1):
            first.acts.append(Speech(cut=3))
            with pytest.raises(ReplyLost):
                await ask(here.engine, WORDS, key)
            assert len(other.refused) == count
            here.clock.now += 100


# -- the start --------------------------------------------------------------------------------------------------------


async def test_an_upstream_that_is_away_at_the_start_is_used_when_it_is_there() -> None:
    async with group(OpenAIStub(), away=1, model=None) as here:
        assert await here.figure("upstreams_resting") == 1
        for number in range(10):
            assert (await ask(here.engine, "hello", f"key-{number}")).text == "hello"


async def test_a_start_without_any_upstream_or_with_a_wrong_key_fails() -> None:
    away = UpstreamGroup([Upstream(options(NOWHERE, "openai")), Upstream(options(NOWHERE, "openai"))])
    with pytest.raises(ModelLoadError, match="cannot be reached"):
        await away.start()
    await away.stop()
    with pytest.raises(ModelLoadError, match="refuses the key"):
        async with group(OpenAIStub(), OpenAIStub(key="another")):
            pass


# -- on a server ------------------------------------------------------------------------------------------------------


@contextmanager
def killable(folder: Path, *, continues: bool = False) -> Iterator[tuple[httpx.Client, Any, Stub, str]]:
    """Run a server before an upstream that can be killed and one that is watched; name a session at the first."""
    stub = VLLMStub() if continues else OpenAIStub()
    with ExitStack() as stack:
        first, url = stack.enter_context(process.upstream("openai"))
        urls = [{"url": each, "continues": continues} for each in (url, stack.enter_context(served_aside(stub)))]
        file = models_file(folder, upstream("both", urls, upstream_model=MODEL))
        server = stack.enter_context(serving("--models", str(file), **{KEY_VARIABLE: KEY}))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60, trust_env=False))
        for number in range(100):
            name, count = f"chat-{number}", len(stub.bodies)
            client.post(f"/v1/sessions/{name}/messages", content=b"hello", params={"wait": "true"}).raise_for_status()
            if len(stub.bodies) == count:
                yield client, first, stub, name
                return
    raise AssertionError("no session is at the upstream that can be killed")


LONG = " ".join(f"w{number}" for number in range(300))


def events_of(client: httpx.Client, session: str) -> list[str]:
    """Return the kinds of the events of a session's last turn, tokens once in a row."""
    with client.stream("GET", f"/v1/sessions/{session}/events", params={"after": 0}) as stream:
        kinds: list[str] = []
        for line in stream.iter_lines():
            if line.startswith("event: ") and kinds[-1:] != [line.removeprefix("event: ")]:
                kinds.append(line.removeprefix("event: "))
            if kinds.count("turn.finished") == 2:
                return kinds
    raise AssertionError("the stream has ended")


def test_a_killed_upstream_loses_no_turn_and_readers_see_that_its_text_is_void(tmp_path: Path) -> None:
    """The SDK's stream begins again; the transcript has the reply once."""
    with killable(tmp_path) as (client, first, stub, name), Session(name, url=str(client.base_url)) as session:
        before = len(stub.bodies)
        reply = session.stream(LONG)
        next(reply)
        first.kill()
        for _ in reply:
            pass
        assert reply.text == LONG
        assert len(stub.bodies) == before + 1
        kinds = events_of(client, name)
        begins = kinds.index("turn.interrupted")
        assert kinds[begins - 1 : begins + 3] == ["token", "turn.interrupted", "turn.started", "token"]
        assert session.read().endswith(f"User: {LONG}\nAssistant: {LONG}\n")
        again = client.post(f"/v1/sessions/{name}/messages", content=b"more", params={"wait": "true"})
        assert again.json()["reply"] == "more"


def test_a_killed_upstream_is_continued_where_that_is_possible(tmp_path: Path) -> None:
    with killable(tmp_path, continues=True) as (client, first, stub, name):
        with Session(name, url=str(client.base_url)) as session:
            reply = session.stream(LONG)
            next(reply)
            first.kill()
            for _ in reply:
                pass
            assert reply.text == LONG
        assert isinstance(stub, VLLMStub)
        assert len(stub.continued) == 1
        assert LONG.startswith(stub.continued[0])
        assert "turn.interrupted" not in events_of(client, name)


def test_a_recorded_stream_of_another_protocol_ends_with_an_error(tmp_path: Path) -> None:
    """It cannot take back what it has sent; the turn goes on."""
    with killable(tmp_path) as (client, first, _, name):
        body = {"messages": [{"role": "user", "content": LONG}], "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body, headers={"X-CFS-Session": name}) as stream:
            lines = (line for line in stream.iter_lines() if line)
            while "w0" not in next(lines):
                pass
            first.kill()
            last = json.loads(list(lines)[-1].removeprefix("data: "))
        assert "what came before is void" in last["error"]["message"]
        turns = client.get(f"/v1/sessions/{name}", params={"wait": 60}).json()["history"]
        assert turns[-1]["content"] == LONG


def test_a_recorded_completion_that_is_not_streamed_is_that_of_the_new_reply(tmp_path: Path) -> None:
    """Its client sees nothing of the one that broke off."""
    stubs = (OpenAIStub(), OpenAIStub())
    with ExitStack() as stack:
        urls = [stack.enter_context(served_aside(stub)) for stub in stubs]
        server = stack.enter_context(
            serving("--models", str(models_file(tmp_path, upstream("both", urls))), **{KEY_VARIABLE: KEY})
        )
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60, trust_env=False))
        for stub in stubs:
            stub.acts.append(Speech(cut=4))
        body = {"messages": [{"role": "user", "content": WORDS}]}
        answers = [
            client.post("/v1/chat/completions", json=body, headers={"X-CFS-Session": f"s{number}"}).json()
            for number in range(12)
        ]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == [WORDS] * 12
    assert sum(len(stub.bodies) for stub in stubs) == 14


def test_the_keys_of_upstreams_are_their_own(tmp_path: Path) -> None:
    """One has a key in a file, the other that of the model; none of them appears anywhere."""
    stubs = (OpenAIStub(key="sk-of-the-first-one"), OpenAIStub())
    (tmp_path / "first.key").write_text("sk-of-the-first-one\n")
    with ExitStack() as stack:
        urls = [stack.enter_context(served_aside(stub)) for stub in stubs]
        tables = upstream("both", [{"url": urls[0], "key_file": "first.key"}, urls[1]])
        file = models_file(tmp_path, tables)
        server = stack.enter_context(serving("--models", str(file), "--log-level", "debug", **{KEY_VARIABLE: KEY}))
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            for number in range(12):
                client.post(f"/v1/sessions/s{number}/messages", content=b"hello", params={"wait": "true"})
        assert all(stub.bodies and not stub.refused for stub in stubs)
        server.signal()
        _, log = server.ended()
    assert "sk-of-the-first-one" not in log
    assert KEY not in log


async def test_a_reader_that_leaves_ends_the_request() -> None:
    async with group() as here:
        items = cast("AsyncGenerator[Delta | Finished]", here.engine.generate(request("endless", max_tokens=5000)))
        await anext(items)
        await items.aclose()
        for stub in here.stubs:
            await stub.until(lambda stub: stub.streaming == 0)
        assert (await here.engine.stats()).running == 0
