"""Random faults of three replicas and their database under the load of all kinds of clients, and what is checked."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from cfs_server.cluster.event_merging import encode
from crash_checks import Report
from crash_ledger import Seen
from replica_ledger import Epoch, Meanings, MergedReading, Stored, interleaved, split
from replica_set import HAPROXY
from replicas import run

SECONDS = 75.0
"""No run in CI begins another round than its first after this time. `scripts/bench replicas` lets 200 faults happen."""
LIFE = "0a0a0a0a.0b0b0b0b"


def merged(slot: int, *numbers: int, text: str = "") -> list[Seen]:
    """Events of one of two slots, as the stream of all sessions contains them."""
    cursors = dict.fromkeys((0, 1), f"{LIFE}-0")
    return [
        Seen(number, encode(cursors | {slot: f"{LIFE}-{number}"}), "token", json.dumps([slot, number, text]))
        for number in numbers
    ]


def plain(slot: int, *numbers: int) -> dict[int, Seen]:
    """The same as the slot's own stream contains them."""
    return {each.number: each._replace(id=f"{LIFE}-{each.number}") for each in merged(slot, *numbers)}


def test_the_stream_of_all_sessions_is_split_into_those_of_the_slots() -> None:
    (event,) = merged(1, 3)
    assert split({}, event) == (1, plain(1, 3)[3])
    assert split({0: f"{LIFE}-0", 1: f"{LIFE}-3"}, event) is None


def test_gaps_and_repetitions_of_each_slot_are_found() -> None:
    """Events of different slots may come in any order."""
    full = {0: plain(0, 1, 2), 1: plain(1, 1, 2, 3)}
    cursors = {0: f"{LIFE}-0", 1: f"{LIFE}-0"}

    def read(*order: tuple[int, int]) -> list[str]:
        reading, now = MergedReading(), dict(cursors)
        for slot, number in order:
            now[slot] = f"{LIFE}-{number}"
            reading.add(merged(slot, number)[0]._replace(id=encode(now)))
        return reading.check(full)

    assert read((1, 1), (0, 1), (1, 2), (0, 2), (1, 3)) == []
    assert "slot 1: skips: 3 after 1" in read((1, 1), (0, 1), (1, 3), (0, 2))[0]
    assert "slot 0: events are missing at the end: 2 to 2" in read((1, 1), (0, 1), (1, 2), (1, 3))[0]


def test_an_id_stands_for_one_event() -> None:
    meanings = Meanings()
    assert list(meanings.check(plain(0, 1, 2).values())) == []
    assert list(meanings.check(plain(0, 1).values())) == []
    other = plain(0, 1)[1]._replace(json="other")
    assert "means two things" in next(meanings.check([other]))


def test_a_record_of_an_owner_that_had_lost_the_slot_is_found() -> None:
    epochs = [Epoch(0, 1, 0, 0, 100.0), Epoch(0, 2, 2, 4, 200.0)]
    first, second, third = (
        Stored(0, 1, "s", 110.0, 2, 2),
        Stored(0, 2, "s", 120.0, 4, 4),
        Stored(0, 3, "s", 210.0, 6, 6),
    )
    assert list(interleaved(epochs, [first, second, third])) == []
    assert "not of the owner that had it" in next(interleaved(epochs, [first, second, third._replace(at=150.0)]))
    assert "not of the owner that had it" in next(interleaved(epochs, [first, second._replace(at=201.0), third]))
    assert "repeats the positions" in next(interleaved(epochs, [first, second, third._replace(position=3)]))
    assert "repeats numbers" in next(interleaved(epochs, [first, second, third._replace(number=3)]))


def faults(count: int, folder: Path, seconds: float, *, calm: bool = False) -> Report:
    if HAPROXY is None:
        pytest.skip("needs haproxy: scripts/test installs it on Debian")
    seed = random.SystemRandom().randrange(1 << 30)
    report = asyncio.run(run(count, seed, folder, seconds=seconds, calm=calm))
    assert report.problems == [], f"seed {seed}"
    return report


@pytest.mark.external
@pytest.mark.usefixtures("forks")
@pytest.mark.timeout(400)
def test_nothing_is_lost_by_faults(tmp_path: Path) -> None:
    """A kill of a replica and two faults of other kinds, in one round."""
    report = faults(3, tmp_path, SECONDS)
    assert report.restarts >= 1
    assert report.counts["rest", "acknowledged"] > 0


@pytest.mark.external
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_nothing_is_lost_by_two_hundred_faults(tmp_path: Path) -> None:
    assert sum(faults(200, tmp_path, float("inf")).kills.values()) == 200
