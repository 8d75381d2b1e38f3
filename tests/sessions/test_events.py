"""Numbered events, cursors and followers (S11)."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any
from weakref import ref

import pytest

from cfs.errors import InvalidRequest
from cfs_server.domain.events import EventBus, EventLog, LoggedEvent, Stale
from cfs_server.domain.quotas import StoreLimits
from tests.sessions.support import running_store

KILOBYTE = 1 << 10


def publish(bus: EventBus, log: EventLog, count: int = 1, session: str = "a") -> None:
    for n in range(count):
        bus.publish(log, "token", session, {"n": n})


async def take(stream: AsyncIterator[list[LoggedEvent] | Stale], count: int) -> list[LoggedEvent]:
    """Read so many events."""
    taken: list[LoggedEvent] = []
    while len(taken) < count:
        events = await anext(stream)
        assert isinstance(events, list)
        taken += events
    return taken


def numbers(events: list[LoggedEvent]) -> list[int]:
    return [event.number for event in events]


async def test_numbers_follow_one_another_in_each_log_and_over_all_of_them() -> None:
    bus = EventBus()
    first, second = bus.new_log(), bus.new_log()
    for log in (first, second, first):
        publish(bus, log)
    assert numbers(await take(first.follow(0), 2)) == [1, 2]
    assert numbers(await take(second.follow(0), 1)) == [1]
    everything = await take(bus.log.follow(0), 3)
    assert [event.position for event in everything] == [1, 2, 3]
    assert numbers(everything) == [1, 1, 2]


async def test_a_follower_sees_what_was_there_and_then_what_comes() -> None:
    bus = EventBus()
    log = bus.new_log()
    publish(bus, log, 2)
    stream = log.follow(1)
    assert numbers(await take(stream, 1)) == [2]
    waiting = asyncio.create_task(take(stream, 2))
    await asyncio.sleep(0)
    assert log.broadcast.waiting == 1
    publish(bus, log, 2)
    assert numbers(await waiting) == [3, 4]


async def test_a_slow_follower_is_told_once_that_it_is_stale_and_goes_on_from_the_present() -> None:
    bus = EventBus(StoreLimits(session_events=4))
    log = bus.new_log()
    stream = log.follow(0)
    publish(bus, log)
    assert numbers(await take(stream, 1)) == [1]
    publish(bus, log, 20)
    assert await anext(stream) == Stale(asked=1, last=21)
    publish(bus, log)
    assert numbers(await take(stream, 1)) == [22]
    log.check_integrity()


async def test_a_cursor_from_the_future_is_stale() -> None:
    log = EventBus().new_log()
    assert log.since(5) == Stale(5, 0)


async def test_a_closed_log_is_read_to_its_end() -> None:
    bus = EventBus()
    log = bus.new_log()
    publish(bus, log, 2)
    log.close()
    assert [numbers(events) async for events in log.follow(0) if isinstance(events, list)] == [[1, 2]]


async def test_closing_a_log_ends_who_waits_at_its_end() -> None:
    bus = EventBus()
    log = bus.new_log()
    publish(bus, log)

    async def read() -> list[list[int]]:
        return [numbers(events) async for events in log.follow(1) if isinstance(events, list)]

    following = asyncio.create_task(read())
    await asyncio.sleep(0)
    log.close(goodbye=True)
    assert await following == []
    assert log.goodbye


async def test_a_cursor_is_a_number_or_a_number_of_this_life_of_the_log() -> None:
    bus = EventBus()
    log = bus.new_log()
    publish(bus, log, 3)
    assert await log.cursor(None) == await log.cursor("") == 3
    assert await log.cursor("2") == 2
    assert await log.cursor(log.token(2)) == 2
    assert isinstance(log.since(await log.cursor("0badcafe-2")), Stale)


@pytest.mark.parametrize("token", ["x", "-", "1x", "a-b-", "--", "²", "9" * 30, "1 "])
async def test_anything_else_is_no_cursor(token: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        await EventBus().new_log().cursor(token)


def test_an_event_is_encoded_once_for_all_readers() -> None:
    bus = EventBus()
    log = bus.new_log()
    event = bus.publish(log, "token", "é", {"text": "你"})
    assert event.json is event.json
    assert '"session":"é"' in event.json
    assert "\n" not in bus.publish(log, "token", "a", {"text": "a\nb\r"}).json


async def test_a_log_is_bounded_by_bytes_and_keeps_its_newest_event_whatever_its_size() -> None:
    bus = EventBus(StoreLimits(session_event_bytes=100 * KILOBYTE))
    log = bus.new_log()
    stream = log.follow(0)
    publish(bus, log)
    assert numbers(await take(stream, 1)) == [1]
    for n in range(100):
        bus.publish(log, "token", "a", {"text": f"{n}" * 5 * KILOBYTE})
        assert log.bytes <= 100 * KILOBYTE
    assert await anext(stream) == Stale(asked=1, last=101)
    bus.publish(log, "token", "a", {"text": "x" * 500 * KILOBYTE})
    assert numbers(await take(stream, 1)) == [102]
    assert log.since(101) != []
    assert isinstance(log.since(100), Stale)
    publish(bus, log)
    assert numbers(await take(stream, 1)) == [103]
    assert log.bytes < KILOBYTE * 2
    log.check_integrity()


async def test_all_logs_together_are_bounded_by_bytes() -> None:
    """However many sessions there are, deleted or not."""
    bus = EventBus(StoreLimits(all_event_bytes=1000 * KILOBYTE))
    logs = [bus.new_log() for _ in range(100)]
    for n, log in enumerate(logs):
        for _ in range(3):
            bus.publish(log, "token", f"s{n}", {"text": "x" * 10 * KILOBYTE})
        assert max(bus.bytes, bus.log.bytes, sum(each.bytes for each in logs)) <= 1000 * KILOBYTE
    assert (logs[0].last, logs[0].bytes) == (3, 0)
    assert logs[0].since(3) == []
    assert logs[0].since(0) == Stale(0, 3)
    assert numbers(await take(logs[-1].follow(0), 3)) == [1, 2, 3]
    publish(bus, logs[0])
    assert numbers(await take(logs[0].follow(3), 1)) == [4]
    bus.check_integrity()
    for log in logs:
        log.check_integrity()


async def test_an_event_over_the_bound_of_all_logs_is_kept_until_the_next_one() -> None:
    bus = EventBus(StoreLimits(all_event_bytes=1))
    log = bus.new_log()
    for number in (1, 2):
        publish(bus, log)
        assert numbers(await take(log.follow(number - 1), 1)) == [number]
        assert numbers(await take(bus.log.follow(number - 1), 1)) == [number]
    assert isinstance(log.since(0), Stale)


async def test_the_log_of_a_deleted_session_goes_at_once_and_its_messages_when_they_are_old() -> None:
    async with running_store(limits=StoreLimits(all_event_bytes=1000 * KILOBYTE)) as d:
        for n in range(30):
            d.say("a", f"{n} " + "x" * 100 * KILOBYTE, generate=False)
            log = ref(d.store.get("a").log)
            if n % 2:
                d.store.delete("a")
                assert log() is None
            else:
                await d.settled("a")
                d.store.replace("a", "", "*")
            assert d.store.bus.bytes <= 1000 * KILOBYTE


async def test_a_reader_that_is_busy_holds_few_events() -> None:
    bus = EventBus()
    log = bus.new_log()
    for _ in range(50):
        bus.publish(log, "token", "a", {"text": "x" * 50 * KILOBYTE})
    stream = log.follow(0)
    taken = await anext(stream)
    assert isinstance(taken, list)
    assert 1 < len(taken) < 5
    assert numbers(await take(stream, 50 - len(taken)))[-1] == 50


@pytest.mark.parametrize(
    "data",
    [
        {"turn": "0123456789abcdef" * 2, "text": "word {}", "tokens": 1},
        {"state": "idle", "queued": 0},
        {"index": 1, "message": {"role": "user", "content": "{} said"}, "size": 1},
        {"message": {"content": "return x\n" * 2000 + "{}"}},
        {"message": {"content": "你好" * 2000 + "{}"}},
        {"message": {"content": "x" * 5000 + "😀{}"}},
        {"message": {"content": "\x01" * 5000 + "{}"}},
        {"message": {"tool_calls": [{"id": "a", "name": "b", "arguments": {"key {}": ["{}"] * 20}}]}},
    ],
)
def test_an_event_costs_no_less_than_it_takes_in_memory(data: dict[str, Any]) -> None:
    """With everything that its readers make of it."""

    def made(value: Any, n: int) -> Any:
        if isinstance(value, str):
            return value.replace("{}", str(n))
        if isinstance(value, dict):
            return {made(key, n): made(each, n) for key, each in value.items()}
        return [made(each, n) for each in value] if isinstance(value, list) else value

    bus = EventBus()
    log = bus.new_log()
    tracemalloc.start()
    try:
        for n in range(200):
            _ = bus.publish(log, "token", "a", made(data, n)).json
        assert tracemalloc.get_traced_memory()[0] <= bus.bytes
    finally:
        tracemalloc.stop()
