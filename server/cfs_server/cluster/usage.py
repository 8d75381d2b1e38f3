"""What each caller has in all slots, so that a limit of a token holds for all replicas together (H7).

A replica counts its own slots exactly, and publishes the sums with its heartbeat. What others have published is up to a
second old: for so long several replicas together may exceed a limit.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from cfs_server.access.auth import Traffic
from cfs_server.domain.quotas import Used
from cfs_server.domain.spending import Spent
from cfs_server.sessions.spending import Spending
from cfs_server.sessions.store import SessionStore

_MOST = 500
"""Maximum number of callers in one heartbeat: first those with limits, and then those with the most bytes."""


class CallerUsage:
    """The usage of all callers, as this replica knows it."""

    def __init__(self, stores: Callable[[], Mapping[int, SessionStore]]) -> None:
        """Count the sessions of some stores: those of the slots of this replica, by slot."""
        self._stores = stores
        self._published: Mapping[str, Used] = {}
        self._spent: dict[int, Mapping[tuple[int, str], Spent]] = {}
        """What each database has shown of today's spending, by slot and `DAY/PRINCIPAL`."""
        self._traffic: dict[str, Traffic] = defaultdict(Traffic)

    def traffic_of(self, name: str) -> Traffic:
        """Return what all slots of this replica count together of a caller."""
        return self._traffic[name]

    def elsewhere(self, slot: int, name: str) -> Used:
        """Return what a caller has outside of one slot."""
        sessions, size = self._published.get(name, (0, 0))
        for number, store in self._stores().items():
            if number != slot and (account := store.accounts.get(name)) is not None:
                sessions, size = sessions + account.sessions, size + account.bytes
        return sessions, size

    def spent_elsewhere(self, slot: int, day: str, principal: str) -> Spent:
        """Return what a principal has spent in a day outside of one slot.

        The slots of this replica are counted exactly, the others as their databases showed them at the last
        heartbeat.
        """
        stores, name, total = self._stores(), f"{day}/{principal}", Spent()
        for number, store in stores.items():
            if number != slot:
                total = total.plus(store.spending.here(day, principal))
        for rows in self._spent.values():
            for (number, stored), spent in rows.items():
                if stored == name and number not in stores and number != slot:
                    total = total.plus(spent)
        return total

    def spending_of_any(self) -> Spending | None:
        """Return the counts of a slot of this replica, for what is about no session; None if it has none."""
        return next((store.spending for store in self._stores().values()), None)

    def learn_spent(self, database: int, rows: Iterable[tuple[int, str, str]]) -> None:
        """Replace what a database has shown: slots, names and counts."""
        self._spent[database] = {(slot, name): Spent(*json.loads(value)) for slot, name, value in rows}

    def summary(self) -> str:
        """Return the usage in this replica, as JSON."""
        totals: dict[str, Used] = {}
        limited: set[str] = set()
        for store in self._stores().values():
            for name, account in store.accounts.items():
                sessions, size = totals.get(name, (0, 0))
                totals[name] = sessions + account.sessions, size + account.bytes
                if account.quota.sessions is not None or account.quota.size is not None:
                    limited.add(name)
        largest = sorted(totals.items(), key=lambda item: (item[0] in limited, item[1][1]), reverse=True)[:_MOST]
        return json.dumps({name: used for name, used in largest if used != (0, 0)}, separators=(",", ":"))

    def learn(self, summaries: Iterable[str]) -> None:
        """Replace what the other replicas have published."""
        totals: dict[str, Used] = {}
        for summary in summaries:
            for name, (sessions, size) in json.loads(summary or "{}").items():
                total = totals.get(name, (0, 0))
                totals[name] = total[0] + sessions, total[1] + size
        self._published = totals
