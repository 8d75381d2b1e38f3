"""The cursor of the stream of all sessions contains the cursor of each slot."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from cfs.errors import InvalidRequest, Unavailable
from cfs_server.cluster.event_merging import Cursors, Frame, Frames, begin, decode, encode, streamed


@pytest.mark.parametrize(
    "cursors",
    [
        {},  # of a replica that has no slot yet
        {0: "01234567.89abcdef-0"},
        {3: "01234567.89abcdef-999999999999999999", 4_095: "00000000.ffffffff-1"},
        {slot: f"0000000{slot}.00000000-{slot}" for slot in range(6)},
    ],
)
def test_a_cursor_is_read_as_it_was_written(cursors: Cursors) -> None:
    assert decode(encode(cursors)) == cursors


@pytest.mark.parametrize("text", ["1", "v2.", "v1.!", "v1.AAAA", "v1.AAA", "01234567.89abcdef-0"])
def test_other_cursors_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        decode(text)


async def beginning(*slots: int) -> Frames:
    """A stream of some slots, of which nothing has happened yet."""
    yield Frame({slot: f"01234567.89abcdef-{slot}" for slot in slots}, b"")


async def test_a_slot_that_two_replicas_send_is_moving() -> None:
    """The reader repeats. Otherwise the last events of the former owner could follow the first ones of the new one."""
    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(Unavailable, match="moving"):
        await begin([beginning(0, 1), beginning(1, 2)], tasks, asyncio.Queue())
    cursors, is_share = await begin([beginning(0, 1), beginning(2)], tasks, asyncio.Queue())
    assert (set(cursors), is_share) == ({0, 1, 2}, False)
    await asyncio.gather(*tasks)


async def test_a_stream_ends_although_more_waits_than_fits() -> None:
    """The reader is slow, and then its slot moves."""

    async def busy(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"piece", "more_body": True})

    stream = streamed(busy, {})
    assert [await anext(stream) for _ in range(2)] == [b"", b"piece"]
    await asyncio.sleep(0)  # it sends until nothing fits
    await stream.aclose()
