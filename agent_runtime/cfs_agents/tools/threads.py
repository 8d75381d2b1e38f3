"""A function that blocks, awaited: in a thread of its own, which nothing waits for once nobody wants its result."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")


async def in_thread(function: Callable[[], _T]) -> _T:
    """Run a function in a new thread and return what it returns.

    Why not `asyncio.to_thread`: a loop waits for the threads of its executor when it ends, and a function that hangs
    would keep the whole program from ending. This thread is a daemon, and a cancelled wait just leaves it alone.
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
        except StopIteration as error:  # which no future can carry
            failed = RuntimeError(f"StopIteration: {error}")
        except BaseException as error:  # noqa: BLE001 - whoever awaits it gets it
            failed = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, value, failed)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return await done
