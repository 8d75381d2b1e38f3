"""`--store-repair`: what can be read of a damaged file is kept, the file is set aside, and the store starts."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from cfs.wire import SettingsPatch
from cfs_server.engine.host.scripted import ScriptedEngine, echo
from cfs_server.journal.journal import Journal, StoreDamaged
from cfs_server.journal.salvage import salvage
from cfs_server.journal.sqlite import SqliteBackend, write_new
from cfs_server.journal.sqlite_file import check_file
from cfs_server.sessions.store import SessionStore
from tests.sessions.support import StoreHarness

Histories = dict[str, list[str]]
LONG = "a-long-message-" * 700  # on several pages


@asynccontextmanager
async def sessions_in(path: Path, *, repair: bool = False) -> AsyncIterator[StoreHarness]:
    """Open a store of sessions as a server does."""
    journal = Journal(SqliteBackend(path, repair=repair))
    await journal.open()
    engine = ScriptedEngine(echo)
    await engine.start()
    try:
        async with SessionStore(engine, journal=journal) as store:
            await store.restore(lambda _: store.account)
            yield StoreHarness(store, engine)
            await journal.durable()
    finally:
        await journal.close()


async def histories(d: StoreHarness) -> Histories:
    """Return all messages of all sessions."""
    found: Histories = {}
    for session in list(d.store):
        assert d.store.journal is not None
        messages = await d.store.journal.history(session.key, session.begins_at)
        found[session.id] = [f"{message.role}: {message.content}" for message, _ in messages]
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Histories]:
    """A store as a crash leaves it, and what was in it: long and short histories, trees, edits, work under way."""
    return asyncio.run(_crashed(tmp_path_factory.mktemp("source")))


@pytest.fixture
def crashed(tmp_path: Path, source: tuple[Path, Histories]) -> tuple[Path, Histories]:
    """Copy the store, for a test that damages it."""
    folder, expected = source
    shutil.copytree(folder, tmp_path / "crashed")
    return tmp_path / "crashed" / "sessions.db", expected


async def _crashed(folder: Path) -> tuple[Path, Histories]:
    path = folder / "source" / "sessions.db"
    async with sessions_in(path) as d:
        for number in range(20):
            for turn in range(1 + number % 4):
                d.say(f"s{number}", f"{number} {turn} {LONG if number % 5 == 0 else 'short'}")
            d.say(f"s{number}/child", f"child of {number}")
        for session in list(d.store):
            await d.settled(session.id)
        assert d.store.journal is not None
        d.store.journal.checkpoint(session.head() for session in list(d.store)[:30])
        await d.store.journal.durable()
        await d.store.journal.call(lambda backend: cast("SqliteBackend", backend)._checkpoint("TRUNCATE"))
        d.store.rename("s1", "renamed")
        d.store.replace("s2", "User: edited\nAssistant: yes\n", "*")
        d.store.delete("s4")
        await d.store.journal.durable()
        while await d.store.journal.call(lambda backend: backend.tidy()):
            pass  # the end of a deletion empties the log
        d.store.fork("s3", "fork")
        for number in range(10, 14):
            d.say(f"s{number}", f"{number} {LONG}")
            await d.settled(f"s{number}")
            await d.store.journal.durable()
        d.store.get("s5").change_settings(SettingsPatch(driver="agent"))
        d.say("s5", "waits for an agent")
        d.store.journal.keep("locks", "a", "1")
        await d.store.journal.durable()
        expected = await histories(d)
        shutil.copytree(path.parent, folder / "crashed")
    return folder / "crashed", expected


async def test_everything_is_read_of_a_file_that_is_not_damaged(
    tmp_path: Path, crashed: tuple[Path, Histories]
) -> None:
    """Page by page, without SQLite: heads, rows of several pages, the log, documents; deleted sessions are not."""
    path, expected = crashed
    found = salvage(path)
    assert found.report == [f"{len(expected)} sessions are complete, 0 are not, and 0 are lost"]
    write_new(tmp_path / "new.db", found.batches)
    async with sessions_in(tmp_path / "new.db") as d:
        assert await histories(d) == expected
        assert d.store.journal is not None
        assert d.store.journal.kept("locks") == {"a": "1"}
        d.store.check_integrity()
    assert check_file(tmp_path / "new.db") == []


@pytest.mark.parametrize("part", ["sessions.db", "sessions.db-wal"])
async def test_what_can_be_read_of_a_damaged_file_is_kept(
    tmp_path: Path, crashed: tuple[Path, Histories], part: str
) -> None:
    """Nothing is invented, most is kept, the damaged file stays as it was, and the next start is an ordinary one."""
    path, expected = crashed
    chance = random.Random(3)
    kept = complete = damaged = 0
    for attempt in range(5):
        copy = tmp_path / f"copy{attempt}" / "sessions.db"
        shutil.copytree(path.parent, copy.parent)
        data = bytearray((copy.parent / part).read_bytes())
        for _ in range(3):
            at = chance.randrange(len(data))
            data[at : at + 300] = chance.randbytes(len(data[at : at + 300]))
        (copy.parent / part).write_bytes(data)
        async with sessions_in(copy, repair=True) as d:
            d.store.check_integrity()
            assert d.store.journal is not None
            if not d.store.journal.opened.repairs:
                continue  # unused space was hit
            damaged += 1
            assert "was damaged" in d.store.journal.opened.repairs[0]
            for name, messages in (await histories(d)).items():
                if not name.startswith("recovered-"):
                    assert set(messages) <= set(expected[name])
                    complete += messages == expected[name]
                kept += len(messages)
        (aside,) = copy.parent.glob("sessions.db.damaged-*[0-9]")
        assert aside.stat().st_mode & 0o777 == 0o600
        async with sessions_in(copy) as d:
            assert d.store.journal is not None
            assert list(d.store.journal.opened.repairs) == []
    assert damaged >= 2
    assert complete >= damaged * len(expected) * 0.7
    assert kept >= damaged * sum(map(len, expected.values())) * 0.7


async def test_a_file_without_its_first_page_is_read(tmp_path: Path, crashed: tuple[Path, Histories]) -> None:
    """SQLite takes it for no database at all."""
    path, expected = crashed
    with path.open("r+b") as file:
        file.write(bytes(4096))
    async with sessions_in(path, repair=True) as d:
        assert await histories(d) == expected
    assert len(list(path.parent.glob("*.damaged-*"))) == 2


async def test_a_crash_during_the_repair_loses_nothing(tmp_path: Path, crashed: tuple[Path, Histories]) -> None:
    """Whether the new file is incomplete, complete, or not yet in its place."""
    path, expected = crashed
    damaged = path.read_bytes()
    with path.open("r+b") as file:
        file.write(bytes(4096))
    salvaged = path.with_name("sessions.db.salvaged")
    write_new(salvaged, salvage(path).batches)
    salvaged.rename(salvaged.with_name("sessions.db.salvaged.part"))
    async with sessions_in(path, repair=True) as d:  # the incomplete one is written again
        assert await histories(d) == expected
    path.rename(salvaged)  # complete, but the damaged file is in its place still
    path.write_bytes(bytes(4096) + damaged[4096:])
    async with sessions_in(path) as d:
        assert await histories(d) == expected
    path.rename(salvaged)  # the damaged file is not in its place any more
    async with sessions_in(path) as d:
        assert await histories(d) == expected


async def test_a_damaged_file_is_refused_and_not_changed_without_the_option(crashed: tuple[Path, Histories]) -> None:
    path, _ = crashed
    with path.open("r+b") as file:
        file.write(bytes(4096))
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    with pytest.raises(StoreDamaged, match=r"is damaged: .*--store-repair.*Nothing has been removed"):
        SqliteBackend(path).open()
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before
