"""What a search in 100,000 messages costs, in memory and in the file of sessions (aim: at most 200 ms).

Run by `scripts/bench search [--smoke] [--json FILE]`. The messages have about 300 characters and are spread over 1,000
sessions. In the file no history is in memory, as after a start. Rare words need a look at every message.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from cfs.wire import Message
from cfs_server.domain.changes import MessageAdded
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.journal.journal import Backend, Journal
from cfs_server.journal.memory import MemoryBackend
from cfs_server.journal.sqlite import SqliteBackend
from cfs_server.sessions.search import search
from cfs_server.sessions.store import SessionStore

BAR_MS = 200.0
ROUNDS = 20
WORDS = "the quick brown fox jumps over a lazy dog while rain falls on 四川 and été begins again".split()  # noqa: SIM905
QUERIES = {
    "rare words": "Needle in the hay",
    "no match": "not there at all",
    "Chinese": "四川盆地",
    "common word": "fox",
}


async def measure(backend: Backend, messages: int) -> dict[str, float]:
    """Return the median time of each search in milliseconds."""
    rng, engine, journal = random.Random(1), ScriptedEngine(), Journal(backend)
    await engine.start()
    await journal.open()
    async with SessionStore(engine, journal=journal) as store:
        for number in range(max(1, messages // 100)):
            session = store.create(f"s{number}", None, SizedMessages())
            for _ in range(100):
                session.apply(MessageAdded(Message(role="assistant", content=" ".join(rng.choices(WORDS, k=55))), "t"))
        session.apply(MessageAdded(Message(role="user", content="a NEEDLE in the hay, 四川盆地"), "t"))
        await journal.durable()
        if journal.durable_store:
            for each in store:
                each.history.unload()
        figures = {}
        for name, words in QUERIES.items():
            taken = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                found, _ = await search(list(store), journal, words, 20, "bench")
                taken.append((time.perf_counter() - began) * 1000)
            assert bool(found) == (name != "no match"), name
            figures[name] = statistics.median(taken)
    await journal.close()
    await engine.stop()
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few messages")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    messages = 2_000 if options.smoke else 100_000
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "in memory": asyncio.run(measure(MemoryBackend(), messages)),
            "in the file": asyncio.run(measure(SqliteBackend(Path(folder, "sessions.db"), fast=True), messages)),
        }
    print(f"| {messages:,} messages | {' | '.join(f'{name}, ms' for name in QUERIES)} | within the bar |")
    print(f"|---|{'---|' * len(QUERIES)}---|")
    for place, figures in found.items():
        cells = " | ".join(f"{value:.0f}" for value in figures.values())
        print(f"| {place} | {cells} | {'yes' if max(figures.values()) <= BAR_MS else '**no**'} |")
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
