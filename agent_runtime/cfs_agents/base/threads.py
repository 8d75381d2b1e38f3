"""Runs blocking work in threads."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

_T = TypeVar("_T")


async def to_the_end(work: Callable[[], _T]) -> _T:
    """Run blocking work in a thread; a cancellation waits for its end, so that its result is known."""
    running = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def in_thread(function: Callable[[], _T]) -> _T:
    """Run a blocking function in a new daemon thread and return its result.

    Why not `asyncio.to_thread`: at its end the loop waits for the threads of its executor, so a function that hangs
    would block the exit of the program. If the caller is cancelled, the thread continues and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: _T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value: _T | None = None
        failed: BaseException | None = None
        try:
            value = context.run(function)
        except StopIteration as error:  # a future cannot hold it
            failed = RuntimeError(f"StopIteration: {error}")
        except BaseException as error:  # noqa: BLE001 - raised again in the coroutine that awaits the result
            failed = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, value, failed)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return await done
