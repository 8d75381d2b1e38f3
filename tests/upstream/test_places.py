"""Places at an upstream: so many at a time, fairly, and none is ever lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cfs_server.engine.contract.fairness import Path
from cfs_server.engine.upstream.places import Places
from tests.engine.support import looks_at_shares

MINE: Path = ("me", "interactive", "a")


class ManualClock:
    """Goes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@asynccontextmanager
async def holder(places: Places, path: Path = MINE) -> AsyncIterator[asyncio.Task[None]]:
    """Run a task that holds a place, or waits for one, until the block ends."""

    async def hold() -> None:
        async with places.place(path):
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await asyncio.sleep(0)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_so_many_at_a_time_and_the_others_wait() -> None:
    places = Places(2)
    async with holder(places), holder(places), holder(places), holder(places):
        assert (places.held, places.waiting) == (2, 2)
    assert (places.held, places.waiting) == (0, 0)


async def test_whoever_leaves_makes_room_for_one() -> None:
    places = Places(1)
    async with holder(places) as first, holder(places), holder(places):
        first.cancel()
        await asyncio.wait([first])
        assert (places.held, places.waiting) == (1, 1)


async def test_one_who_is_cancelled_as_the_place_comes_hands_it_on() -> None:
    places = Places(1)
    async with holder(places) as first, holder(places) as second, holder(places):
        first.cancel()
        await asyncio.sleep(0)  # the place is the second's, who has not run since
        assert (places.held, places.waiting) == (1, 1)
        second.cancel()
        await asyncio.wait([first, second])
        assert (places.held, places.waiting) == (1, 0)
    assert places.held == 0


async def test_a_place_that_comes_free_as_its_next_holder_is_cancelled_goes_to_another() -> None:
    places = Places(1)
    async with holder(places) as first, holder(places) as second, holder(places):
        first.cancel()
        second.cancel()  # it still stands in the queue when the first one leaves
        await asyncio.wait([first, second])
        assert (places.held, places.waiting) == (1, 0)
    assert places.held == 0


async def test_a_crowd_of_one_owner_does_not_keep_out_another() -> None:
    """Who had less comes first, however long the other's queue is."""
    clock = ManualClock()
    places = Places(1, clock)
    served: list[str] = []

    async def turn(owner: str) -> None:
        async with places.place((owner, "interactive", owner)):
            served.append(owner)
            clock.now += 1
            await asyncio.sleep(0)

    await asyncio.gather(*(turn("crowd") for _ in range(5)), turn("guest"))
    assert served.index("guest") == 1


async def test_thousands_wait_without_a_look_at_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place that becomes free, and each prediction, costs some looks, whatever the number of those who wait."""
    looks = looks_at_shares(monkeypatch)
    clock = ManualClock()
    places = Places(1, clock)
    served: list[int] = []

    async def turn(number: int) -> None:
        async with places.place(("crowd", "interactive", f"s{number}")):
            served.append(number)
            clock.now += 1
            predicted = places.backlog.wait("crowd", "interactive")
            assert len(served) == 1 or predicted == pytest.approx(places.waiting + 1)

    await asyncio.gather(*(turn(number) for number in range(2000)))
    assert served == list(range(2000))
    assert len(looks) < 20 * 2000


async def test_the_wait_is_predicted_from_the_turns_so_far() -> None:
    clock = ManualClock()
    places = Places(2, clock)
    assert places.backlog.wait("me", "interactive") == 0
    async with places.place(MINE):
        clock.now += 10
    async with holder(places):
        assert places.backlog.wait("me", "interactive") == 0  # one place is free
        async with holder(places):
            assert places.backlog.wait("me", "interactive") == pytest.approx(5)  # two places, ten seconds each
            async with holder(places):
                assert places.backlog.wait("me", "interactive") == pytest.approx(10)
