"""Which worker behind a router answers: the one that has the conversation's prefix in its cache.

A router in front of many workers cannot see which requests belong together. Each request therefore carries an opaque
value that is the same for all turns of a session and for all agents of its tree, whose prompts have much in common.
Where it stands depends on the router: vllm-router reads the header `X-Session-ID`, others `X-Session-Affinity`, and
OpenAI the members `prompt_cache_key` and `user`. Gateways that choose the value themselves return it in the header
`X-Session-Token`, and want it back.
"""

import hashlib
from collections.abc import Mapping

from cachetools import LRUCache

from cfs_server.engine.contract.interface import AffinityKind, GenerationRequest

TOKEN = "x-session-token"  # noqa: S105 - the name of a header
HEADERS: frozenset[AffinityKind] = frozenset({"x-session-id", "x-session-affinity"})
"""Kinds whose value is a header; the others are members of the body."""
_LONGEST = 4096
"""Characters of a token that is kept; a longer one is ignored."""
_MOST = 10_000
"""Families whose tokens are kept: the most recently used ones."""


class Affinity:
    """The value of each family of sessions, and what a gateway returned for it."""

    def __init__(self, kind: AffinityKind) -> None:
        self._kind = kind
        self._tokens: LRUCache[str, str] = LRUCache(_MOST)

    def headers(self, request: GenerationRequest) -> dict[str, str]:
        """Return the headers of a turn's request."""
        if self._kind == "none":
            return {}
        value = value_of(request)
        headers: dict[str, str] = {self._kind: value} if self._kind in HEADERS else {}
        if token := self._tokens.get(value):
            headers[TOKEN] = token
        return headers

    def answered(self, request: GenerationRequest, headers: Mapping[str, str]) -> None:
        """Keep what the gateway wants back with the family's next request."""
        token = headers.get(TOKEN, "")
        if self._kind == "none" or not token or len(token) > _LONGEST:
            return
        self._tokens[value_of(request)] = token


def member_of(kind: AffinityKind, request: GenerationRequest) -> dict[str, str]:
    """Return the member of a turn's body, for kinds that have one."""
    return {} if kind == "none" or kind in HEADERS else {kind: value_of(request)}


def value_of(request: GenerationRequest) -> str:
    """Return the value of a request's family: 32 hexadecimal digits that reveal neither name nor key."""
    return hashlib.sha256(f"cfs affinity {request.family or request.cache_key}".encode()).hexdigest()[:32]
