"""The scheduler against the real library, step by step in this process: what the books do not foresee."""

from array import array
from pathlib import Path

import pytest

from cfs.wire import Settings
from cfs_server.engine.contract.protocol import (
    Alive,
    CancelTurn,
    Ended,
    Forget,
    FromWorker,
    Log,
    Pause,
    Ping,
    Resume,
    Step,
    WorkerOptions,
)
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import LoadedModel, load
from cfs_server.engine.worker.generation import Generation
from cfs_server.engine.worker.sampling import Sampler
from cfs_server.engine.worker.scheduler import Scheduler
from cfs_server.engine.worker.text import TextStream
from cfs_server.engine.worker.wait_queue import WaitQueue
from tests.engine.support import looks_at_shares


class SchedulerHarness:
    """A scheduler on a small pool, and everything that it said."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.said: list[FromWorker] = []
        self.scheduler = Scheduler(model, self.said.append)

    def put(
        self, name: str, prompt: int, tokens: int, *, first: int = 20, last: int = 0, deterministic: bool = False
    ) -> None:
        """Hand in a turn whose prompt is some tokens."""
        log = array("i", [first, *range(21, 20 + prompt)])
        log[-1] = last or log[-1]
        settings = Settings(temperature=0, max_tokens=tokens)
        turn = Generation(name, f"key-{name}", log, prompt, tokens, Sampler(settings), TextStream())
        turn.share, turn.deterministic = ("", "interactive", name), deterministic
        self.scheduler.inbox.put(turn)

    def text(self, name: str) -> str:
        """Return what a turn has said."""
        return "".join(
            text.text for step in self.said if isinstance(step, Step) for text in step.texts if text.id == name
        )

    def run(self, *names: str) -> dict[str, Ended]:
        """Step until these turns have ended."""
        ended: dict[str, Ended] = {}
        while not ended.keys() >= set(names):
            self.scheduler.take_work()
            self.scheduler.step()
            assert self.scheduler.check_integrity() == []
            ended = {end.id: end for step in self.said if isinstance(step, Step) for end in step.ended}
        return ended


@pytest.fixture
def harness(tiny: Path) -> SchedulerHarness:
    """Four turns side by side in a pool of 256 cells."""
    options = WorkerOptions(parallel=4, pool_tokens=256, threads=1)
    return SchedulerHarness(load(str(tiny), options, NativeLog(lambda _level, _text: None), extra_buffers=True))


def test_a_pool_with_less_room_than_booked_parks_and_goes_on(harness: SchedulerHarness) -> None:
    """When the library finds no room although there should be some, turns are preempted, not failed."""
    harness.model.context.cells = 100_000
    names = [f"t{number}" for number in range(4)]
    for name in names:
        harness.put(name, prompt=40, tokens=100)
    ended = harness.run(*names)
    assert {(end.reason, end.completion_tokens) for end in ended.values()} == {("length", 100)}


def test_a_turn_that_alone_finds_no_room_fails(harness: SchedulerHarness) -> None:
    """There is no turn to preempt for it; the next one is served."""
    harness.model.context.cells = 100_000
    harness.put("big", prompt=300, tokens=5)
    assert harness.run("big")["big"].error == "the pool has no room for this turn"
    harness.put("small", prompt=10, tokens=5)
    assert harness.run("small")["small"].reason == "length"


def test_a_batch_that_the_library_refuses_fails_its_turns_only(harness: SchedulerHarness) -> None:
    """An impossible token is a defect of ours; the worker outlives it and nothing is left of the turn."""
    harness.put("bad", prompt=10, tokens=5, first=10**6)
    assert harness.run("bad")["bad"].kind == "EngineError"
    assert harness.scheduler._cache.pool.cells_used == 0
    harness.put("good", prompt=10, tokens=5)
    assert harness.run("good")["good"].reason == "length"
    harness.scheduler.inbox.put(Forget("key-good"))
    harness.scheduler.take_work()
    assert harness.scheduler._cache.pool.cells_used == 0


def test_a_failed_step_is_one_line_of_the_log(tiny: Path) -> None:
    """With what the library said of it and the turns that it cost, beside others and in a context of its own."""
    options, lines = WorkerOptions(parallel=4, pool_tokens=256, threads=1), []
    log = NativeLog(lambda level, text: lines.append((level, text)))
    harness = SchedulerHarness(load(str(tiny), options, log, extra_buffers=True))
    for deterministic in (False, True):
        harness.said.clear()
        harness.put(f"bad-{deterministic}", prompt=10, tokens=5, first=10**6, deterministic=deterministic)
        harness.run(f"bad-{deterministic}")
        [told] = [said for said in harness.said if isinstance(said, Log)]
        assert told.level == "error"
        assert f"bad-{deterministic}" in told.text
        assert "token" in told.text
        assert "\n" not in told.text
    assert lines == []


def test_work_that_arrives_while_work_is_handled_comes_after_a_step(harness: SchedulerHarness) -> None:
    """However quickly messages arrive, the turns that run go on: here each one that is handled brings another."""
    scheduler, say = harness.scheduler, harness.said.append

    def answer(frame: FromWorker) -> None:
        say(frame)
        if isinstance(frame, Alive):
            scheduler.inbox.put(Ping())

    scheduler._send = answer
    harness.put("turn", prompt=10, tokens=5)
    scheduler.inbox.put(Ping())
    assert harness.run("turn")["turn"].completion_tokens == 5


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | int, ...]]:
    """Every look at what an owner, a kind of work or an account has had."""
    return looks_at_shares(monkeypatch)


def crowded(tiny: Path, **options: float) -> SchedulerHarness:
    """Return a scheduler with four places, at which a thousand turns of as many sessions have arrived."""
    chosen = WorkerOptions(parallel=4, pool_tokens=1024, threads=1, **options)  # type: ignore[arg-type]
    harness = SchedulerHarness(load(str(tiny), chosen, NativeLog(lambda _level, _text: None), extra_buffers=True))
    for number in range(1000):
        harness.put(f"t{number}", prompt=10, tokens=40, first=20 + number)
    take_all(harness.scheduler)
    return harness


def take_all(scheduler: Scheduler) -> None:
    """Handle all that has arrived, without a step."""
    while not scheduler.inbox.empty():
        scheduler.take_work()


def test_a_step_with_all_places_taken_looks_at_no_turn_that_waits(tiny: Path, looks: list[object]) -> None:
    """A thousand of them cost a step nothing; some are looked at when a place becomes free."""
    harness = crowded(tiny)
    looks.clear()
    harness.scheduler.step()
    assert len(harness.scheduler._running) == 4
    assert 0 < len(looks) < 100
    looks.clear()
    for _ in range(10):
        harness.scheduler.step()
    assert not looks
    while harness.scheduler._queue.named("t0") is not None:
        harness.scheduler.step()
    harness.scheduler.step()
    assert 0 < len(looks) < 200


def test_a_step_after_a_slice_looks_at_few_turns_that_wait(tiny: Path, looks: list[object]) -> None:
    """Turns that have had their slice give way in each step: who comes next is found without a look at all."""
    harness = crowded(tiny, slice_seconds=0.0)
    harness.scheduler.step()
    looks.clear()
    for _ in range(10):
        harness.scheduler.step()
    assert 0 < len(looks) < 1000


def test_a_cancel_and_a_deletion_go_to_their_turn(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand turns that are cancelled, and their sessions deleted, are found by their names."""
    harness = crowded(tiny)
    for number in range(1000):
        harness.scheduler.inbox.put(CancelTurn(f"t{number}"))
        harness.scheduler.inbox.put(Forget(f"t{number}"))
    with monkeypatch.context() as patch:
        patch.setattr(WaitQueue, "turns", None)  # of which there are a thousand
        take_all(harness.scheduler)
    harness.scheduler.step()
    assert harness.scheduler.check_integrity() == []
    assert not len(harness.scheduler._queue)


def test_a_flood_of_messages_is_handled_in_parts(harness: SchedulerHarness) -> None:
    """Streams go on while thousands of messages wait."""
    harness.put("turn", prompt=10, tokens=5)
    for _ in range(3000):
        harness.scheduler.inbox.put(Ping())
    while not any(isinstance(said, Step) and said.texts for said in harness.said):
        harness.scheduler.take_work()
        harness.scheduler.step()
    assert 0 < harness.scheduler.inbox.qsize() < 3000


def test_the_server_learns_at_once_how_many_turns_wait(
    harness: SchedulerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is sent when turns arrive, even if no step has anything else to report."""
    scheduler = harness.scheduler
    for number in range(4):
        harness.put(f"t{number}", prompt=10, tokens=40, first=30 + number)
    scheduler.take_work()
    scheduler.step()
    monkeypatch.setattr(scheduler, "_compute", lambda: None)
    waits = [0.0]
    for number in range(4, 8):
        harness.put(f"t{number}", prompt=10, tokens=40, first=30 + number)
        scheduler.take_work()
        scheduler._runner.forecast._until = 0.0  # a prediction is made again after twenty times what it took
        scheduler.step()
        waits.append(
            next(said.backlog.wait("", "interactive") for said in reversed(harness.said) if isinstance(said, Step))
        )
    assert waits == sorted(set(waits))


def test_what_the_library_says_of_a_good_step_is_handed_on(tiny: Path) -> None:
    """Only of a failed one it becomes part of the failure's line."""
    lines: list[str] = []
    log = NativeLog(lambda _level, text: lines.append(text))
    log.hold()
    log._receive(3, b"something odd\n", None)
    assert lines == []
    assert log.take(failed=False) == ""
    assert lines == ["something odd"]


def test_a_prompt_that_many_turns_share_is_waited_for_once(harness: SchedulerHarness) -> None:
    """Of fifty waiting agents with one long prompt each costs its own few tokens, and the first the whole of it."""
    scheduler = harness.scheduler
    for number in range(50):
        harness.put(f"agent-{number}", prompt=150, tokens=5, last=200 + number)
    scheduler.take_work()
    new = [turn.prompt_tokens - turn.spared for turn in scheduler._waiting]
    assert new == [150] + [1] * 49
    assert scheduler.check_integrity() == []
    assert all(end.reason == "length" for end in harness.run(*(f"agent-{number}" for number in range(50))).values())
    harness.put("late", prompt=150, tokens=5, last=199)
    scheduler.take_work()
    assert [turn.prompt_tokens - turn.spared for turn in scheduler._waiting] == [1], "it is known by now"
    harness.run("late")
    assert list(scheduler._prompts._tree) == []


def test_turns_that_go_take_their_prompts_with_them(harness: SchedulerHarness) -> None:
    """Cancelled, paused or waiting: what comes then need not wait for work that is no longer done."""
    for name in ("one", "two"):
        harness.put(name, prompt=100, tokens=5)
    for name in ("one", "two"):
        harness.scheduler.inbox.put(Pause(name))
        harness.scheduler.inbox.put(CancelTurn(name))
    harness.put("three", prompt=100, tokens=5)
    harness.scheduler.take_work()
    assert [turn.spared for turn in harness.scheduler._waiting] == [0]
    harness.run("three")


def test_sessions_that_rest_leave_the_pool_while_others_compute(tiny: Path) -> None:
    """Idle cells make every step slower; with no patience at all they are parked at the next step of another."""
    options = WorkerOptions(parallel=4, pool_tokens=1024, threads=1, idle_seconds=0.0)
    harness = SchedulerHarness(load(str(tiny), options, NativeLog(lambda _level, _text: None), extra_buffers=True))
    harness.put("first", prompt=40, tokens=5)
    harness.run("first")
    harness.put("second", prompt=40, tokens=5, first=300)
    harness.run("second")
    assert [node.sessions for node in harness.scheduler._cache.pool.nodes] == [{"key-second"}]
    assert harness.scheduler._cache.parked == 1


def test_a_forgotten_turn_that_is_preempted_leaves_nothing(harness: SchedulerHarness) -> None:
    """Its session is gone: what it has computed is not kept under the session's key."""
    harness.put("gone", prompt=40, tokens=100)
    harness.put("other", prompt=10, tokens=5)
    for order in ((), (Forget("key-gone"), Pause("gone")), (Resume("gone"), Pause("gone")), (CancelTurn("gone"),)):
        for each in order:
            harness.scheduler.inbox.put(each)
        harness.scheduler.take_work()
        harness.scheduler.step()
        assert harness.scheduler.check_integrity() == []
    harness.run("other")
    harness.scheduler.inbox.put(Forget("key-other"))
    harness.scheduler.take_work()
    assert harness.scheduler._cache.nodes == 0


def test_a_paused_turn_saves_up_no_share(harness: SchedulerHarness) -> None:
    """While it rests others use the engine; when it goes on its account stands with them, as if it came anew."""
    for name, tokens in (("paused", 40), ("short", 20), ("long", 60)):
        harness.put(name, prompt=10, tokens=tokens)
    harness.scheduler.take_work()
    harness.scheduler.step()
    harness.scheduler.inbox.put(Pause("paused"))
    harness.run("short")
    harness.scheduler.inbox.put(Resume("paused"))
    harness.scheduler.take_work()
    rank = {turn.id: harness.scheduler._queue._rank(turn) for turn in harness.scheduler._queue.turns}
    assert rank["paused"] == rank["long"]
    harness.run("paused", "long")


def test_a_reproducible_turn_that_paused_says_the_same(harness: SchedulerHarness) -> None:
    """Its context is freed meanwhile; prompt and reply are computed again in the same pieces, and it goes on."""
    harness.put("whole", prompt=70, tokens=60, deterministic=True)
    harness.run("whole")
    harness.put("paused", prompt=70, tokens=60, deterministic=True)
    while len(harness.text("paused")) < 20:
        harness.scheduler.take_work()
        harness.scheduler.step()
    harness.scheduler.inbox.put(Pause("paused"))
    harness.put("other", prompt=10, tokens=5)
    harness.run("other")
    assert not harness.scheduler._deterministic.turns
    before = harness.text("paused")
    harness.scheduler.inbox.put(Resume("paused"))
    harness.run("paused")
    assert harness.text("paused") == harness.text("whole")
    assert len(before) < len(harness.text("whole"))
    harness.scheduler.close()


def test_the_cost_of_a_step_is_told(harness: SchedulerHarness) -> None:
    """What is our own and what sampling takes are gauges; steps in which nothing is computed do not count."""
    harness.scheduler.step()
    assert harness.scheduler._runner.gauges["own_seconds_per_step"] == 0
    harness.put("one", prompt=10, tokens=5)
    harness.run("one")
    gauges = harness.scheduler._runner.gauges
    assert 0 < gauges["own_seconds_per_step"] < 1
    assert 0 < gauges["sampling_seconds_per_step"] < 1
