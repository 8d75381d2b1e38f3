"""Carrying calls of other threads to the event loop, and their results back."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from cfs.errors import Unavailable

_T = TypeVar("_T")
_LOOK_SECONDS = 1.0


class Carrier:
    """Belongs to the loop that it is made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def __call__(self, action: Callable[[], _T]) -> _T:
        """Do it on the loop: at once when called there, else as soon as the loop comes to it.

        Raises `Unavailable` when the loop has ended. One that is closed forgets what it has not come to, and tells
        nobody; so a call that takes long looks after it.
        """
        if threading.get_ident() == self._thread:
            return action()
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(action())
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                done.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:
            raise Unavailable("the server has ended") from None
        while not wait([done], _LOOK_SECONDS).done:
            if self._loop.is_closed() and not done.done():
                raise Unavailable("the server has ended")
        return done.result()
