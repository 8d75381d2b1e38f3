"""Random `kill -9` under the load of all kinds of clients, and the checker that looks for what was lost."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from crash import Engine, crash
from crash_checks import Report
from crash_ledger import Part, Reading, Said, Seen, Shown, Talk, Versions, Write
from tests.fork_server import FORKING
from tests.fuse.support import reason_to_skip

SECONDS = 45.0
"""No run begins another round than its first after this time. `scripts/bench crash` kills a thousand times."""
USER, REPLY = Said("user", "a"), Said("assistant", "a")


def talk(*writes: Write, **known: Any) -> Talk:
    return Talk(["s"], writes=list(writes), exists={True}, **known)


def acknowledged(text: str, sent: float = 0.0, answered: float = 1.0, **known: Any) -> Write:
    return Write(text, sent, "rest", "acknowledged", answered, **known)


def shown(*history: Said, **more: Any) -> Shown:
    return Shown("s", history, etag='"l-1"', **more)


def test_what_was_acknowledged_and_is_there_is_right() -> None:
    known = talk(acknowledged("a", reply="a"))
    assert known.check(shown(USER, REPLY)) == []
    assert known.bases == [(USER, REPLY)]
    assert known.check(shown(USER, REPLY)) == []


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        ((), "acknowledged and lost (rest): 'a'"),
        ((USER, REPLY, USER, REPLY), "twice: 'a'"),
        ((USER, REPLY, Said("user", "b"), REPLY), "never sent: 'b'"),
        ((USER, Said("assistant", "other")), "the reply to 'a' was 'a' and is 'other'"),
        ((USER, REPLY, REPLY), "2 replies to 'a'"),
        ((USER,), "no reply to 'a'"),
    ],
)
def test_each_kind_of_loss_is_found(history: Sequence[Said], problem: str) -> None:
    assert talk(acknowledged("a", reply="a")).check(shown(*history)) == [f"s: {problem}"]


def test_the_order_of_messages_that_follow_one_another_is_checked() -> None:
    """Of messages that were sent at the same time any may be first."""
    first, second = acknowledged("a", 0.0, 1.0), acknowledged("b", 2.0, 3.0)
    swapped = shown(Said("user", "b"), REPLY, USER, REPLY)
    assert "out of order: 'a'" in talk(first, second).check(swapped)[0]
    second.sent = 0.5
    assert talk(first, second).check(swapped) == []


def test_a_message_without_an_answer_may_be_there_or_not_but_stays_as_it_was_found() -> None:
    known = talk(Write("a", 0.0, outcome="unknown"))
    assert known.check(shown(USER, REPLY)) == []
    assert "older messages changed" in known.check(shown())[0]
    known = talk(Write("a", 0.0, outcome="unknown"))
    assert known.check(shown()) == []
    assert known.check(shown(USER, REPLY)) == ["s: never sent: 'a'"]


def test_a_stream_may_show_a_reply_that_began_again_behind_what_it_showed_before() -> None:
    answered = shown(USER, Said("assistant", "other"))
    assert talk(acknowledged("a", shown="on\nother")).check(answered) == []
    assert "was shown as 'on'" in talk(acknowledged("a", shown="on")).check(answered)[0]


def test_a_refused_message_may_not_be_there() -> None:
    assert talk(Write("a", 0.0, outcome="refused")).check(shown(USER, REPLY)) == ["s: refused and stored: 'a'"]


def test_lost_and_returned_sessions_and_other_names_are_found() -> None:
    assert "the session is lost, with 1 new messages" in talk(acknowledged("a")).check(None)[0]
    deleted = talk()
    deleted.exists = {False}
    assert deleted.check(shown()) == ["s: the session was deleted and is there again"]
    renamed = talk()
    renamed.names = ["t"]
    assert renamed.check(shown()) == ["t: its name is s"]
    assert talk(seeds=[1, 2]).check(shown(seed=3)) == ["s: the setting is 3 instead of [1, 2]"]
    assert "the life changed" in talk(etag='"other-1"').check(shown())[0]


def test_an_edit_without_an_answer_leaves_one_of_two_histories() -> None:
    edited = (USER, Said("assistant", "edited"))
    for history in ((USER, REPLY), edited):
        assert talk(bases=[(USER, REPLY), edited]).check(shown(*history)) == []
    assert len(talk(bases=[(USER, REPLY), edited]).check(shown(USER))) == 1


def test_messages_of_an_agent_are_there_once_and_in_order() -> None:
    call, result = Said("assistant", "[CALL:look(n=1)]"), Said("tool", "1")

    def agent(request: int = 0) -> Talk:
        parts = [Part(call, "acknowledged", request), Part(result, "unknown", request)]
        return talk(acknowledged("a", parts=parts), agent=True)

    assert agent().check(shown(USER, call, result, settled=False)) == []
    assert agent().check(shown(USER, call, settled=False)) == []
    assert "half of an agent's update" in agent(request=1).check(shown(USER, call, settled=False))[0]
    assert "an agent's message is lost" in agent().check(shown(USER, settled=False))[0]
    assert "is there twice" in agent().check(shown(USER, call, call, settled=False))[0]
    again = agent()
    assert again.check(shown(USER, call, queue=("a",), settled=False)) == []  # its lease ran out
    assert again.check(shown(USER, call, settled=False)) == []


def events(*numbers: int, kind: str = "token", text: str = "") -> list[Seen]:
    return [Seen(number, f"l-{number}", kind, json.dumps([number, text])) for number in numbers]


def stream(*parts: list[Seen]) -> Reading:
    return Reading("s", [event for part in parts for event in part])


FULL = {event.number: event for event in events(*range(1, 7))}
STALE = [Seen(4, "l-4", "stale", "{}")]


def test_a_stream_is_consecutive_and_equals_one_that_was_never_cut() -> None:
    assert stream(events(1, 2, 3, 4, 5, 6)).check(FULL, 0) == []
    assert "skips: 4 after 2" in stream(events(1, 2, 4, 5, 6)).check(FULL, 1)[0]
    assert "repeats: 3 after 3" in stream(events(1, 2, 3, 3, 4, 5, 6)).check(FULL, 1)[0]
    assert "missing at the end: 5 to 6" in stream(events(1, 2, 3, 4)).check(FULL, 1)[0]
    assert "3 means two things" in stream(events(1, 2), events(3, text="x"), events(4, 5, 6)).check(FULL, 1)[0]


def test_a_stream_goes_on_where_the_last_check_ended() -> None:
    """Events that are newer than the uncut stream are compared the next time."""
    reading = stream(events(1, 2, 3))
    assert reading.check({1: FULL[1], 2: FULL[2]}, 0) == []
    reading.events += events(5, 6)
    assert "skips: 5 after 3" in reading.check(FULL, 0)[0]


def test_tokens_that_a_restart_took_back_are_right_if_stale_says_so_once() -> None:
    lost = events(3, 4, 5, text="lost")
    reading = stream(events(1, 2), lost, STALE, events(5, 6))
    assert reading.check(FULL, 1) == []
    assert (reading.stales, reading.orphans) == (1, 3)
    assert "1 times stale at 0 restarts" in stream(events(1, 2), lost, STALE, events(5, 6)).check(FULL, 0)[0]
    ended = events(3, kind="turn.finished", text="lost")
    assert "shown and lost" in stream(events(1, 2), ended, STALE, events(5, 6)).check(FULL, 1)[0]


def test_a_version_stands_for_one_text() -> None:
    versions = Versions()
    assert versions.check('"a-1"', "x") == versions.check('"a-1"', "x") == []
    assert versions.check('"a-1"', "y") == ["\"a-1\" stood for 'x' and stands for 'y'"]


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crash.subprocess", FORKING)


def run(kills: int, folder: Path, *flags: str, engine: Engine = "scripted", **how: bool) -> Report:
    """Kill a real server that many times, with the mount where something can be mounted."""
    mount = reason_to_skip() is None
    seed = random.SystemRandom().randrange(1 << 30)
    return asyncio.run(crash(kills, seed, [engine], flags, folder, seconds=SECONDS, mount=mount, **how))


@pytest.mark.external
@pytest.mark.slow
def test_a_server_that_is_not_killed_shows_no_problem(tmp_path: Path) -> None:
    """What the checker finds is not its own fault."""
    report = run(2, tmp_path, calm=True)
    assert report.problems == [], f"seed {report.seed}"
    assert report.counts["rest", "acknowledged"] > 0


@pytest.mark.external
@pytest.mark.slow
def test_losses_of_a_store_in_memory_are_found(tmp_path: Path) -> None:
    """The checker sees what a kill costs where nothing is kept."""
    report = run(2, tmp_path, "--store", "memory", keys=False)
    assert any("the session is lost" in problem for problem in report.problems)
    assert any("reader of all sessions" in problem for problem in report.problems)


@pytest.mark.external
@pytest.mark.parametrize(
    ("engine", "kills"),
    [
        *(("scripted", 2), ("embedded", 2), pytest.param("upstream", 2, marks=pytest.mark.slow)),
        *(pytest.param(engine, 20, marks=pytest.mark.slow) for engine in ("scripted", "embedded")),
    ],
)
def test_nothing_is_lost_by_kills(tmp_path: Path, engine: Engine, kills: int) -> None:
    """Of the server; with the embedded model of its worker, too; with the upstream of `cfs agent serve`, too."""
    report = run(kills, tmp_path, engine=engine)
    assert report.problems == [], f"seed {report.seed}"
    assert report.restarts > 1
