"""Numbered events, cursors and followers (S11)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cfs.errors import InvalidRequest
from cfs_server.sessions.events import Event, EventBus, EventLog, Stale


def publish(bus: EventBus, log: EventLog, count: int = 1, session: str = "a") -> None:
    for n in range(count):
        bus.publish(log, "token", session, {"n": n})


async def take(stream: AsyncIterator[list[Event] | Stale], count: int) -> list[Event]:
    """Read so many events."""
    taken: list[Event] = []
    while len(taken) < count:
        events = await anext(stream)
        assert isinstance(events, list)
        taken += events
    return taken


def numbers(events: list[Event]) -> list[int]:
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
    assert log.pulse.waiting == 1
    publish(bus, log, 2)
    assert numbers(await waiting) == [3, 4]


async def test_a_slow_follower_is_told_once_that_it_is_stale_and_goes_on_from_the_present() -> None:
    bus = EventBus(session_capacity=4)
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


def test_a_cursor_is_a_number_or_a_number_of_this_life_of_the_log() -> None:
    bus = EventBus()
    log = bus.new_log()
    publish(bus, log, 3)
    assert log.cursor(None) == log.cursor("") == 3
    assert log.cursor("2") == 2
    assert log.cursor(log.token(2)) == 2
    assert isinstance(log.since(log.cursor("0badcafe-2")), Stale)


@pytest.mark.parametrize("token", ["x", "-", "1x", "a-b-", "--", "²", "9" * 30, "1 "])
def test_anything_else_is_no_cursor(token: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        EventBus().new_log().cursor(token)


def test_an_event_is_encoded_once_for_all_readers() -> None:
    bus = EventBus()
    log = bus.new_log()
    event = bus.publish(log, "token", "é", {"text": "你"})
    assert event.json is event.json
    assert '"session":"é"' in event.json
    assert "\n" not in bus.publish(log, "token", "a", {"text": "a\nb\r"}).json
