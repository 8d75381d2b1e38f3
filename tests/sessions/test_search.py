"""Search: words of texts, and the same results from the index, from memory and from a comparison of all texts (S15)."""

import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfs.errors import CfsError, InvalidParameters
from cfs.wire import Message
from cfs_server.domain.changes import MessageAdded
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.words import Criteria, SearchQuery, Term, words_of
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.journal.journal import Backend, Hits, Journal
from cfs_server.journal.memory import MemoryBackend
from cfs_server.journal.sqlite import SqliteBackend
from cfs_server.journal.sqlite_index import expression
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore

VOCABULARY = [
    "fox",
    "Foxes",
    "dog",
    "四川",
    "四",
    "盆地",
    "étude",
    "ÉTUDE",
    "rain",
    "read_file",
    "x86-64",
    "🦊",
    "Straße",
]
QUERIES = [
    *(
        "fox",
        "fo*",
        "dog rain",
        '"dog rain"',
        "四川",
        "盆",
        "川盆",
        "ETUDE",
        "étude",
        "file",
        '"read file"',
        "64",
        "🦊",
    ),
    *("strasse", '"rain do"*', "nothing"),
]


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(VOCABULARY, k=rng.randrange(1, 12)))


@given(st.text(min_size=1, max_size=200))
@settings(max_examples=settings().max_examples * 5)
def test_any_text_is_a_query_or_refused(words: str) -> None:
    """FTS5 takes what is read, and a text is found by all of its words."""
    try:
        query = SearchQuery.parse(words)
    except InvalidParameters:
        return
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE t USING fts5(text, tokenize='ascii')")
        connection.execute("INSERT INTO t VALUES (?)", (" ".join(words_of(words)),))
        (count,) = connection.execute(
            "SELECT count(*) FROM t WHERE t MATCH ?", (expression(Criteria(query), None),)
        ).fetchone()
    assert count == 1
    excerpt = query.match(words)
    assert excerpt is not None
    assert excerpt.ranges
    assert all(0 <= begin < end <= len(excerpt.text) for begin, end in excerpt.ranges)


@given(st.text(max_size=300), st.text(max_size=300))
def test_a_match_is_marked_where_it_is(before: str, after: str) -> None:
    excerpt = SearchQuery.parse('"black swan" 四川').match(f"{before} Black\nSWAN 四川 {after}")
    assert excerpt is not None
    assert {"Black\nSWAN", "四川"} <= {excerpt.text[begin:end] for begin, end in excerpt.ranges}
    assert len(excerpt.text) < 60 + 140 + 30


def test_queries_are_words_phrases_and_beginnings() -> None:
    read = {
        "Fox  dog": [Term(("fox",)), Term(("dog",))],
        '"the fox" dog*': [Term(("the", "fox")), Term(("dog",), prefix=True)],
        "read_file": [Term(("read", "file"))],
        "四川*": [Term(("四", "川"), prefix=True)],
        'an "open quote': [Term(("an",)), Term(("open",)), Term(("quote",))],
        "fox fox": [Term(("fox",))],
        "NOT (a:b) ^c": [Term(("not",)), Term(("a", "b")), Term(("c",))],
    }
    for words, terms in read.items():
        assert list(SearchQuery.parse(words).terms) == terms, words


class CountingBackend(SqliteBackend):
    """Counts what searches read."""

    hits = calls = 0

    def search(self, criteria: Criteria, keys: Sequence[str] | None, before: int | None, max_hits: int) -> Hits:
        found = super().search(criteria, keys, before, max_hits)
        self.hits, self.calls = self.hits + len(found.hits), self.calls + 1
        return found


@asynccontextmanager
async def opened(backend: Backend) -> AsyncIterator[SessionStore]:
    engine, journal = ScriptedEngine(), Journal(backend)
    await engine.start()
    await journal.open()
    try:
        async with SessionStore(engine, journal=journal) as store:
            await store.restore(lambda _owner: store.account)
            yield store
    finally:
        await journal.close()
        await engine.stop()


async def find(
    store: SessionStore, words: str, sessions: Sequence[Session] | None = None
) -> list[tuple[str, int, str]]:
    found = await store.search(
        list(store) if sessions is None else sessions, Criteria(SearchQuery.parse(words)), 1_000, "me"
    )
    assert not found.indexing
    return sorted(
        (match.session.id, match.index, match.excerpt.text) for match in found.matches if match.message is not None
    )


def expected(store: SessionStore, words: str) -> list[tuple[str, int, str]]:
    query = SearchQuery.parse(words)
    return sorted(
        (session.id, index, excerpt.text)
        for session in store
        for index, message in enumerate(session.history.messages)
        if (excerpt := query.match(message.content)) is not None
    )


def change(rng: random.Random, store: SessionStore) -> None:
    """Make one random change."""
    names = [session.id for session in store]
    name = rng.choice(names) if names else "none"
    history = SizedMessages.of(
        [Message(role=rng.choice(["system", "tool"]), content=text(rng)) for _ in range(rng.randrange(4))]
    )
    with suppress(CfsError):
        match rng.randrange(16):
            case 0:
                store.create(f"s{rng.randrange(30)}", None, history)
            case 1:
                store.replace(name, history, "*")
            case 2:
                store.rename(name, f"r{rng.randrange(30)}")
            case 3:
                store.fork(name)
            case 4:
                store.delete(name)
            case _:
                store.get(name).apply(MessageAdded(Message(role="tool", content=text(rng)), "t"))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
async def test_changes_are_found_at_once_in_every_store(tmp_path: Path, seed: int) -> None:
    """Edits, deletions, renames and forks: the index has what there is, also after a restart."""
    async with AsyncExitStack() as stack:
        memory = await stack.enter_async_context(opened(MemoryBackend()))
        disk = await stack.enter_async_context(opened(SqliteBackend(tmp_path / "sessions.db")))
        matched: set[str] = set()
        stores = [(memory, random.Random(seed)), (disk, random.Random(seed))]
        for step in range(300):
            for store, rng in stores:
                change(rng, store)
            if step % 20 == 19:
                for words in QUERIES:
                    wanted = expected(memory, words)
                    assert await find(memory, words) == wanted
                    assert await find(disk, words) == wanted
                    matched |= {words} if wanted else set()
        wanted_by_query = {words: expected(memory, words) for words in QUERIES}
        assert {"fox", "四川", "étude"} <= matched
    async with opened(SqliteBackend(tmp_path / "sessions.db")) as disk:
        for words in QUERIES:
            assert await find(disk, words) == wanted_by_query[words]
        assert not any(session.history.loaded for session in disk if len(session.history))


@pytest.mark.parametrize("seed", range(3))
async def test_sessions_of_others_change_neither_results_nor_work(tmp_path: Path, seed: int) -> None:
    """G9: what a tenant finds, and how much the server reads for it, is the same whatever others have."""
    work = []
    for others in (0, 40):
        backend = CountingBackend(tmp_path / f"{others}.db")
        async with opened(backend) as store:
            rng, other = random.Random(seed), random.Random(seed + 1)
            own = []
            for number in range(5):
                own.append(store.create(f"own{number}"))
                for _ in range(20):
                    own[-1].apply(MessageAdded(Message(role="tool", content=text(rng)), "t"))
                for extra in range(others // 5):
                    session = store.create(f"other{number}-{extra}")
                    for _ in range(20):
                        session.apply(MessageAdded(Message(role="tool", content=text(other)), "t"))
            extra_session = store.create("so that the own are never all")
            assert extra_session not in own
            results = []
            for words in QUERIES:
                found = await store.search(own, Criteria(SearchQuery.parse(words)), 10, "me")
                results.append(([(match.session.id, match.index) for match in found.matches], found.more))
            work.append((results, backend.hits, backend.calls))
    assert work[0] == work[1]


async def test_a_search_reads_no_more_than_the_newest_messages(tmp_path: Path) -> None:
    """S15: the best of the 256 newest are chosen, so what a search reads does not grow with the store."""
    backend = CountingBackend(tmp_path / "sessions.db")
    async with opened(backend) as store:
        sessions = [store.create(f"s{number}") for number in range(900)]
        for session in [*sessions, *sessions]:
            session.apply(MessageAdded(Message(role="tool", content="fox"), "t"))
        some = sessions[:850]  # more than one query of the index names
        newest = [(session.id, 1) for session in reversed(some[-20:])]
        assert store.journal is not None
        await store.journal.durable()
        while await store.journal.call(lambda opened: opened.tidy()):
            pass
        for readable in (sessions, some):
            backend.hits = backend.calls = 0
            result = await store.search(readable, Criteria(SearchQuery.parse("fox")), 20, "me")
            assert result.more
            assert (backend.hits, backend.calls) == (256, 1)
        assert [(match.session.id, match.index) for match in result.matches] == newest
