"""Shares: links with a token of their own for one session and all below it (G9).

A share never has more rights than the principal that made it has at that moment: its handle is narrowed from the
owner's. It ends when it expires, when it is revoked, and when its session is deleted or gets another name, because
another session may get the old one. What its bearer writes counts for the owner.
"""

import asyncio
import json
import secrets
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Literal

from cfs.errors import NotFound, StorageFull
from cfs_filesystem import AccessDeniedError, Grant, Operation
from cfs_server.access.auth import Principal, Principals
from cfs_server.access.tokens import PREFIX, digest
from cfs_server.domain.ids import path_of
from cfs_server.journal.journal import Journal
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore

SharedAccess = Literal["read", "write"]
READ: frozenset[Operation] = frozenset({"list", "file", "read_binary", "read_file", "read_re"})
OPERATIONS_OF: dict[SharedAccess, frozenset[Operation]] = {"read": READ, "write": READ | {"write"}}
MOST_OF_ONE = 1_000
"""Maximum number of shares of one principal."""

SPACE = "shares"
"""The name of the documents in the journal."""
_LOOK_SECONDS = 1.0
_ID_BYTES, _SECRET_BYTES = 8, 32


@dataclass(frozen=True, slots=True)
class Share:
    """A share as stored. The secret itself is not. `key` is the session's, which another session never has."""

    id: str
    hash: str
    owner: str
    session: str
    key: str
    access: SharedAccess
    created: float
    expires: float | None = None


class Shares:
    """All shares of a server, and their principals."""

    def __init__(self, principals: Principals, store: SessionStore, journal: Journal) -> None:
        """Restore the shares of a journal, for the sessions of a restored store."""
        self._principals = principals
        self._store = store
        self._clock = store.clock
        self._journal = journal
        self._shares: dict[str, Share] = {}
        self._by_hash: dict[str, Share] = {}
        self._of_owner: Counter[str] = Counter()
        self._of_key: defaultdict[str, dict[str, Share]] = defaultdict(dict)
        """The shares of each session, by its key."""
        self._bearers: dict[str, Principal] = {}
        for document in journal.kept(SPACE).values():
            share = Share(**json.loads(document))
            session = store.find(share.session)
            if session is None or session.key != share.key:
                journal.keep(SPACE, share.id, None)
            else:
                self._add(share)
        store.on_removed = self._removed
        principals.bearer_of = self.bearer

    def create(
        self, owner: Principal, session: Session, access: SharedAccess, seconds: float | None
    ) -> tuple[Share, str]:
        """Make a share of a session, and return it with its secret. The caller has checked the owner's rights."""
        if self._of_owner[owner.name] >= MOST_OF_ONE:
            raise StorageFull(f"you have {MOST_OF_ONE} shares; revoke some")
        secret, now = PREFIX + secrets.token_urlsafe(_SECRET_BYTES), self._clock()
        name, expires = secrets.token_hex(_ID_BYTES), None if seconds is None else now + seconds
        share = Share(name, digest(secret), owner.name, session.id, session.key, access, now, expires)
        self._add(share)
        self._journal.keep(SPACE, share.id, json.dumps(asdict(share)))
        return share, secret

    def of(self, owner: Principal, session_id: str) -> list[Share]:
        """Return the owner's shares of a session, oldest first."""
        session = self._store.find(session_id)
        shares = () if session is None else self._of_key.get(session.key, {}).values()
        return [share for share in shares if share.owner == owner.name]

    def revoke(self, owner: Principal, share_id: str) -> None:
        """End a share of the owner. Raises `NotFound`."""
        share = self._shares.get(share_id)
        if share is None or share.owner != owner.name:
            raise NotFound(f"you have no share {share_id!r}")
        self._end(share)

    def bearer(self, hashed: str) -> Principal | None:
        """Return the principal of a share by the hash of its secret."""
        share = self._by_hash.get(hashed)
        if share is None or self._is_over(share):
            return None
        if share.id not in self._bearers:
            grant = Grant(prefix=path_of(share.session), ops=OPERATIONS_OF[share.access])
            try:
                self._bearers[share.id] = self._principals.named(share.owner).share(f"share:{share.id}", grant)
            except AccessDeniedError:  # the owner has lost rights
                return None
        return self._bearers[share.id]

    async def watch(self) -> None:
        """End shares that expire, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for share in [candidate for candidate in self._shares.values() if self._is_over(candidate)]:
                self._end(share)

    def _add(self, share: Share) -> None:
        self._shares[share.id] = self._by_hash[share.hash] = self._of_key[share.key][share.id] = share
        self._of_owner[share.owner] += 1

    def _removed(self, session: Session) -> None:
        for share in list(self._of_key.get(session.key, {}).values()):
            self._end(share)

    def _end(self, share: Share) -> None:
        del self._shares[share.id], self._by_hash[share.hash], self._of_key[share.key][share.id]
        if not self._of_key[share.key]:
            del self._of_key[share.key]
        self._of_owner[share.owner] -= 1
        self._journal.keep(SPACE, share.id, None)
        if (bearer := self._bearers.pop(share.id, None)) is not None:
            bearer.end()

    def _is_over(self, share: Share) -> bool:
        return share.expires is not None and share.expires <= self._clock()
