"""What Ctrl-C means while a turn runs: first that the turn is cancelled, then that nobody waits for it (S12)."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class TurnInterrupts:
    """Holds SIGINT for the length of a turn. `seen` says whether it came.

    The first one of a running turn calls `cancel`, and the turn's stream goes on to its end. A second one, or one
    while the turn still waits for others, raises `KeyboardInterrupt`.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.seen = False
        self._cancel = cancel
        self._runs = False
        self._before: Any = None

    def turn_runs(self) -> None:
        """Say that the turn has started, so that there is something to cancel."""
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
        # The main thread may hold a lock of the HTTP client at this very moment: a call from here could wait for ever.
        threading.Thread(target=self._cancel, daemon=True).start()
