"""Ctrl-C during a turn: the first cancels the turn, the second stops waiting for it (S12)."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class TurnInterrupts:
    """Handles SIGINT during a turn. `seen` is whether it was received.

    The first SIGINT of a running turn calls `cancel` in a thread, and the stream continues to the end of the turn. A
    second one, or one while the turn is still queued, raises `KeyboardInterrupt`. Without it, `cancel` has returned
    when the context is left.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.seen = False
        self._cancel = cancel
        self._runs = False
        self._canceling: threading.Thread | None = None
        self._before: Any = None

    def turn_runs(self) -> None:
        """Note that the turn has started and can be cancelled."""
        self._runs = True

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._canceling is not None and kind is None:
                self._canceling.join()  # it uses a client, which the caller may close now
        finally:
            signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature is fixed
        if self.seen or not self._runs:
            self._canceling = None  # its answer is not waited for
            raise KeyboardInterrupt
        self.seen = True
        # The main thread may hold a lock of the HTTP client now: a call from here could deadlock.
        self._canceling = threading.Thread(target=self._cancel, daemon=True)
        self._canceling.start()
