"""Waking who waits (S7)."""

import asyncio

from cfs_server.base.broadcast import Broadcast


async def test_a_broadcast_wakes_all_who_wait_and_forgets_who_gave_up() -> None:
    broadcast = Broadcast()
    waiting = [asyncio.create_task(broadcast.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    assert broadcast.waiting == 2
    broadcast.fire()
    await asyncio.gather(*waiting[1:])
    assert broadcast.waiting == 0
