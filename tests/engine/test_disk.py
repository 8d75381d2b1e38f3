"""Disk as the third place for state: what comes back is what was computed, and whatever is wrong is refused."""

import os
import random
import signal
import stat
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cfs_server.engine.kvcache.disk import DiskTier
from cfs_server.engine.kvcache.state_archive import StateArchive
from cfs_server.engine.kvcache.state_folder import NAME, Folder, FolderRefused, SavedState
from tests.engine.support import ask, running, until
from tests.engine.test_prefix_cache import ARCHITECTURES, ROUNDING, CacheHarness, Talk, words

Make = Callable[..., "DiskCacheHarness"]


class DiskCacheHarness(CacheHarness):
    """Such a cache with a folder; a turn waits for the disk as the scheduler lets it."""

    def __init__(
        self,
        path: Path,
        folder: Path,
        limit: int = 1 << 30,
        mark: str = "this model",
        archiving: Sequence[int] = (),
        **more: Any,
    ) -> None:
        self.woken = threading.Semaphore(0)
        self.archive = StateArchive(Folder(folder, mark), self.woken.release, *archiving)
        self.tier = DiskTier(self.archive, limit)
        super().__init__(path, disk=self.tier, **more)

    def settle(self) -> None:
        """Wait until the thread has done everything, and take the results in."""
        assert self.archive.drain(60)
        self.cache.collect()

    def fetch(self, tokens: list[int], owner: str = "") -> bool:
        """Let a turn wait for the disk; whether it had to."""
        waited = False
        for _ in range(3):
            if not self.cache.fetch(owner, array("i", tokens)):
                return waited
            waited = True
            self.settle()
            assert self.cache.check_integrity() == []
        return waited

    def to_disk(self) -> None:
        """Leave state on disk only."""
        self.settle()
        while self.cache.evict_one():
            pass
        limit, self.cache.memory.limit = self.cache.memory.limit, -1
        for node in sorted(self.cache._stored, key=lambda node: -node.end):
            self.cache._discard(node)
        self.cache.memory.limit = limit
        assert self.cache.memory.used == 0
        assert self.cache.check_integrity() == []

    def again(self, key: str, tokens: list[int], owner: str = "") -> tuple[Any, int]:
        """Run a turn that may find its state on disk; returns the logits and how much was evaluated."""
        self.fetch(tokens, owner)
        before = self.evaluated
        return self.turn(key, tokens, owner), self.evaluated - before

    def files(self) -> list[Path]:
        """List the state files."""
        self.settle()
        return sorted((self.archive._folder.path).glob("*.state"))


@pytest.fixture
def make(tiny: Path, tmp_path: Path) -> Iterator[Make]:
    """Make harnesses on one folder, one after the other."""
    harnesses: list[DiskCacheHarness] = []

    def new(path: Path = tiny, **more: Any) -> DiskCacheHarness:
        for harness in harnesses:
            harness.tier.close()
        harnesses[:] = [DiskCacheHarness(path, tmp_path, **more)]
        return harnesses[0]

    yield new
    for harness in harnesses:
        harness.tier.close()


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("restart", [False, True], ids=["the same worker", "the next one"])
def test_state_from_disk_is_the_computed_state(
    make: Make, request: pytest.FixtureRequest, kind: str, restart: bool
) -> None:
    """For each architecture: the logits of before, and nothing but the last token is evaluated again."""
    path, more = request.getfixturevalue(kind.split(",")[0]), ARCHITECTURES[kind]
    harness = make(path, **more)
    whole = words((1, 90))
    first = harness.turn("s", whole[:-1])
    expected, _ = harness.again("s", whole)
    harness = make(path, **more) if restart else harness
    harness.to_disk()
    logits, evaluated = harness.again("fork", whole)
    assert evaluated == 1
    assert np.allclose(logits, expected, atol=ROUNDING)
    assert first.shape == logits.shape
    for key in ("s", "fork"):
        harness.cache.forget(key)
    assert harness.files() == []
    assert harness.empty()


def test_forks_share_files_and_owners_do_not(make: Make) -> None:
    """What two sessions begin with is on disk once; another owner's is his own."""
    harness = make()
    shared = words((1, 60))
    harness.turn("a", shared + words((2, 10)))
    harness.turn("b", shared + words((3, 10)))
    assert len(harness.files()) == 3, "the first as one run, what both begin with, the second's own end"
    harness.to_disk()
    assert harness.again("c", shared + words((3, 10), (4, 2)))[1] == 2
    assert not harness.fetch(shared + words((2, 10)), "somebody")
    assert harness.again("d", shared + words((2, 10)), "somebody")[1] == 70
    heads = [harness.archive._folder.read(path.stem)[0] for path in harness.files()]
    assert {head.owner for head in heads} == {"", "somebody"}


@pytest.mark.parametrize("restart", [False, True], ids=["the same worker", "the next one"])
def test_a_deleted_session_leaves_no_file_that_others_need(make: Make, restart: bool) -> None:
    """Though another begins as it did: no token of its own is on disk, and the other is as warm as before."""
    harness = make()
    shared, own = words((1, 60)), words((2, 10))
    harness.turn("a", shared + own)
    harness.turn("b", shared + words((3, 10)))
    if restart:
        harness = make()
    harness.cache.forget("a")
    heads = [harness.archive._folder.read(path.stem)[0] for path in harness.files()]
    assert sorted(len(head.tokens) for head in heads) == [60, 70]
    assert all(head.tokens[60:].tolist() in ([], words((3, 10))) for head in heads)
    harness.to_disk()
    assert harness.again("b", shared + words((3, 10), (4, 2)))[1] == 2


def test_what_does_not_fit_the_queue_is_written_later(make: Make) -> None:
    """The disk is slower than the turns: one file may wait, and the others do so where they are."""
    harness = make(archiving=(1, 1))
    for number in range(4):
        harness.turn(f"s{number}", words((number, 50)))
    assert len(harness.tier.books) < 4
    for _ in range(4):
        harness.settle()
    assert len(harness.files()) == len(harness.tier.books) == 4
    assert harness.cache.check_integrity() == []


def test_nobody_else_may_read_the_files(make: Make, tmp_path: Path) -> None:
    """Folder and files are the server's own, also where the folder was open to all."""
    (tmp_path / NAME).mkdir(mode=0o755)
    harness = make()
    harness.turn("s", words((1, 30)))
    [file] = harness.files()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_two_workers_do_not_share_a_folder(make: Make, tmp_path: Path) -> None:
    """The second is told."""
    make()
    with pytest.raises(FolderRefused, match="another server uses"):
        Folder(tmp_path, "x")
    (tmp_path / "file").touch()
    with pytest.raises(FolderRefused):
        Folder(tmp_path / "file", "x")


@pytest.mark.parametrize("damage", ["head", "tokens", "state", "cut", "longer", "empty", "open to others", "a link"])
def test_what_is_wrong_is_refused_and_removed(make: Make, tmp_path: Path, damage: str) -> None:
    """By the next worker at its start, or when it is read; the turn computes what it needs."""
    harness = make()
    whole = words((1, 50))
    fresh = harness.turn("s", whole)
    [file] = harness.files()
    harness.tier.close()
    data = bytearray(file.read_bytes())
    place = {"head": 30, "tokens": len(data) - harness.cache.memory.used - 60, "state": -5}.get(damage)
    if place is not None:
        data[place] ^= 1
    data = {"cut": data[:-10], "longer": data + b"x", "empty": bytearray()}.get(damage, data)
    if damage == "a link":
        other = tmp_path / "other"
        file.rename(other)
        file.symlink_to(other)
    else:
        file.write_bytes(data)
    if damage == "open to others":
        file.chmod(0o644)
    StateArchive(Folder(tmp_path, "this model")).close()
    harness = make()
    assert bool(harness.files()) == (damage == "state"), "what is behind the head is looked at when it is needed"
    logits, evaluated = harness.again("s", whole)
    assert evaluated == 50
    assert np.array_equal(logits, fresh)
    assert len(harness.files()) == 1


def test_files_of_another_model_or_setting_are_removed_and_strangers_left(make: Make, tmp_path: Path) -> None:
    """What has not the name of a state file is not ours."""
    harness = make(mark="another model")
    harness.turn("s", words((1, 50)))
    assert len(harness.files()) == 1
    (tmp_path / NAME / "notes.txt").write_text("mine")
    (tmp_path / NAME / "0.part").write_text("unfinished")
    harness = make()
    assert harness.files() == []
    assert harness.archive.refused == 2
    assert not (tmp_path / NAME / "0.part").exists()
    assert (tmp_path / NAME / "notes.txt").exists()


def test_a_file_with_other_tokens_is_not_believed(make: Make) -> None:
    """Even when its checksums are right: the tokens of the hit are compared with those that it names."""
    harness = make()
    harness.turn("s", words((1, 50)))
    harness.turn("t", words((2, 50)))
    one, two = harness.files()
    harness.to_disk()
    content = one.read_bytes(), two.read_bytes()
    two.write_bytes(content[0])
    one.write_bytes(content[1])
    assert harness.again("s", words((1, 50)))[1] == 50
    assert harness.again("t", words((2, 50)))[1] == 50
    assert harness.tier.problems == 2


def test_the_limit_is_kept_by_what_was_used_longest_ago(make: Make) -> None:
    """In the books and in the folder, also by the next worker with a lower one."""
    harness = make()
    for number in range(6):
        harness.turn(f"s{number}", words((number, 40)))
    size = sum(file.stat().st_size for file in harness.files()) // 6
    harness.to_disk()
    harness.again("s0", words((0, 40)))
    harness = make(limit=size * 4)
    harness.settle()
    assert 0 < sum(file.stat().st_size for file in harness.files()) <= size * 4
    assert harness.cache.check_integrity() == []
    harness.to_disk()
    assert harness.again("s0", words((0, 40)))[1] == 1
    assert harness.again("s1", words((1, 40)))[1] == 40
    assert sum(file.stat().st_size for file in harness.files()) <= size * 4


def test_state_larger_than_memory_is_not_copied(make: Make) -> None:
    """It would drive out everything else, and itself; what it begins with and others share is copied if that fits."""
    harness = make(memory=60_000)
    small, shared, large = words((1, 20)), words((2, 30)), words((2, 30), (3, 300))
    harness.turn("small", small)
    harness.turn("shared", [*shared, *words((4, 3))])
    before = harness.cache.memory.used
    harness.turn("large", large)
    assert before > 0
    assert harness.cache.memory.used == before
    assert harness.cache.pool.state_bytes(len(large)) > 60_000
    while harness.cache.evict_one():
        pass
    assert harness.cache.check_integrity() == []
    assert harness.again("small", small)[1] == 1
    assert harness.again("large", large)[1] == 300


def test_a_disk_that_fails_costs_only_the_computation(make: Make) -> None:
    """A file that cannot be written is given up."""
    harness = make()
    folder = harness.archive._folder.path
    folder.rename(folder.with_name("gone"))
    fresh = harness.turn("s", words((1, 40)))
    harness.settle()
    assert harness.tier.problems == 1
    assert len(harness.tier.books) == 0
    assert np.array_equal(harness.again("s", words((1, 40)))[0], fresh)
    folder.with_name("gone").rename(folder)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize(
    "operations", [100, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])]
)
def test_random_lives_with_a_disk_leave_nothing(
    make: Make, request: pytest.FixtureRequest, kind: str, operations: int
) -> None:
    """Turns, forks, edits, deletions, evictions, restarts and damage, against a shadow: no foreign token, no leak."""
    dice = random.Random(operations)
    path, more = request.getfixturevalue(kind.split(",")[0]), ARCHITECTURES[kind]
    small: dict[str, Any] = {"cells": 384, "memory": 60_000, "limit": 200_000} | more
    harness, plain = make(path, **small), CacheHarness(path, **more)
    talks: dict[str, Talk] = {}
    shadow: dict[str, set[tuple[int, ...]]] = {"a": set(), "b": set()}
    for _ in range(operations):
        key = f"s{dice.randrange(8)}"
        talk = talks.setdefault(key, Talk(dice.choice("ab")))
        action = dice.random()
        if action < 0.5:
            if action < 0.1:
                talk.tokens = talk.tokens[: dice.randrange(len(talk.tokens) + 1)]
            elif action < 0.2:
                talk.tokens = list(dice.choice(list(talks.values())).tokens)
            talk.tokens = [*talk.tokens, *words((dice.randrange(4), dice.randrange(1, 30)))][:90]
            harness.fetch(talk.tokens, talk.owner)
            allocation = harness.enter(talk.tokens, talk.owner)
            known = tuple(talk.tokens[: allocation.length])
            assert not known or known in shadow[talk.owner], "state of tokens that this owner never had computed"
            logits = harness.compute(allocation, talk.tokens)
            if dice.random() < 0.1:
                other = plain.enter(talk.tokens)
                assert np.allclose(logits, plain.compute(other, talk.tokens), atol=ROUNDING)
                plain.cache.release(other, None, None)
            harness.cache.release(allocation, array("i", talk.tokens), key)
            shadow[talk.owner].update(tuple(talk.tokens[:end]) for end in range(1, len(talk.tokens) + 1))
        elif action < 0.7:
            harness.cache.evict_one()
        elif action < 0.75:
            harness.to_disk()
        elif action < 0.77:
            harness = make(path, **small)
        elif action < 0.79 and (files := harness.files()):
            file = dice.choice(files)
            file.write_bytes(file.read_bytes()[: dice.randrange(2000)])
        else:
            harness.cache.collect()
            harness.cache.forget(key)
            del talks[key]
        assert harness.cache.check_integrity() == []
    _leave_nothing(harness, [f"s{number}" for number in range(8)])


def _leave_nothing(harness: DiskCacheHarness, keys: list[str]) -> None:
    for key in keys:
        harness.cache.forget(key)
    harness.settle()
    assert harness.cache.check_integrity() == []
    assert harness.files() == []
    assert harness.empty()


WRITER = """
import sys
from pathlib import Path
import numpy as np
from cfs_server.engine.kvcache.state_archive import StateArchive, StateWrite
from cfs_server.engine.kvcache.state_file import StatePiece
from cfs_server.engine.kvcache.state_folder import Folder, new_name
archive = StateArchive(Folder(Path(sys.argv[1]), "m"), lambda: print("done", flush=True))
for number in range(10_000):
    state = np.full(8 << 20, number % 251, dtype=np.uint8)
    tokens = np.full(5, number, dtype=np.int32)
    archive.write(StateWrite(new_name(), "me", ("s",), 0, tokens, (StatePiece(0, 5, state),), len(state)))
"""


def test_a_writer_that_is_killed_leaves_whole_files_only(tmp_path: Path) -> None:
    """`kill -9` in the middle of a write, again and again: the next one finds each file whole, and removes the rest."""
    dice, before = random.Random(3), 0
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(dice.randrange(1, 4)):
                assert writer.stdout.readline() == b"done\n"
            threading.Event().wait(dice.random() / 100)
            os.kill(writer.pid, signal.SIGKILL)
        folder = Folder(tmp_path, "m")
        found, _ = folder.sweep()
        assert len(found) > before
        for file in found:
            _check_whole(folder, file)
        assert not list(folder.path.glob("*.part"))
        before = len(found)
        folder.close()


def _check_whole(folder: Folder, file: SavedState) -> None:
    head, pieces = folder.read(file.name)
    assert (pieces[0].state == int(head.tokens[0]) % 251).all()


async def test_a_new_worker_goes_on_from_disk(tiny: Path, tmp_path: Path) -> None:
    """After `kill -9` of the worker and after a restart of the server the prompt is not computed again."""
    long = "word " * 200
    for restarted in (False, True):
        async with running(tiny, disk=str(tmp_path), flash_attention=False) as engine:
            first = await ask(engine, long, "s", max_tokens=5)
            assert (first.finished.usage.cached_tokens > 0) == restarted
            await until(engine, lambda stats: stats.gauges["disk_bytes"] > 0)
            while not list((tmp_path / NAME).rglob("*.state")):
                await engine.stats()
            if restarted:
                break
            pid = (await engine.stats()).worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            again = await ask(engine, long, "s", max_tokens=5)
            assert again.finished.usage.cached_tokens == again.finished.usage.prompt_tokens - 1
            stats = await engine.stats()
            assert stats.gauges["disk_reads"] > 0
            assert stats.restarts == 1


async def test_a_folder_that_cannot_be_used_is_done_without(tiny: Path, tmp_path: Path) -> None:
    """The engine runs, and has nothing on disk."""
    (tmp_path / "file").touch()
    async with running(tiny, disk=str(tmp_path / "file")) as engine:
        await ask(engine, "hello", max_tokens=3)
        assert "disk_bytes" not in (await engine.stats()).gauges
