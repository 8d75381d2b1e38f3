"""Reserves names for slots that are not their home, so that no two sessions ever have one name (S14)."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import httpcore
from starlette.responses import JSONResponse
from starlette.types import Scope, Send

from cfs.errors import CfsError, Conflict, Unavailable
from cfs_server.cluster.names import NameLocation
from cfs_server.cluster.relay import Incoming, Order, Relay
from cfs_server.cluster.replica import AGAIN_SECONDS, RemoteSlot, Replica
from cfs_server.cluster.slots import HostedSlot
from cfs_server.domain.placement import slot_of

PATH = b"/cluster/names"
_BYTES = 64 << 10


class Reservations:
    """The names that this replica reserves and gives up, for its own slots and for those of others."""

    def __init__(self, replica: Replica, relay: Relay) -> None:
        self._replica = replica
        self._relay = relay
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # as long as one is waited for
        self._returns: set[asyncio.Task[None]] = set()

    async def reserve(self, name: str, slot: HostedSlot) -> NameLocation | None:
        """Reserve a name for a session of a slot of this replica; None if a session has this name, or soon will have.

        Raises `Unavailable` if the owner of the name's home does not answer.
        """
        if slot.names.may_create(name):
            return NameLocation(slot.number, "")
        reply = await self._ask(self._home(name), {"do": "reserve", "name": name, "slot": slot.number})
        mark = reply.get("mark")
        if mark is None or not slot.names.grant(name, mark):
            return None
        return NameLocation(slot.number, mark)

    def release(self, name: str, slot: HostedSlot, location: NameLocation) -> None:
        """Give a name back that was reserved for nothing.

        While its home does not answer, the name is refused here and noted there: so this is repeated until it does, or
        the slot has another owner, which accepts what is noted.
        """
        if not location.mark:
            return
        slot.names.give_up(name, location.mark)
        question = {"do": "return", "name": name, "slot": slot.number, "mark": location.mark}

        async def give_back() -> None:
            while slot.serves:
                try:
                    await self._ask(self._home(name), question)
                except CfsError:
                    await asyncio.sleep(AGAIN_SECONDS)
                else:
                    return

        task = asyncio.create_task(give_back())
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    def _home(self, name: str) -> int:
        return slot_of(name, self._replica.slots)

    async def _ask(self, slot: int, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the owner of a slot, which may be this replica."""
        owner = self._replica.owner(slot)
        if isinstance(owner, HostedSlot):
            return await self._carry_out(owner, question)
        if isinstance(owner, RemoteSlot):
            try:
                return await self._relay.ask(owner.url, Order(slot), PATH, question)
            except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, ValueError):
                pass
        raise Unavailable("the replica that has this name does not answer; repeat", retry_after=AGAIN_SECONDS)

    async def answer(self, scope: Scope, request: Incoming, send: Send, slot: int) -> None:
        """Answer the question of another replica about a slot."""
        owner = self._replica.owner(slot)
        question, reply = await request.whole(_BYTES), None  # there is no question if the other replica is gone
        if question is not None and isinstance(owner, HostedSlot):
            reply = await self._carry_out(owner, json.loads(question))
        response = JSONResponse(reply or {}, 200 if reply is not None else 503)
        await response(scope, request.receive, send)

    async def _carry_out(self, slot: HostedSlot, question: Mapping[str, Any]) -> Mapping[str, Any]:
        name = question["name"]
        match question["do"]:
            case "reserve":
                lock = self._locks.setdefault(name, asyncio.Lock())
                async with lock:
                    return await self._reserve(slot, name, question["slot"])
            case "return":
                location = slot.names.place(name)
                if location is not None and location.mark == question["mark"]:
                    slot.names.note(name, slot.number)
                    await _durable(slot)
                return {"done": True}
            case "give_up":
                if slot.has(name):
                    return {"done": False}
                slot.names.give_up(name, question["mark"])
                return {"done": True}
            case other:
                raise Conflict(f"there is nothing called {other!r} to do with a name")

    async def _reserve(self, home: HostedSlot, name: str, slot: int) -> Mapping[str, Any]:
        """Note at the home of a name that it is in another slot, if no session has it."""
        if home.has(name):
            return {"mark": None}
        existing = home.names.place(name)
        if existing is not None:
            reply = await self._ask(existing.slot, {"do": "give_up", "name": name, "mark": existing.mark})
            if not reply.get("done"):
                return {"mark": None}
        if home.has(name):  # it was created while the other slot was asked
            return {"mark": None}
        location = home.names.note(name, slot)
        await _durable(home)
        return {"mark": location.mark}


async def _durable(slot: HostedSlot) -> None:
    """Return when what was noted is on the disk of the database. Raises `Unavailable`."""
    journal = slot.context.store.journal
    assert journal is not None  # noqa: S101 - a slot has one
    await journal.durable()
