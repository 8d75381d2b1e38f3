"""What is opened and dropped leaves nothing behind, in the server as in agents (B8)."""

import asyncio
import gc

import psutil

from tests.server.support import EventStream, ServerHarness, running_server, until


def tasks() -> int:
    return len(asyncio.all_tasks())


async def connections_end(server: ServerHarness, down_to: int) -> None:
    """Wait until the server has no more than that many connections."""
    await until(lambda: not (len(server.server.server_state.connections) > down_to or server.server.server_state.tasks))


async def test_fifty_streams_opened_and_dropped_leave_no_task_no_waiter_no_connection(server: ServerHarness) -> None:
    await server.create("a")
    async with await EventStream.open(server.url, "/v1/events"):
        pass  # the stream library starts its one watcher with the first stream
    await connections_end(server, 1)
    before = tasks(), server.store.bus.log.broadcast.waiting, server.store.get("a").log.broadcast.waiting
    streams = [await EventStream.open(server.url, path) for path in ("/v1/events", "/v1/sessions/a/events") * 25]
    assert server.parts.streams.open == 50
    for stream in streams:
        stream.close()
    await connections_end(server, 1)
    after = tasks(), server.store.bus.log.broadcast.waiting, server.store.get("a").log.broadcast.waiting
    assert (after, server.parts.streams.open) == (before, 0)


async def test_fifty_sessions_made_written_and_deleted_leave_nothing(server: ServerHarness) -> None:
    await server.say("warm", "x", wait="true")
    await server.client.delete("/v1/sessions/warm")
    before = tasks()
    server.engine.hold()
    for n in range(50):
        await server.say(f"s{n}", "hello")
    for n in range(50):
        await server.client.delete(f"/v1/sessions/s{n}")
    await until(lambda: tasks() <= before)
    assert (await server.engine.stats()).running == 0
    assert (len(server.store), server.store.account.bytes) == (0, 0)
    assert len(server.engine.forgotten) == 51


async def test_a_server_that_has_ended_leaves_no_descriptor_and_no_task() -> None:
    counts = []
    for _ in range(3):
        async with running_server() as server:
            streams = [await EventStream.open(server.url, "/v1/events") for _ in range(10)]
            await server.say("a", "x", wait="true")
        for stream in streams:
            stream.close()
            await stream.writer.wait_closed()
        gc.collect()
        counts.append((psutil.Process().num_fds(), tasks()))
    assert counts[1] == counts[2]
