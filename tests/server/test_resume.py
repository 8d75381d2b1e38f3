"""A reader that is cut off anywhere and resumes sees what one sees that was never cut (S11, H2)."""

import asyncio
import json
import random

import pytest

from cfs.contract.sse import ServerSentEvent, SSEDecoder
from tests.server.support import Chunks, EventStream, Process, ServerHarness, data, running_server

CUTS = 200


async def read_with_cuts(url: str, session: str, chance: random.Random, end: str) -> tuple[list[ServerSentEvent], int]:
    """Follow a session from its beginning; hang up after a random number of bytes, again and again."""
    seen: list[ServerSentEvent] = []
    cuts = 0
    cursor = "0"
    while not ended(seen, end):
        headers = {"Last-Event-ID": cursor}
        async with await EventStream.open(url, f"/v1/sessions/{session}/events", headers) as stream:
            chunks, decoder = Chunks(), SSEDecoder()
            decoder.last_event_id = cursor
            for event in decoder.feed(chunks.feed(await stream.reader.read(chance.randrange(1, 2500)))):
                seen.append(event)
                cursor = event.id
        cuts += 1
    return seen, cuts


def ended(events: list[ServerSentEvent], reply: str) -> bool:
    """Whether a turn with this reply has finished."""
    return any(event.event == "turn.finished" and data(event)["reply"] == reply for event in events)


async def test_two_hundred_random_cuts_lose_and_repeat_nothing() -> None:
    async with running_server() as server:
        uncut = await EventStream.open(server.url, "/v1/events")
        words = " ".join(f"wörd{n}" for n in range(40))
        await server.create("a")
        cuts = 0
        async with uncut:
            writer = asyncio.create_task(write(server, words))
            found, cuts = await read_with_cuts(server.url, "a", random.Random(1), "the end.")
            await writer
            whole: list[ServerSentEvent] = []
            while not ended(whole, "the end."):
                whole += await uncut.take(1)
        found = found[: len(whole)]
        assert [event.data for event in found] == [event.data for event in whole]
        assert [json.loads(event.data)["number"] for event in found] == list(range(1, len(found) + 1))
        seed = 2
        while cuts < CUTS:
            again, more = await read_with_cuts(server.url, "a", random.Random(seed), "the end.")
            assert again[: len(found)] == found
            cuts += more
            seed += 1


async def write(server: ServerHarness, words: str) -> None:
    """Let many turns run while the reader reads."""
    for _ in range(5):
        await server.say("a", words, wait="true")
    await server.say("a", "the end.", wait="true")


async def test_the_same_with_the_real_model(model_server: Process) -> None:
    uncut = await EventStream.open(model_server.url, "/v1/sessions/cut/messages", body=b"Tell me a joke.")
    async with uncut:
        whole = await uncut.rest()
    turn, last = data(whole[-1])["turn"], data(whole[-1])["reply"]
    seen: list[ServerSentEvent] = []
    chance = random.Random(3)
    cursor = "0"
    while not ended(seen, last):
        async with await EventStream.open(
            model_server.url, "/v1/sessions/cut/events", {"Last-Event-ID": cursor}
        ) as stream:
            decoder, chunks = SSEDecoder(), Chunks()
            raw = await stream.reader.read(chance.randrange(1, 1500))
            for event in decoder.feed(chunks.feed(raw)):
                seen.append(event)
                cursor = event.id
    assert [event for event in seen if data(event).get("turn") == turn] == whole


@pytest.mark.parametrize("cut", range(0, 40, 7))
async def test_a_cut_inside_of_an_event_gives_the_event_again(server: ServerHarness, cut: int) -> None:
    await server.say("a", "x", wait="true")
    async with await EventStream.open(server.url, "/v1/sessions/a/events?after=0") as stream:
        first = (await stream.take(1))[0]
    async with await EventStream.open(server.url, "/v1/sessions/a/events?after=0") as stream:
        decoder, chunks = SSEDecoder(), Chunks()
        complete = decoder.feed(chunks.feed(await stream.reader.readexactly(len(first.data) + cut)))
        cursor = decoder.last_event_id or "0"
    async with await EventStream.open(server.url, f"/v1/sessions/a/events?after={cursor}") as stream:
        again = await stream.take(1)
    assert [json.loads(event.data)["number"] for event in [*complete, *again]][:1] == [1]
