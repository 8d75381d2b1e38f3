"""What a client prefers (RFC 7240): how long an answer may take. Pure: no I/O."""

import re
from collections.abc import Iterable

_WAIT = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?:;.*)?', re.IGNORECASE | re.DOTALL)


def wait_of(headers: Iterable[str]) -> int | None:
    """Read the seconds of `Prefer: wait=N`, the first that there is; None without one that can be understood."""
    for preference in ",".join(headers).split(","):
        if (found := _WAIT.fullmatch(preference)) is not None:
            return int(found[1])
    return None
