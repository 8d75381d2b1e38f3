"""Work on a shell as steps that say what they wait for, and the two ways to take them: blocking, and in a loop.

What a shell does is written once, as a generator. It never waits: it yields what it wants to wait for and is sent the
answer. `take` and `async_take` are the only places that know how to wait.
"""

import asyncio
import select
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from cfs_agents.tools.threads import in_thread

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Readable:
    """Wait until one of these descriptors can be read, for so many seconds at most; the answer is which."""

    descriptors: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Call something that may block for a moment; the answer is what it returns. Once begun it is done to its end."""

    call: Callable[[], Any]


Steps: TypeAlias = Generator[Readable | Work, Any, _T]


def take(steps: Steps[_T]) -> _T:
    """Take steps, blocking. What is raised while waiting (Ctrl-C) is raised inside of them, so that they clean up."""
    answer: Any = None
    failed: BaseException | None = None
    while True:
        try:
            wanted = steps.throw(failed) if failed else steps.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result
        failed = None
        try:
            answer = _ready(wanted) if isinstance(wanted, Readable) else wanted.call()
        except BaseException as error:  # noqa: BLE001 - raised again by the steps
            failed = error


async def async_take(steps: Steps[_T]) -> _T:
    """Take steps in a loop. A cancellation is raised inside of them, so that they clean up."""
    answer: Any = None
    failed: BaseException | None = None
    while True:
        try:
            wanted = steps.throw(failed) if failed else steps.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result
        failed = None
        try:
            answer = await (_async_ready(wanted) if isinstance(wanted, Readable) else _worked(wanted.call))
        except BaseException as error:  # noqa: BLE001 - raised again by the steps
            failed = error


async def _worked(call: Callable[[], Any]) -> Any:
    """Run it to its end also when cancelled meanwhile: it is short, and half of it would leave things behind."""
    work = asyncio.ensure_future(in_thread(call))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def _ready(wanted: Readable) -> set[int]:
    poll = select.poll()
    for descriptor in wanted.descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(max(0.0, wanted.seconds) * 1000)}


async def _async_ready(wanted: Readable) -> set[int]:
    if ready := _ready(Readable(wanted.descriptors, 0)):
        await asyncio.sleep(0)  # a command that writes all the time must not keep the loop to itself
        return ready
    loop = asyncio.get_running_loop()
    some = asyncio.Event()
    for descriptor in wanted.descriptors:
        loop.add_reader(descriptor, some.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(wanted.seconds):
                await some.wait()
    finally:
        for descriptor in wanted.descriptors:
            loop.remove_reader(descriptor)
    return _ready(Readable(wanted.descriptors, 0))
