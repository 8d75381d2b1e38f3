"""What becomes of a turn when the client that waits for it disconnects (H2, S12).

A turn that one of our own interfaces starts goes on: its reader comes back for the rest. Programs that speak the
protocol of another service cannot come back, and send the whole conversation with their next request, so their turns
are cancelled: whoever interrupts such a program gets the next answer at once. The header decides for one request.
"""

from contextlib import suppress
from enum import StrEnum
from typing import Annotated

from fastapi import Depends, Header, Request

from cfs.api import KEY, ON_DISCONNECT
from cfs.errors import CfsError
from cfs_server.routes.http import settings_of
from cfs_server.sessions.session import Session
from cfs_server.sessions.turns import Turn


class OnDisconnect(StrEnum):
    """What becomes of the turn."""

    CANCEL = "cancel"
    CONTINUE = "continue"


async def _choice(
    choice: Annotated[
        OnDisconnect | None,
        Header(
            alias=ON_DISCONNECT,
            description="Whether the turn is cancelled when the client disconnects before its end.",
        ),
    ] = None,
) -> OnDisconnect | None:
    return choice


DisconnectChoice = Annotated[OnDisconnect | None, Depends(_choice)]
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
    """Cancel a turn that nobody waits for, if it runs or waits. A store that takes no changes now does not prevent the
    end of the request.
    """
    if not turn.result.done() and session.find_turn(turn.id) is turn:
        with suppress(CfsError):
            session.cancel_turn(turn)
