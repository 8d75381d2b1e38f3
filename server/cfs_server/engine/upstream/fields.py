"""Members of a request that not every model takes: sent until one is refused, then left out. Pure: no I/O.

Servers and models differ in what they accept, and say so in an error that names the member. Asking once costs one
request; a table of all models would be out of date tomorrow.
"""

import re
from collections.abc import Iterable

import structlog

from cfs_server.engine.upstream.failures import Failure

_UNKNOWN = re.compile(
    r"not supported|unsupported|does not support|not support|deprecated|unrecognized|unexpected|unknown|not permitted"
    r"|not allowed|cannot both|extra (inputs|fields)",
    re.IGNORECASE,
)
_log = structlog.get_logger(__name__)


class OptionalFields:
    """Which of some members the upstream takes."""

    def __init__(self, names: Iterable[str]) -> None:
        self._pattern = re.compile(rf"\b({'|'.join(names)})\b")
        self._refused: set[str] = set()

    def takes(self, name: str) -> bool:
        """Whether a member may be sent."""
        return name not in self._refused

    def learn(self, failure: Failure) -> None:
        """Note the first member of which a failure says that it is not taken."""
        if failure.status not in (400, 422) or not _UNKNOWN.search(failure.said):
            return
        named = self._pattern.search(failure.said)
        if named and named[0] not in self._refused:  # another turn may have been told the same
            self._refused.add(named[0])
            _log.warning("upstream.refused", setting=named[0], said=failure.said)
