"""Keeps the garbage collector quiet while a command is imported."""

import gc

_USUAL = gc.get_threshold()


def begin() -> None:
    """Collect seldom: nearly all that an import makes stays, so that looking through it again and again is in vain."""
    gc.set_threshold(100_000, 10, 10)


def end() -> None:
    """Collect as usual again, without looking through what exists now."""
    gc.freeze()
    gc.set_threshold(*_USUAL)
