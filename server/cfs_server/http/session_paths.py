"""The session that a path names (H1).

Importing this module registers the convertor of `{id:session}`.
"""

from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends, Path
from starlette.convertors import Convertor, register_url_convertor

from cfs.contract.ids import check_id
from cfs.contract.route_words import ROUTE_WORDS
from cfs.wire import ID_PATTERN
from cfs_server.http.caller import Life, Sessions
from cfs_server.http.idempotency import Idempotency


def id_regex(words: Iterable[str]) -> str:
    """Return the regular expression of an id that ends before the first of these words of routes."""
    return rf"[^/]*(?:/(?!(?:{'|'.join(sorted(words))})(?:/|$))[^/]*)*"


class SessionIdConvertor(Convertor[str]):
    """The longest sequence of path components in which only the first may be a word of a route.

    So `/v1/sessions/a/b/events` is the stream of `a/b`, and `/v1/sessions/events` is the session `events`. The order of
    the routes does not matter.
    """

    regex = id_regex(ROUTE_WORDS)

    def convert(self, value: str) -> str:
        """Return the text unchanged. `check_id` validates it."""
        return value

    def to_string(self, value: str) -> str:
        """Return the text unchanged. Its slashes are separators."""
        return value


register_url_convertor("session", SessionIdConvertor())


async def _session_id(
    sessions: Sessions,
    ticket: Idempotency,
    id: Annotated[  # noqa: A002 - the name in the path
        str,
        Path(
            description="Session id, percent-encoded; the '/' before a sub-session stays as it is.",  # S1
            json_schema_extra={"pattern": ID_PATTERN, "minLength": 1},
        ),
    ],
    life: Life = None,
) -> str:
    name = check_id(id)
    if ticket.bound is None:  # a request that was carried out is answered even if its session has another name now
        sessions.require_life(name, life)
    return name


SessionId = Annotated[str, Depends(_session_id)]
