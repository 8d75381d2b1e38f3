"""The sessions of all stores of a process as one store, which answers for them with values."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from heapq import merge
from itertools import chain, islice

from cfs.wire import CostRow
from cfs_server.domain.past import Past
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.words import Criteria
from cfs_server.engine.contract.interface import Engine
from cfs_server.sessions.search import MatchPage, joined
from cfs_server.sessions.session import Session
from cfs_server.sessions.spending import newest_first
from cfs_server.sessions.store import Part, SessionStore


class JointStore(SessionStore):
    """Reads the sessions of several stores. It has none of its own, and its part says what a creation raises."""

    def __init__(
        self, engine: Engine, limits: StoreLimits, part: Part | None, stores: Callable[[], Sequence[SessionStore]]
    ) -> None:
        """`stores` returns the stores as they are now. A session is in one of them."""
        super().__init__(engine, limits, part=part)
        self._stores = stores

    def __len__(self) -> int:
        return sum(map(len, self._stores()))

    def __iter__(self) -> Iterator[Session]:
        return chain.from_iterable(self._stores())

    def find(self, session_id: str) -> Session | None:
        """Return a session, or None if there is none with this id."""
        return next(filter(None, (store.find(session_id) for store in self._stores())), None)

    def with_key(self, key: str) -> Session | None:
        """Return the session with this key, whatever its id is now."""
        return next(filter(None, (store.with_key(key) for store in self._stores())), None)

    def loaded(self, which: str | Session) -> AbstractAsyncContextManager[None]:
        """Keep the messages of a session in memory during a block. There may be none with this id."""
        store = self._store_of(which if isinstance(which, str) else which.id)
        return super().loaded(which) if store is None else store.loaded(which)

    def page(self, prefix: str = "", after: str = "", limit: int = 100) -> list[Session]:
        """Return sessions by id; see `SessionStore.page`."""
        pages = [store.page(prefix, after, limit) for store in self._stores()]
        return list(islice(merge(*pages, key=lambda session: session.id), limit))

    def children(self, session: Session) -> list[Session]:
        """Return the direct sub-sessions by id. They are in the store of their parent."""
        store = self._store_of(session.id)
        return [] if store is None else store.children(session)

    async def past(self, session: Session) -> Past:
        """Return the versions of a session; see `SessionStore.past`."""
        store = self._store_of(session.id)
        return await (super().past(session) if store is None else store.past(session))

    def costs(self) -> list[CostRow]:
        """Return what was spent in all stores, the newest day first."""
        return newest_first(chain.from_iterable(store.costs() for store in self._stores()))

    async def search(self, sessions: Sequence[Session], criteria: Criteria, limit: int, owner: str) -> MatchPage:
        """Return the best matches in some sessions; see `SessionStore.search`. Each store reads its own journal."""
        stores = self._stores()
        groups: list[list[Session]] = [[] for _ in stores]
        for session in sessions:
            groups[next(index for index, store in enumerate(stores) if store.find(session.id) is session)].append(
                session
            )
        results = await asyncio.gather(
            *[store.search(part, criteria, limit, owner) for store, part in zip(stores, groups, strict=True) if part]
        )
        return joined(results, limit)

    def _store_of(self, session_id: str) -> SessionStore | None:
        return next((store for store in self._stores() if store.find(session_id) is not None), None)
