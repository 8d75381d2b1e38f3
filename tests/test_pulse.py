"""Waking who waits (S7)."""

import asyncio

from cfs_server.broadcast import Pulse


async def test_a_pulse_wakes_all_who_wait_and_forgets_who_gave_up() -> None:
    pulse = Pulse()
    waiting = [asyncio.create_task(pulse.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    assert pulse.waiting == 2
    pulse.fire()
    await asyncio.gather(*waiting[1:])
    assert pulse.waiting == 0
