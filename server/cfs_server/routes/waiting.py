"""Waiting on behalf of a client that may leave (S7): then the wait ends at once, and nothing else does."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response

T = TypeVar("T")


class ClientLeft(Exception):
    """Nobody is there any more to hear the answer."""


async def attend(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await some work for as long as its client is connected; raises `ClientLeft`."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def nobody_listens(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the signature is Starlette's
    """End the request of a client that has left; what is sent is dropped."""
    return Response(status_code=499)
