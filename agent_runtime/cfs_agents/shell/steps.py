"""Steps of a shell: each operation is written once, for blocking code and for coroutines.

An operation is a generator, which never waits: it yields what to wait for and gets the result. `take` and
`async_take` do the waiting.
"""

import asyncio
import select
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from cfs_agents.base.threads import in_thread

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AwaitReadable:
    """Wait until a descriptor is readable, for at most `seconds`; the result is the set of readable descriptors."""

    descriptors: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Call a function that may block for a short time; the result is its return value. It is never interrupted."""

    call: Callable[[], Any]


Steps: TypeAlias = Generator[AwaitReadable | Work, Any, _T]


def take(steps: Steps[_T]) -> _T:
    """Run steps, blocking. An exception while waiting (Ctrl-C) is raised in the generator, so that it cleans up."""
    answer: Any = None
    failed: BaseException | None = None
    while True:
        try:
            request = steps.throw(failed) if failed else steps.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result
        failed = None
        try:
            answer = _ready(request) if isinstance(request, AwaitReadable) else request.call()
        except BaseException as error:  # noqa: BLE001 - raised again by the steps
            failed = error


async def async_take(steps: Steps[_T]) -> _T:
    """Run steps in an event loop. A cancellation is raised in the generator, so that it cleans up."""
    answer: Any = None
    failed: BaseException | None = None
    while True:
        try:
            request = steps.throw(failed) if failed else steps.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result
        failed = None
        try:
            answer = await (_async_ready(request) if isinstance(request, AwaitReadable) else _worked(request.call))
        except BaseException as error:  # noqa: BLE001 - raised again by the steps
            failed = error


async def _worked(call: Callable[[], Any]) -> Any:
    """Run a function in a thread and wait for its end even if cancelled: it is short, and half of it would leak."""
    work = asyncio.ensure_future(in_thread(call))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def _ready(request: AwaitReadable) -> set[int]:
    poll = select.poll()
    for descriptor in request.descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(max(0.0, request.seconds) * 1000)}


async def _async_ready(request: AwaitReadable) -> set[int]:
    if ready := _ready(AwaitReadable(request.descriptors, 0)):
        await asyncio.sleep(0)  # a command that writes constantly must not block the loop
        return ready
    loop = asyncio.get_running_loop()
    some = asyncio.Event()
    for descriptor in request.descriptors:
        loop.add_reader(descriptor, some.set)
    # no `asyncio.timeout`: that of Python 3.11.2 raises CancelledError in a task that cleans up after a cancellation
    over = loop.call_later(request.seconds, some.set)
    try:
        await some.wait()
    finally:
        over.cancel()
        for descriptor in request.descriptors:
            loop.remove_reader(descriptor)
    return _ready(AwaitReadable(request.descriptors, 0))
