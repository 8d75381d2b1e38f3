"""Ctrl-C during a turn: the first cancels the turn, the second stops waiting for it (S12)."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class TurnInterrupts:
    """Handles SIGINT during a turn. `seen` is whether it was received.

    The first SIGINT of a running turn calls `cancel`, and the stream continues to the end of the turn. A second one, or
    one while the turn is still queued, raises `KeyboardInterrupt`.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.seen = False
        self._cancel = cancel
        self._runs = False
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
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature is fixed
        if self.seen or not self._runs:
            raise KeyboardInterrupt
        self.seen = True
        # The main thread may hold a lock of the HTTP client now: a call from here could deadlock.
        threading.Thread(target=self._cancel, daemon=True).start()
