"""A turn's place on the device."""

from dataclasses import dataclass

from cfs_server.engine.llama.pool import Slot
from cfs_server.engine.prefixes.tree import Node


@dataclass(eq=False, slots=True)
class Seat:
    """A turn's place: its sequence, and the node of the tree (pinned) up to which others may share."""

    owner: str
    slot: Slot
    node: Node | None

    @property
    def shared(self) -> int:
        """Leading positions that the tree knows."""
        return self.node.end if self.node else 0

    @property
    def length(self) -> int:
        """Positions that are computed."""
        return self.slot.length
