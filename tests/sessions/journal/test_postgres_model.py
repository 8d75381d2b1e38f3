"""Random interleavings of commits, lost connections and take-overs of one slot, against a list of what was stored."""

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cfs_server.journal.journal import Batch, StoredDocument
from cfs_server.journal.postgres import PostgresBackend, SlotLost
from cfs_server.journal.postgres_database import prepare
from cfs_server.journal.records import HISTORY, Row
from tests.postgres import PostgresServer, Proxy, postgres
from tests.sessions.journal.conformance import MOST, Writer
from tests.sessions.journal.test_postgres import beat

__all__ = ["postgres"]

_EXAMPLES, _SLOTS = settings().max_examples // 4, 1_000


class SlotMachine(RuleBasedStateMachine):
    """Two replicas take the slot from each other. Their heartbeats are old, so a lock protects neither of them."""

    url: str
    direct: str
    proxy: Proxy
    slots = count()

    def __init__(self) -> None:
        super().__init__()
        self.slot = next(self.slots)
        self.rows: list[Row] = []
        self.kept: dict[str, str] = {}
        self.names = count()
        self.fenced: list[tuple[PostgresBackend, Writer]] = []
        self.held = False

    @initialize()
    def claim(self) -> None:
        """Open the slot, as the first or the next owner."""
        self.owner = PostgresBackend(self.url, self.slot, replica=f"{next(self.names)}")
        beat(self.direct, self.owner.replica, seconds_ago=9)
        found = self.owner.open()
        assert list(found.rows) == self.rows
        assert found.kept.get("space", {}) == self.kept
        assert found.seq == len(self.rows)
        self.writer = Writer(found)
        for row in self.rows:
            self.writer.numbers[row.session] = row.number

    @rule(
        texts=st.lists(st.sampled_from("abc"), max_size=4),
        names=st.dictionaries(st.sampled_from("xy"), st.text("01")),
        lose=st.booleans(),
    )
    def commit(self, texts: list[str], names: dict[str, str], *, lose: bool) -> None:
        """Store some messages and documents; perhaps the connection ends before the answer comes."""
        rows: list[Row] = []
        if lose:
            self.proxy.lose_answer()
        for key in texts:
            if key not in self.writer.numbers:
                rows.append(self.writer.created(key))
            rows.append(self.writer.message(key, f"{self.writer.seq}"))
        self.owner.commit(Batch(rows, [StoredDocument("space", *each) for each in names.items()]))
        self.rows += rows
        self.kept |= names

    @precondition(lambda self: not self.held)
    @rule(key=st.sampled_from("xy"))
    def hold_a_commit(self, key: str) -> None:
        """A commit does not arrive, and is sent again by another connection."""
        self.proxy.hold()
        self.commit([], {key: "held"}, lose=False)
        self.held = True

    @precondition(lambda self: self.held)
    @rule()
    def deliver_it(self) -> None:
        """Now it arrives, when it must have no effect."""
        assert b"COMMIT" not in self.proxy.deliver()
        self.held = False

    @rule()
    def take_over(self) -> None:
        """Another replica claims the slot, while the present owner knows nothing of it."""
        self.fenced.append((self.owner, self.writer))
        self.claim()

    @precondition(lambda self: self.fenced)
    @rule()
    def write_as_an_earlier_owner(self) -> None:
        """It is refused, also when it tries again."""
        earlier, writer = self.fenced.pop()
        for _ in range(2):
            with pytest.raises(SlotLost):
                earlier.commit(Batch([writer.message("a", "never")], [StoredDocument("space", "x", "never")]))
        earlier.close()

    @rule()
    def restart(self) -> None:
        """The owner ends and starts again."""
        self.owner.close()
        self.claim()

    @rule(key=st.sampled_from("abc"))
    def read(self, key: str) -> None:
        """Histories and events are those that were stored."""
        assert self.owner.rows(key, 0, HISTORY) == [row for row in self.rows if row.session == key]
        assert self.owner.events(None, 0, MOST) == self.rows
        self.owner.tidy()

    def teardown(self) -> None:
        """Compare all once more."""
        self.proxy.reset()
        for earlier, _ in self.fenced:
            earlier.close()
        if hasattr(self, "owner"):
            self.restart()
            self.owner.close()


@pytest.mark.parametrize("may_end", [True, False])
def test_a_slot_stores_each_record_once_whatever_happens(postgres: PostgresServer, may_end: bool) -> None:
    """With and without the right to end the connection of an earlier owner, which has the lock."""
    name = postgres.new_database()
    prepare(postgres.url(name), _SLOTS)
    if not may_end:
        postgres.execute("REVOKE EXECUTE ON FUNCTION pg_terminate_backend(integer, bigint) FROM PUBLIC", name)
    proxy = Proxy(postgres.port)

    class Machine(SlotMachine):
        direct = postgres.url(name)
        url = direct.replace(f":{postgres.port}/", f":{proxy.port}/")
        slots = count()

    Machine.proxy = proxy
    few = settings(max_examples=_EXAMPLES, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(Machine, settings=few)
    proxy.close()
