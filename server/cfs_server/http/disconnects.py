"""What becomes of a turn when the client that waits for it disconnects (H2, S12).

A turn that one of our own interfaces starts goes on: its reader comes back for the rest. Programs that speak the
protocol of another service cannot come back, and send the whole conversation with their next request, so their turns
are cancelled: whoever interrupts such a program gets the next answer at once. The header decides for one request.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from fastapi import Header, Request, Response

from cfs.api import KEY, ON_DISCONNECT
from cfs.errors import CfsError
from cfs_server.domain.turns import Turn
from cfs_server.http.caller import settings_of
from cfs_server.sessions.session import Session


class OnDisconnect(StrEnum):
    """What becomes of the turn."""

    CANCEL = "cancel"
    CONTINUE = "continue"


DisconnectChoice = Annotated[
    OnDisconnect | None,
    Header(
        alias=ON_DISCONNECT,
        description="Whether the turn is cancelled when the client disconnects before its end.",
    ),
]
"""The choice of the header, as the parameter of a route."""


def cancels_turn(request: Request, session: Session) -> bool:
    """Return whether a turn ends with the request of another service's protocol that waits for it.

    A client that sends an idempotency key may ask for the answer again. An agent may work longer than a client waits.
    """
    if (choice := request.headers.get(ON_DISCONNECT)) is not None:
        return choice == OnDisconnect.CANCEL
    return (
        settings_of(request).cancel_on_disconnect and KEY not in request.headers and session.settings.driver == "model"
    )


def cancel_unless_ended(session: Session, turn: Turn) -> None:
    """Cancel a turn that has no waiter, if it runs or waits. A store that takes no changes now does not prevent the
    end of the request.
    """
    if not turn.result.done() and session.find_turn(turn.id) is turn:
        with suppress(CfsError):
            session.cancel_turn(turn)


T = TypeVar("T")


class ClientLeft(Exception):
    """The client has disconnected."""


async def attend(request: Request, work: Coroutine[Any, Any, T], left: Callable[[], None] | None = None) -> T:
    """Await work while its client is connected. Calls `left` and raises `ClientLeft` when the client disconnects."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if left is not None:
            left()
        raise ClientLeft
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def nobody_listens(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the signature is Starlette's
    """End the request of a client that has disconnected. The response is dropped."""
    return Response(status_code=499)
