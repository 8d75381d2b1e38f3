"""The memory of all models that are loaded."""

import math
from typing import Protocol

from cfs_server.base.broadcast import Broadcast
from cfs_server.engine.contract.interface import (
    ModelLoadError,
)


class LoadableModel(Protocol):
    """A model that takes memory while it is loaded."""

    size: int
    """Bytes of its file, the estimate of its memory."""

    @property
    def busy(self) -> bool:
        """Whether turns use it or wait for it."""
        ...

    @property
    def used_at(self) -> float:
        """When it was last used."""
        ...

    def leave(self, *, wanted: bool) -> None:
        """Take no more turns and end after those that it has, or go on."""
        ...


class MemoryBudget:
    """Which models are loaded: no more than fit into a number of bytes.

    A model that needs a place waits in the order of requests. Meanwhile the least recently used models are to leave,
    idle ones first. A busy one takes no more turns until it has left or its place is no longer needed, so no model
    waits forever.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._held: list[LoadableModel] = []
        self._queue: list[LoadableModel] = []
        self._changed = Broadcast()

    def check(self, name: str, size: int) -> None:
        """Raise `ModelLoadError` for a model that never fits."""
        if self._limit is not None and size > self._limit:
            raise ModelLoadError(
                f"{name} has {size / (1 << 20):.0f} MiB, more than --models-memory allows for all models together"
                f" ({self._limit / (1 << 20):.0f} MiB)"
            )

    async def take(self, model: LoadableModel) -> None:
        """Wait until a model has a place."""
        self._queue.append(model)
        try:
            self.look()
            while self._queue[0] is not model or model.size > self._free:
                await self._changed.wait()
            self._held.append(model)
        finally:
            self._queue.remove(model)
            self._fire()

    def give(self, model: LoadableModel) -> None:
        """Give a place back."""
        self._held.remove(model)
        self._fire()

    def look(self) -> None:
        """Choose again which models leave for the first one that waits. To be called when a model becomes idle."""
        missing = self._queue[0].size - self._free if self._queue else 0
        for model in sorted(self._held, key=lambda model: (model.busy, model.used_at)):
            model.leave(wanted=missing > 0)
            missing -= model.size if missing > 0 else 0

    @property
    def _free(self) -> float:
        return math.inf if self._limit is None else self._limit - sum(model.size for model in self._held)

    def _fire(self) -> None:
        self.look()
        self._changed.fire()
