"""What a search in 1,000,000 messages costs, the size of its index, and what the index costs an accepted message.

Run by `scripts/bench search [--smoke] [--json FILE]`. The messages have about 300 characters of words that are as
frequent as in a language (Zipf's law), and are spread over sessions of 100. They are in the file of sessions and not in
memory, as after a start. Aims: 50 ms for 95 of 100 searches, an index of 0.6 times the text, and 1.05 times the time of
an accepted message without the index.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from itertools import accumulate
from pathlib import Path

from cfs.wire import Message
from cfs_server.domain.changes import MessageAdded
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.words import Criteria, SearchQuery
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.journal.journal import Journal
from cfs_server.journal.sqlite import SqliteBackend
from cfs_server.sessions.store import SessionStore

SEARCH_MS, INDEX_RATIO, ACCEPT_RATIO = 50.0, 0.6, 1.05
VOCABULARY = 50_000
SESSION = 100


class Texts:
    """Makes messages of words and of Chinese characters, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        letters = random.Random(7)
        self.words = [
            "".join(letters.choices("etaoinshrdlucmfwypvbgk", k=letters.choice((2, 3, 4, 5, 5, 6, 7, 8, 9))))
            for _ in range(VOCABULARY)
        ]
        self._weights = list(accumulate(1 / (rank + 2) for rank in range(VOCABULARY)))

    def message(self) -> str:
        """Return about 300 characters."""
        rng = self._rng
        words = rng.choices(self.words, cum_weights=self._weights, k=52)
        if rng.random() < 0.02:
            words.append("".join(chr(0x4E00 + int(rng.paretovariate(1.1) * 3) % 4000) for _ in range(12)))
        return " ".join(words)

    def queries(self, count: int) -> dict[str, list[str]]:
        """Return searches of several kinds."""
        rng, words = random.Random(2), self.words

        def rare() -> str:
            return words[rng.randrange(1_000, VOCABULARY)]

        def common() -> str:
            return words[rng.randrange(10)]

        return {
            "a rare word": [rare() for _ in range(count)],
            "a common word": [common() for _ in range(count)],
            "three words": [f"{common()} {common()} {words[rng.randrange(500)]}" for _ in range(count)],
            "a phrase": [f'"{common()} {common()}"' for _ in range(count)],
            "a beginning": [f"{rare()[:4]}*" for _ in range(count)],
            "two Chinese characters": [
                f"{chr(0x4E03 + rng.randrange(6))}{chr(0x4E03 + rng.randrange(6))}" for _ in range(count)
            ],
            "no match": [f"{common()} qqqq{rng.randrange(1000)}" for _ in range(count)],
        }


async def fill(store: SessionStore, journal: Journal, texts: Texts, messages: int) -> int:
    """Store messages and return the bytes of their text."""
    size = 0
    for number in range(max(1, messages // SESSION)):
        session = store.create(f"s{number}", None, SizedMessages())
        for _ in range(SESSION):
            content = texts.message()
            size += len(content.encode())
            session.apply(MessageAdded(Message(role="tool", content=content), "t"))
        if number % 20 == 0:
            await journal.durable()
            session.history.unload()
    await journal.durable()
    for session in store:
        session.history.unload()
    return size


def index_bytes(backend: SqliteBackend) -> int:
    """Return the bytes of the index: blocks of FTS5, and the table of its documents."""
    connection = backend.connection
    (blocks,) = connection.execute("SELECT sum(length(block)) FROM search_words_data").fetchone()
    (terms,) = connection.execute("SELECT sum(length(term) + 8) FROM search_words_idx").fetchone()
    (documents,) = connection.execute("SELECT count(*) FROM search_documents").fetchone()
    return int(blocks + terms + 12 * documents)


async def measure(path: Path, messages: int, rounds: int) -> dict[str, object]:
    """Fill a file, search in it, and return the figures."""
    engine, texts = ScriptedEngine(), Texts(1)
    backend = SqliteBackend(path, fast=True)
    journal = Journal(backend)
    await engine.start()
    await journal.open()
    took: dict[str, list[float]] = {}
    async with SessionStore(engine, journal=journal) as store:
        began = time.perf_counter()
        text = await fill(store, journal, texts, messages)
        while await journal.call(lambda _: backend.tidy()):
            pass
        built = time.perf_counter() - began
        index = await journal.call(lambda _: index_bytes(backend))
        everything = list(store)
        for kind, queries in texts.queries(rounds).items():
            took[kind] = []
            for words in queries:
                began = time.perf_counter()
                found = await store.search(everything, Criteria(SearchQuery.parse(words)), 20, "bench")
                took[kind].append((time.perf_counter() - began) * 1000)
                assert not found.indexing
                assert kind != "no match" or not found.matches
    await journal.close()
    await engine.stop()
    every = sorted(value for values in took.values() for value in values)
    return {
        "messages": messages,
        "seconds to store and index": round(built, 1),
        "index / text": round(index / text, 3),
        "text bytes": text,
        "p95 ms": round(every[int(len(every) * 0.95)], 1),
        "kinds": {
            kind: (round(statistics.median(values), 1), round(sorted(values)[int(len(values) * 0.95)], 1))
            for kind, values in took.items()
        },
    }


class WithoutIndex(SqliteBackend):
    """The same file without an index of words, for the comparison."""

    @property
    def _can_index(self) -> bool:
        return False


async def accept(folder: Path, messages: int, accepts: int) -> dict[str, float]:
    """Return the median and mean time in ms of an accepted message with and without the index, measured in turn."""
    engine, texts = ScriptedEngine(), Texts(3)
    await engine.start()
    times: dict[str, list[float]] = {"with": [], "without": []}
    journals = {
        "with": Journal(SqliteBackend(folder / "with.db")),
        "without": Journal(WithoutIndex(folder / "without.db")),
    }
    for journal in journals.values():
        await journal.open()
    async with (
        SessionStore(engine, journal=journals["with"]) as one,
        SessionStore(engine, journal=journals["without"]) as other,
    ):
        stores = {"with": one, "without": other}
        for name, store in stores.items():
            await fill(store, journals[name], Texts(4), messages)
            while await journals[name].call(lambda backend: backend.tidy()):
                pass
            store.create("s", None, SizedMessages())
        for _ in range(accepts):
            content = texts.message()
            for name, store in random.sample(sorted(stores.items()), 2):
                began = time.perf_counter()
                store.get("s").apply(MessageAdded(Message(role="tool", content=content), "t"))
                await journals[name].durable()
                times[name].append((time.perf_counter() - began) * 1000)
    for journal in journals.values():
        await journal.close()
    await engine.stop()
    return {name: statistics.median(values) for name, values in times.items()} | {
        f"{name}, mean": statistics.mean(values) for name, values in times.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few messages")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    messages = 2_000 if options.smoke else options.messages
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        found = asyncio.run(measure(Path(folder, "sessions.db"), messages, 5 if options.smoke else 40))
        accepted = asyncio.run(accept(Path(folder), min(messages, 20_000), 100 if options.smoke else 3_000))
    print(f"| search in {messages:,} messages | median ms | p95 ms |\n|---|--:|--:|")
    kinds = found["kinds"]
    assert isinstance(kinds, dict)
    for kind, (median, high) in kinds.items():
        print(f"| {kind} | {median} | {high} |")
    print(f"| all | | {found['p95 ms']} |")
    print(
        f"\nIndex: {found['index / text']} of the text. Stored and indexed in {found['seconds to store and index']} s."
    )
    ratio = accepted["with"] / accepted["without"]
    print(f"Accepting a message: {accepted['with']:.2f} ms, {accepted['without']:.2f} ms without: {ratio:.3f}")
    print(f"In the mean: {accepted['with, mean']:.2f} ms, {accepted['without, mean']:.2f} ms without")
    print(f"Aims: p95 {SEARCH_MS} ms, index {INDEX_RATIO}, accepting {ACCEPT_RATIO}")
    if options.json:
        options.json.write_text(json.dumps(found | {"accepting": accepted}))


if __name__ == "__main__":
    main()
