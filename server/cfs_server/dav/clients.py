"""What a principal's programs did a moment ago, where it says how their next request is meant."""

import time
from collections import OrderedDict
from collections.abc import Callable

from cfs.errors import Forbidden

_DELETE_SECONDS = 5.0
_ASIDE_SECONDS = 60.0
_KEPT = 1_024


class Recent:
    """Keys that were noted within the last `seconds`; of very many the oldest are forgotten before."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._noted: OrderedDict[str, float] = OrderedDict()

    def note(self, key: str) -> None:
        """Note a key now."""
        self._noted[key] = self._clock()
        self._noted.move_to_end(key)
        if len(self._noted) > _KEPT:
            self._noted.popitem(last=False)

    def __contains__(self, key: str) -> bool:
        noted = self._noted.get(key)
        return noted is not None and self._clock() - noted < self._seconds


class Clients:
    """The programs of one principal; used on the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._uploads = Recent(_DELETE_SECONDS, clock)
        self._aside = Recent(_ASIDE_SECONDS, clock)

    def uploads(self, user_agent: str, session_id: str) -> None:
        """Note that a program sends something to a session, whatever comes of it."""
        if is_rclone(user_agent):
            self._uploads.note(session_id)

    def require_may_delete(self, user_agent: str, session_id: str) -> None:
        """Raise `Forbidden` where rclone only wants to clean up behind itself.

        It deletes what it has just sent when the size is another one then, as that of a session always is. A status
        that says "later" would make it try for minutes.
        """
        if is_rclone(user_agent) and session_id in self._uploads:
            raise Forbidden(
                f"rclone sent {session_id!r} less than {_DELETE_SECONDS:g} seconds ago, and would delete the whole"
                " session because its size differs from what was sent: use --ignore-size --ignore-checksum, or delete"
                " it later"
            )

    def sets_aside(self, key: str) -> None:
        """Note that a program took a copy of a session by renaming it, and will write it anew."""
        self._aside.note(key)

    def has_set_aside(self, key: str) -> bool:
        """Tell whether a program that wants a new file is one that takes this session to be out of the way."""
        return key in self._aside


def is_rclone(user_agent: str) -> bool:
    """Tell whether a request is rclone's."""
    return user_agent.startswith("rclone/")


def is_davfs2(user_agent: str) -> bool:
    """Tell whether a request is davfs2's."""
    return user_agent.startswith("davfs2/")
