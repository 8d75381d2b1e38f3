"""Replies for the tests of the SDK, word for word."""

from collections.abc import Iterable, Sequence

from cfs.errors import EngineError
from tests.client.harness import Said, Script


def in_turn(*replies: str) -> Script:
    """Give one reply after the other, the last one for ever."""
    left = list(replies)

    def script(_: Sequence[Said]) -> Iterable[str]:
        return [left.pop(0) if len(left) > 1 else left[0]]

    return script


def failing(reason: str, *pieces: str) -> Script:
    """Say some pieces, then fail."""

    def script(_: Sequence[Said]) -> Iterable[str]:
        yield from pieces
        raise EngineError(reason)

    return script
