"""What is opened and dropped leaves nothing behind, in the server as in agents (B8)."""

import asyncio
import gc

import psutil

from tests.server.support import EventStream, House, house, until


def tasks() -> int:
    return len(asyncio.all_tasks())


async def connections_end(home: House, down_to: int) -> None:
    """Wait until the server has no more than that many connections."""
    await until(lambda: not (len(home.server.server_state.connections) > down_to or home.server.server_state.tasks))


async def test_fifty_streams_opened_and_dropped_leave_no_task_no_waiter_no_connection(home: House) -> None:
    await home.create("a")
    async with await EventStream.open(home.url, "/v1/events"):
        pass  # the stream library starts its one watcher with the first stream
    await connections_end(home, 1)
    before = tasks(), home.store.bus.log.pulse.waiting, home.store.get("a").log.pulse.waiting
    streams = [await EventStream.open(home.url, path) for path in ("/v1/events", "/v1/sessions/a/events") * 25]
    assert home.parts.streams.open == 50
    for stream in streams:
        stream.close()
    await connections_end(home, 1)
    after = tasks(), home.store.bus.log.pulse.waiting, home.store.get("a").log.pulse.waiting
    assert (after, home.parts.streams.open) == (before, 0)


async def test_fifty_sessions_made_written_and_deleted_leave_nothing(home: House) -> None:
    await home.say("warm", "x", wait="true")
    await home.client.delete("/v1/sessions/warm")
    before = tasks()
    home.engine.hold()
    for n in range(50):
        await home.say(f"s{n}", "hello")
    for n in range(50):
        await home.client.delete(f"/v1/sessions/s{n}")
    await until(lambda: tasks() <= before)
    assert (await home.engine.stats()).running == 0
    assert (len(home.store), home.store.account.bytes) == (0, 0)
    assert len(home.engine.forgotten) == 51


async def test_a_server_that_has_ended_leaves_no_descriptor_and_no_task() -> None:
    counts = []
    for _ in range(3):
        async with house() as home:
            streams = [await EventStream.open(home.url, "/v1/events") for _ in range(10)]
            await home.say("a", "x", wait="true")
        for stream in streams:
            stream.close()
            await stream.writer.wait_closed()
        gc.collect()
        counts.append((psutil.Process().num_fds(), tasks()))
    assert counts[1] == counts[2]
