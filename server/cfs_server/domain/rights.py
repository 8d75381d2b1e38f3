"""The rights that actions on a session need, and the table of the settings (S9, G9). Pure: no I/O.

The operations of grants are few: `write` stands for a message as well as for a setting. What an action does decides
what it needs: a setting by which a session is deleted needs the right to delete it.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from cfs.wire import TurnSettings
from cfs_filesystem import Operation


class Right(Enum):
    """A right to an action on a session: the operations that must be granted, and whether a share may have it.

    A share is a link that strangers may hold. It adds to a conversation; it neither holds up others nor acts for them.
    """

    WRITE = (("write",), True)
    """Add messages, and change how the model answers them."""
    STEER = (("write",), False)
    """Hold up an agent or another writer, or act for an agent or for the person that it asks."""
    ANSWER = (("write", "read_binary"), False)
    """Answer the messages of a session as an agent."""
    DELETE = (("write", "delete"), False)
    """Have a session deleted, now or later."""

    def __init__(self, operations: tuple[Operation, ...], for_shares: bool) -> None:
        self.operations = operations
        self.for_shares = for_shares


SETTINGS: Mapping[str, Right] = MappingProxyType(
    {
        **dict.fromkeys(TurnSettings.model_fields, Right.WRITE),  # each message may bring them
        "title": Right.WRITE,
        "paused": Right.STEER,
        "budget": Right.STEER,
        "driver": Right.ANSWER,
        "keep": Right.DELETE,
    }
)
"""The right that each setting needs, whatever its value: also to create a session with it, and to reset it."""
