"""Bodies that are too large to be held: received into a file before anything is done with them."""

import asyncio
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, cast

from starlette.requests import ClientDisconnect
from starlette.types import Receive

_IN_MEMORY = 1 << 20
_TOGETHER = 1 << 20
"""Bytes that are written to the disk at a time, in a thread."""


async def received(receive: Receive) -> tuple[BinaryIO, int]:
    """Receive a body; return it as a file, at its beginning, and its size in bytes. Small ones stay in memory.

    Raises `ClientDisconnect` when the client leaves before its end: half a body is none.
    """
    file = cast("BinaryIO", SpooledTemporaryFile(max_size=_IN_MEMORY))  # noqa: SIM115 - the caller closes it
    try:
        size = await _fill(file, receive)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file, size


async def _fill(file: BinaryIO, receive: Receive) -> int:
    size, waiting = 0, bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        waiting += message.get("body", b"")
        more = message.get("more_body", False)
        if len(waiting) >= _TOGETHER or not more:
            size += len(waiting)
            if size > _IN_MEMORY:
                await asyncio.to_thread(file.write, waiting)
                waiting = bytearray()
            else:
                file.write(waiting)
                waiting.clear()
    return size
