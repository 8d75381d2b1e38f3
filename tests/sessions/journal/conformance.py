"""What every backend of the journal must do. A test class inherits from `BackendConformance` and opens its backend."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pytest

from cfs.wire import Message, Settings
from cfs_server.domain.changes import (
    Created,
    Deleted,
    HistoryReplaced,
    MessageAdded,
    Record,
    ReplyExtended,
    SessionChange,
    StateAnnounced,
)
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.history import HistoryHead, Window
from cfs_server.domain.state import Head
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.words import Criteria, SearchQuery
from cfs_server.engine.contract.interface import Delta
from cfs_server.journal.journal import Backend, Batch, Opened, StoredDocument
from cfs_server.journal.records import DELETED, HISTORY, Row, decode, decode_messages, encode, encode_head

MOST = 1 << 30


class Writer:
    """Makes rows as a server does: with growing sequence numbers, event numbers and positions."""

    def __init__(self, opened: Opened | None = None) -> None:
        self.seq = opened.seq if opened else 0
        self.position = opened.position if opened else 0
        self.numbers: dict[str, int] = {}

    def row(self, key: str, change: SessionChange, *events: str) -> Row:
        """Return the next row, which publishes events of these types."""
        self.seq += 1
        published = []
        for kind in events:
            self.position += 1
            self.numbers[key] = self.numbers.get(key, 0) + 1
            published.append(LoggedEvent(kind, key, self.numbers[key], self.position, 1.5, {"n": self.position}))  # type: ignore[arg-type]
        number = self.numbers.get(key, 0)
        return encode(self.seq, Record(key, 1.5, change, tuple(published), None, number, self.position))

    def created(self, key: str) -> Row:
        """Return the first row of a session."""
        return self.row(key, Created(key, key, "1f", "the server", Settings()), "session.created")

    def message(self, key: str, text: str = "hello") -> Row:
        """Return a row that adds a message."""
        return self.row(key, MessageAdded(Message(role="user", content=text), "t"), "message.added")

    def token(self, key: str, text: str = "a") -> Row:
        """Return a row that adds a token."""
        return self.row(key, ReplyExtended("t", Delta(text, 1)), "token")

    def silent(self, key: str) -> Row:
        """Return a row without an event."""
        return self.row(key, StateAnnounced())

    def deleted(self, key: str) -> Row:
        """Return the last row of a session."""
        return self.row(key, Deleted(), "session.deleted")

    def head(self, key: str, seq: int | None = None) -> tuple[str, int, str]:
        """Return the head of a session at a row, by default the newest one."""
        return key, seq or self.seq, encode_head(head_of(key, seq or self.seq))


def head_of(key: str, seq: int) -> Head:
    """Return a head with all that it must have."""
    history = HistoryHead(0, 0, 0, 0, 1.5, (0, 0), Window(), 1)
    return Head(seq, key, key, "1f", "the server", Settings(), 1.5, 1.5, 0, 0, history)


def conversation(writer: Writer, key: str, turns: int = 3) -> list[Row]:
    """Return the rows of a session with some turns of four tokens."""
    rows = [writer.created(key)]
    for turn in range(turns):
        rows += [writer.message(key, f"question {turn}"), *(writer.token(key) for _ in range(4)), writer.silent(key)]
        rows.append(writer.message(key, f"answer {turn}"))
    return rows


def contents(rows: Sequence[Row] | None) -> list[str]:
    """Return the texts of the messages that rows add."""
    changes = [decode(row).change for row in rows or ()]
    return [change.message.content for change in changes if isinstance(change, MessageAdded)]


class BackendConformance(ABC):
    """The tests of a backend. Each test has its own store."""

    keeps = True
    """Whether the backend stores anything."""

    @abstractmethod
    def make(self) -> Backend:
        """Return the backend of this test's store, not yet opened. Closing it keeps what it stores."""

    @pytest.fixture
    def backend(self) -> Backend:
        """An open backend without content."""
        backend = self.make()
        self.opened = backend.open()
        return backend

    def reopened(self, backend: Backend) -> tuple[Backend, Opened]:
        """Close the backend and open its store again."""
        backend.close()
        new = self.make()
        return new, new.open()

    # -- any backend ----------------------------------------------------------------------------------------------

    def test_it_says_whether_it_keeps_anything(self, backend: Backend) -> None:
        assert backend.durable is self.keeps
        backend.close()

    def test_a_new_store_is_empty(self, backend: Backend) -> None:
        opened = self.opened
        assert (opened.seq, opened.position, list(opened.heads), list(opened.rows), opened.kept) == (0, 0, [], [], {})
        assert opened.epoch
        assert opened.life
        assert list(opened.repairs) == []
        backend.close()

    def test_each_opening_is_an_epoch(self, backend: Backend) -> None:
        """S11: numbers that were shown but not stored cannot be mistaken for later ones."""
        labels = {self.opened.epoch}
        for _ in range(5):
            backend, opened = self.reopened(backend)
            labels.add(opened.epoch)
        assert len(labels) == 6
        backend.close()

    def test_an_unknown_epoch_has_no_last_number(self, backend: Backend) -> None:
        assert backend.last_of("no-such", None) is None
        assert backend.last_of("no-such", "a") is None
        backend.close()

    def test_closing_twice_does_no_harm(self, backend: Backend) -> None:
        backend.close()
        backend.close()

    # -- what is committed is kept ----------------------------------------------------------------------------------

    def test_what_is_committed_is_there_after_a_restart(self, backend: Backend) -> None:
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        rows = conversation(writer, "a") + conversation(writer, "b")
        for row in rows:
            backend.commit(Batch([row]))
        backend, opened = self.reopened(backend)
        assert list(opened.rows) == rows
        assert (opened.seq, opened.position) == (writer.seq, writer.position)
        assert opened.life == self.opened.life
        backend.close()

    def test_a_head_replaces_the_rows_that_it_includes(self, backend: Backend) -> None:
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        backend.commit(Batch(conversation(writer, "a")))
        head = writer.head("a")
        more = [writer.message("a"), *conversation(writer, "b", 1)]
        backend.commit(Batch(more, heads=[head]))
        backend, opened = self.reopened(backend)
        assert [encode_head(found) for found in opened.heads] == [head[2]]
        assert list(opened.rows) == more
        newer = writer.head("a")
        backend.commit(Batch(heads=[newer]))
        backend, opened = self.reopened(backend)
        assert [(found.key, found.seq) for found in opened.heads] == [newer[:2]]
        assert {row.session for row in opened.rows} == {"b"}
        assert opened.seq == writer.seq
        backend.close()

    def test_what_was_replaced_is_still_there(self, backend: Backend) -> None:
        """The past of a history: all of its changes, also after maintenance and another start."""
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        rows = [*conversation(writer, "a"), writer.row("a", HistoryReplaced(SizedMessages())), writer.message("a")]
        backend.commit(Batch(rows, heads=[writer.head("a")]))
        while backend.tidy():
            pass
        backend, _ = self.reopened(backend)
        assert backend.rows("a", 0, HISTORY) == [row for row in rows if row.kind in HISTORY]
        backend.close()

    def test_documents_are_kept_replaced_and_deleted(self, backend: Backend) -> None:
        self.only_if_kept(backend)
        backend.commit(
            Batch(
                kept=[
                    StoredDocument("locks", "a", "1"),
                    StoredDocument("locks", "b", "2"),
                    StoredDocument("keys", "a", "三"),
                ]
            )
        )
        backend.commit(
            Batch(
                kept=[
                    StoredDocument("locks", "a", "4"),
                    StoredDocument("locks", "b", None),
                    StoredDocument("locks", "no-such", None),
                ]
            )
        )
        backend, opened = self.reopened(backend)
        assert opened.kept == {"locks": {"a": "4"}, "keys": {"a": "三"}}
        backend.close()

    def test_documents_may_have_any_name_and_text(self, backend: Backend) -> None:
        self.only_if_kept(backend)
        texts = ["", "\0", "\\", "\\0", "a\0\\\0b", "/x/𝄞 四", "n" * 20_000, "'\"; DROP TABLE kept; --"]
        for _ in range(2):
            backend.commit(Batch(kept=[StoredDocument(f"\0{text[:9]}", text, text) for text in texts]))
        backend, opened = self.reopened(backend)
        assert opened.kept == {f"\0{text[:9]}": {text: text} for text in texts}
        backend.commit(Batch(kept=[StoredDocument(f"\0{text[:9]}", text, None) for text in texts]))
        backend, opened = self.reopened(backend)
        assert opened.kept == {}
        backend.close()

    def test_any_text_comes_back_unchanged(self, backend: Backend) -> None:
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        texts = ["", "\0", "\x1f\x7f", "\u2028", "𝄞 四", "'\"; DROP TABLE records; --", "x" * 300_000]
        rows = [writer.created("a"), *(writer.message("a", text) for text in texts)]
        backend.commit(Batch(rows))
        assert contents(backend.rows("a", 0, HISTORY)) == texts
        backend, opened = self.reopened(backend)
        assert list(opened.rows) == rows
        backend.close()

    # -- reading ----------------------------------------------------------------------------------------------------

    def test_a_history_is_read_from_a_row_on_and_without_other_kinds(self, backend: Backend) -> None:
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        rows = conversation(writer, "a")
        backend.commit(Batch(rows + conversation(writer, "b")))
        assert backend.rows("a", 0, HISTORY) == [row for row in rows if row.kind in HISTORY]
        begins_at = rows[10].seq
        assert backend.rows("a", begins_at, HISTORY) == [row for row in rows[10:] if row.kind in HISTORY]
        assert backend.rows("no-such", 0, HISTORY) == []
        backend.close()

    def search(self, backend: Backend, words: str, *keys: str, **criteria: Any) -> list[str]:
        """Return the texts of all messages that the index has for some words, newest first, two at a time."""
        texts: list[str] = []
        before: int | None = None
        while True:
            found = Criteria(SearchQuery.parse(words), **criteria)
            hits, before, behind = backend.search(found, keys or None, before, 2)
            assert not behind
            texts += [decode_messages(hit.row)[hit.part][0].content for hit in hits]
            if before is None:
                return texts

    def test_messages_are_found_by_all_of_their_words(self, backend: Backend) -> None:
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        texts = ["A Needle", "hay", "a nEEdle, too", "50 \\% _", "四川 needles", "hay"]
        backend.commit(Batch([writer.created("a"), *(writer.message("a", text) for text in texts)]))
        backend.commit(Batch([writer.created("b"), writer.message("b", "another needle")]))
        backend.commit(Batch([writer.created("c"), writer.message("c", "deleted needle"), writer.deleted("c")]))
        assert self.search(backend, "needle") == ["another needle", texts[2], texts[0]]
        assert self.search(backend, "needle", "a") == [texts[2], texts[0]]
        assert self.search(backend, "needle", "b", "c") == ["another needle"]
        assert self.search(backend, "need*", "a") == [texts[4], texts[2], texts[0]]
        assert self.search(backend, "need* a", "a", "b") == [texts[2], texts[0]]
        assert self.search(backend, '"a need"*', "a", "b", "c") == [texts[2], texts[0]]
        assert self.search(backend, "need*", "a", role="tool") == []
        assert self.search(backend, "too needle") == [texts[2]]
        assert self.search(backend, "四川") == [texts[4]]
        assert self.search(backend, "needle", role="tool") == []
        assert len(self.search(backend, "needle", role="user")) == 3
        assert self.search(backend, "needle", since=2.0) == []
        while backend.tidy():
            pass
        assert self.search(backend, "needle") == ["another needle", texts[2], texts[0]]
        backend, _ = self.reopened(backend)
        assert self.search(backend, "needle") == ["another needle", texts[2], texts[0]]
        backend.close()

    def test_the_index_follows_replaced_histories(self, backend: Backend) -> None:
        """Only the last one is found, whether it is indexed with the one before it or later."""
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        backend.commit(Batch([writer.created("a"), writer.message("a", "first word"), writer.message("a", "an apple")]))
        for text in ("second word", "third word"):
            new = SizedMessages.of([Message(role="user", content=text), Message(role="tool", content="a pear")])
            backend.commit(Batch([writer.row("a", HistoryReplaced(new), "history.replaced")]))
            if text == "second word":
                assert self.search(backend, "word") == [text]
        backend.commit(Batch([writer.message("a", "more of it")]))
        assert self.search(backend, "word") == ["third word"]
        assert self.search(backend, "pear", role="tool") == ["a pear"]
        assert self.search(backend, "pear", role="user") == []
        assert self.search(backend, "apple") == []
        assert self.search(backend, "more") == ["more of it"]
        backend.close()

    def test_many_messages_are_indexed_while_nobody_searches(self, backend: Backend) -> None:
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        backend.commit(Batch([writer.created("a"), *(writer.message("a", f"number n{n}") for n in range(1_500))]))
        while backend.tidy():
            pass
        assert self.search(backend, "n1499") == ["number n1499"]
        assert self.search(backend, "n7") == ["number n7"]
        assert len(self.search(backend, "number")) == 1_500
        backend.close()

    @pytest.mark.parametrize("key", ["a", None])
    def test_events_are_read_after_any_number(self, backend: Backend, key: str | None) -> None:
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        rows = [writer.created("a"), writer.created("b")]
        for _ in range(9):
            rows += [writer.token("a"), writer.silent("b"), writer.row("b", StateAnnounced(), "token", "token")]
        backend.commit(Batch(rows))
        wanted = [row for row in rows if row.events and row.session in (key or "ab")]
        for after in range(max(row.position for row in rows) + 2):
            found = backend.events(key, after, MOST)
            assert found == [row for row in wanted if (row.number if key else row.position) > after]
        backend.close()

    def test_events_stop_after_some_bytes(self, backend: Backend) -> None:
        """A reader that is far behind does not take all events at once. At least one row is returned."""
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        rows = [writer.created("a"), *(writer.message("a", "x" * 1_000) for _ in range(20))]
        backend.commit(Batch(rows))
        found = backend.events("a", 0, 1)
        assert found == rows[:1]
        some = backend.events("a", 1, 4_500)
        assert some is not None
        assert rows[1:4] == some[:3]
        assert len(some) < 10
        backend.close()

    def test_the_last_number_of_an_epoch_is_known(self, backend: Backend) -> None:
        """S11: a cursor resumes exactly up to this number, and is stale beyond it."""
        self.only_if_kept(backend)
        writer, epochs = Writer(self.opened), [self.opened.epoch]
        expected = []
        for turn in range(3):
            backend.commit(Batch([writer.created(f"{turn}"), *(writer.token("0") for _ in range(turn + 1))]))
            expected.append((writer.numbers["0"], writer.position))
            assert self.last(backend, epochs[-1]) == expected[-1]
            backend, opened = self.reopened(backend)
            epochs.append(opened.epoch)
        assert [self.last(backend, epoch) for epoch in epochs] == [*expected, expected[-1]]
        assert backend.last_of(epochs[0], "2") == 0
        backend.close()

    @staticmethod
    def last(backend: Backend, epoch: str) -> tuple[int | None, int | None]:
        return backend.last_of(epoch, "0"), backend.last_of(epoch, None)

    # -- deleting ---------------------------------------------------------------------------------------------------

    def test_a_deleted_session_is_gone_but_for_its_last_event(self, backend: Backend) -> None:
        """S2: its messages are deleted. Readers of all events still see that it was."""
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        backend.commit(Batch(conversation(writer, "a", 2), heads=[writer.head("a")]))
        before = writer.position
        backend.commit(Batch([writer.created("b"), last := writer.deleted("a"), writer.message("b")]))
        for _ in range(2):
            assert backend.rows("a", 0, [*HISTORY, DELETED]) == []
            assert backend.events("a", 0, MOST) in (None, [])
            events = backend.events(None, before, MOST)
            assert events is not None
            assert [row.kind for row in events] == ["session.created", DELETED, "message.added"]
            assert events[1] == last
            assert backend.events(None, 0, MOST) is None, "a gap must not be silent"
            backend, opened = self.reopened(backend)
            assert list(opened.heads) == []
            assert {row.session for row in opened.rows} == {"b"}
            assert opened.seq == writer.seq
        backend.close()

    def test_a_session_that_is_created_and_deleted_at_once_is_gone(self, backend: Backend) -> None:
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        backend.commit(Batch([writer.created("a"), writer.message("a"), writer.deleted("a")], heads=[writer.head("a")]))
        backend, opened = self.reopened(backend)
        assert (list(opened.heads), list(opened.rows)) == ([], [])
        assert (opened.seq, opened.position) == (writer.seq, writer.position)
        backend.close()

    # -- maintenance ------------------------------------------------------------------------------------------------

    def test_maintenance_changes_nothing_that_can_be_read(self, backend: Backend) -> None:
        self.only_if_kept(backend)
        writer = Writer(self.opened)
        rows: list[Row] = []
        for number in range(60):
            more = conversation(writer, f"s{number}", 2)
            rows += more
            backend.commit(Batch(more))
            backend.tidy()
        while backend.tidy():
            pass
        assert backend.events(None, 0, MOST) == [row for row in rows if row.events]
        backend, opened = self.reopened(backend)
        assert list(opened.rows) == rows
        backend.close()

    def only_if_kept(self, backend: Backend) -> None:
        """Skip a test of what a backend keeps, for one that keeps nothing."""
        if not self.keeps:
            backend.close()
            pytest.skip("the backend keeps nothing")
