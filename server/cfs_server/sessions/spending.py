"""Counts what principals spend on models, day by day, and refuses turns beyond a limit.

The counts are documents of the journal. A turn's count is appended in the callback that ends the turn, so both become
durable together. Deleted sessions stay counted.
"""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cfs.errors import TooMany
from cfs.wire import CostRow, Settings, Usage
from cfs_server.domain.quotas import StorageUsage
from cfs_server.domain.spending import SpendingLimit, Spent, day_of, priced, seconds_left, spent_of
from cfs_server.domain.state import SessionState
from cfs_server.engine.contract.interface import ModelInfo
from cfs_server.journal.journal import Journal

SPACE = "costs"
"""Documents of the journal: what a principal has spent in a day on a model in a session."""
TOTALS = "spent"
"""Documents of the journal: what a principal has spent in a day, by `DAY/PRINCIPAL`."""
_DAYS = 92
"""How long counts are stored."""


class _SpendingKey(NamedTuple):
    day: str
    principal: str
    session: str
    """The key of the session; empty for a completion without one."""
    model: str


def newest_first(rows: Iterable[CostRow]) -> list[CostRow]:
    """Return counts by day, cost and tokens, the newest day and the largest count first."""
    by_name = sorted(rows, key=lambda row: (row.principal, row.session, row.model))
    return sorted(by_name, key=lambda row: (row.day, row.cost, row.tokens), reverse=True)


class Spending:
    """What all principals have spent in one store of sessions."""

    def __init__(
        self,
        journal: Journal | None,
        clock: Callable[[], float],
        model_of: Callable[[str | None], ModelInfo | None],
        elsewhere: Callable[[str, str], Spent] | None = None,
        substitute: Callable[[], "Spending | None"] = lambda: None,
    ) -> None:
        """Read the counts. `model_of` describes the model that a setting `model` chooses.

        `elsewhere` returns what a principal has spent in a day in other stores. `substitute` returns the counts of a
        durable store, for one that is not.
        """
        self._journal = journal
        self._clock = clock
        self._model_of = model_of
        self._elsewhere = elsewhere
        self._substitute = substitute
        self._rows: dict[_SpendingKey, CostRow] = {}
        self._totals: dict[tuple[str, str], Spent] = {}
        """By day and principal."""
        self._pruned = ""
        self.on_counted: Callable[[str, str, Usage], None] = lambda _principal, _model, _usage: None
        """Called with each count: the principal, the model and the usage."""
        for name, text in ({} if journal is None else journal.kept(SPACE)).items():
            self._put(_SpendingKey(*json.loads(name)), CostRow.model_validate_json(text))

    def price(self, usage: Usage, model: str | None) -> Usage:
        """Return the usage of a turn with its cost by the present price of its model."""
        info = self._model_of(model)
        return priced(usage, None if info is None else info.price)

    def add(self, account: StorageUsage, usage: Usage, model: str | None, session: SessionState | None = None) -> None:
        """Count what has been spent for an account. The usage has its cost."""
        info, principal = self._model_of(model), account.payer.owner
        name = info.name if info else model or ""
        (self._substitute() or self).count(principal, usage, name, session)
        self.on_counted(principal, name, usage)

    def count(self, principal: str, usage: Usage, model: str, session: SessionState | None) -> None:
        """Add a usage to the counts of today."""
        day = day_of(self._clock())
        session_key, session_id = ("", "") if session is None else (session.key, session.id)
        key = _SpendingKey(day, principal, session_key, model)
        before = self._rows.get(key) or CostRow(day=day, principal=principal, session=session_id, model=model)
        row = before.plus(usage).model_copy(update={"session": session_id})
        self._put(key, row, spent_of(usage))
        if self._journal is not None:
            total = self._totals[day, principal]
            self._journal.keep(SPACE, json.dumps(key), row.model_dump_json())
            self._journal.keep(TOTALS, f"{day}/{principal}", json.dumps(total))
            self._prune(day)

    def _put(self, key: _SpendingKey, row: CostRow, more: Spent | None = None) -> None:
        self._rows[key] = row
        total = self._totals.get(key[:2], Spent())
        self._totals[key[:2]] = total.plus(Spent(row.tokens, row.cost) if more is None else more)

    def _prune(self, day: str) -> None:
        """Once a day, drop the counts of days long past."""
        if self._pruned == day or self._journal is None:
            return
        self._pruned = day
        first = (datetime.fromtimestamp(self._clock(), UTC) - timedelta(days=_DAYS)).date().isoformat()
        for key in [key for key in self._rows if key.day < first]:
            del self._rows[key]
            self._totals.pop(key[:2], None)
            self._journal.keep(SPACE, json.dumps(key), None)
            self._journal.keep(TOTALS, f"{key.day}/{key.principal}", None)

    def rows(self) -> list[CostRow]:
        """Return all counts, the newest day first."""
        return newest_first(self._rows.values())

    def here(self, day: str, principal: str) -> Spent:
        """Return what a principal has spent in a day in this store."""
        return self._totals.get((day, principal), Spent())

    def today(self, account: StorageUsage) -> Spent:
        """Return what the principal of an account has spent today in all stores."""
        day, principal = day_of(self._clock()), account.payer.owner
        local = self.here(day, principal)
        return local if self._elsewhere is None else local.plus(self._elsewhere(day, principal))

    def check(
        self,
        account: StorageUsage,
        model: str | None,
        settings: Settings | None = None,
        session: SessionState | None = None,
    ) -> None:
        """Raise `TooMany` if a limit of the session or of the account's principal is reached.

        `settings` are those of the session, which may not exist yet.
        """
        info = self._model_of(model)
        name, price = ("", None) if info is None else (info.name, info.price)
        budget = SpendingLimit.of_budget(settings.budget if settings else None)
        budget.check_price(name, price)
        used = Spent() if session is None else Spent(session.tokens, session.cost)
        if (excess := budget.excess(used)) is not None:
            which = "the session" if session is None else f"session {session.id!r}"
            raise TooMany(f"{which} has spent {excess}, its budget; it goes on when its setting budget is raised")
        daily = account.payer.quota.daily
        daily.check_price(name, price)
        if (excess := daily.excess(self.today(account))) is not None:
            left = seconds_left(self._clock())
            raise TooMany(
                f"{account.payer.owner} has spent {excess} today, the daily limit; it ends at 00:00 UTC, in"
                f" {int(left // 3600)} h {int(left % 3600 // 60)} min",
                retry_after=round(left, 1),
            )
