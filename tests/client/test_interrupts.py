"""Ctrl-C during a turn, in this process."""

import os
import signal
import threading

from cfs.cli.actions.interrupts import TurnInterrupts


def test_the_cancel_has_returned_when_the_turn_is_left() -> None:
    """It uses a client, which is closed then."""
    leaving, returned = threading.Event(), threading.Event()

    def cancel() -> None:
        leaving.wait()
        returned.set()

    with TurnInterrupts(cancel) as interrupts:
        interrupts.turn_runs()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.seen
        leaving.set()
    assert returned.is_set()
