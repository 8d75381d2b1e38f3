"""Waiting for what is not announced: the state of a peer, the text of a stream."""

import asyncio
import time
from collections.abc import Callable

from engine_bench.sides import Side

LONGEST = 300.0


async def until(done: Callable[[], bool], seconds: float = LONGEST) -> None:
    """Wait until something is so; raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("a bench waited in vain")
        await asyncio.sleep(0.005)


async def settled(side: Side, seconds: float = 30.0) -> int:
    """Wait until a side has nothing at work; returns what it still has after a while."""
    deadline = time.monotonic() + seconds
    while (busy := await side.busy()) and time.monotonic() < deadline:  # noqa: ASYNC110 - a peer has no events
        await asyncio.sleep(0.05)
    return busy
