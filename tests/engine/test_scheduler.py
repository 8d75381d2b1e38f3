"""The scheduler against the real library, step by step in this process: what the books do not foresee."""

from array import array
from pathlib import Path

import pytest

from cfs.wire import Settings
from cfs_server.engine.llama.model import LoadedModel, NativeLog, load
from cfs_server.engine.llama.sampling import Sampler
from cfs_server.engine.llama.scheduler import Scheduler
from cfs_server.engine.llama.sequence import Generation
from cfs_server.engine.llama.text import TextStream
from cfs_server.engine.protocol import Cancel, Ended, Forget, FromWorker, Log, Options, Pause, Resume, Step


class Desk:
    """A scheduler on a small pool, and everything that it said."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.said: list[FromWorker] = []
        self.scheduler = Scheduler(model, self.said.append)

    def put(self, name: str, prompt: int, tokens: int, *, first: int = 20, last: int = 0, solo: bool = False) -> None:
        """Hand in a turn whose prompt is some tokens."""
        log = array("i", [first, *range(21, 20 + prompt)])
        log[-1] = last or log[-1]
        settings = Settings(temperature=0, max_tokens=tokens)
        turn = Generation(name, f"key-{name}", log, prompt, tokens, Sampler(settings), TextStream())
        turn.share, turn.solo = ("", "interactive", name), solo
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
def desk(tiny: Path) -> Desk:
    """Four turns side by side in a pool of 256 cells."""
    options = Options(parallel=4, pool_tokens=256, threads=1)
    return Desk(load(str(tiny), options, NativeLog(lambda _level, _text: None), extra_buffers=True))


def test_a_pool_with_less_room_than_booked_parks_and_goes_on(desk: Desk) -> None:
    """When the library finds no room although there should be some, turns are put aside, not failed."""
    desk.model.context.cells = 100_000
    names = [f"t{number}" for number in range(4)]
    for name in names:
        desk.put(name, prompt=40, tokens=100)
    ended = desk.run(*names)
    assert {(end.reason, end.completion_tokens) for end in ended.values()} == {("length", 100)}


def test_a_turn_that_alone_finds_no_room_fails(desk: Desk) -> None:
    """There is nobody to put aside for it; the next one is served."""
    desk.model.context.cells = 100_000
    desk.put("big", prompt=300, tokens=5)
    assert desk.run("big")["big"].error == "the pool has no room for this turn"
    desk.put("small", prompt=10, tokens=5)
    assert desk.run("small")["small"].reason == "length"


def test_a_batch_that_the_library_refuses_fails_its_turns_only(desk: Desk) -> None:
    """An impossible token is a defect of ours; the worker outlives it and nothing is left of the turn."""
    desk.put("bad", prompt=10, tokens=5, first=10**6)
    assert desk.run("bad")["bad"].kind == "EngineError"
    assert desk.scheduler._residency.pool.cells_used == 0
    desk.put("good", prompt=10, tokens=5)
    assert desk.run("good")["good"].reason == "length"
    desk.scheduler.inbox.put(Forget("key-good"))
    desk.scheduler.take_work()
    assert desk.scheduler._residency.pool.cells_used == 0


def test_a_failed_step_is_one_line_of_the_log(tiny: Path) -> None:
    """With what the library said of it and the turns that it cost, beside others and in a context of its own."""
    options, lines = Options(parallel=4, pool_tokens=256, threads=1), []
    log = NativeLog(lambda level, text: lines.append((level, text)))
    desk = Desk(load(str(tiny), options, log, extra_buffers=True))
    for solo in (False, True):
        desk.said.clear()
        desk.put(f"bad-{solo}", prompt=10, tokens=5, first=10**6, solo=solo)
        desk.run(f"bad-{solo}")
        [told] = [said for said in desk.said if isinstance(said, Log)]
        assert told.level == "error"
        assert f"bad-{solo}" in told.text
        assert "token" in told.text
        assert "\n" not in told.text
    assert lines == []


def test_what_the_library_says_of_a_good_step_is_handed_on(tiny: Path) -> None:
    """Only of a failed one it becomes part of the failure's line."""
    lines: list[str] = []
    log = NativeLog(lambda _level, text: lines.append(text))
    log.hold()
    log._receive(3, b"something odd\n", None)
    assert lines == []
    assert log.take(failed=False) == ""
    assert lines == ["something odd"]


def test_a_prompt_that_many_turns_share_is_waited_for_once(desk: Desk) -> None:
    """Of fifty waiting agents with one long prompt each costs its own few tokens, and the first the whole of it."""
    scheduler = desk.scheduler
    for number in range(50):
        desk.put(f"agent-{number}", prompt=150, tokens=5, last=200 + number)
    scheduler.take_work()
    new = [turn.prompt_tokens - turn.spared for turn in scheduler._waiting]
    assert new == [150] + [1] * 49
    assert scheduler.check_integrity() == []
    assert all(end.reason == "length" for end in desk.run(*(f"agent-{number}" for number in range(50))).values())
    desk.put("late", prompt=150, tokens=5, last=199)
    scheduler.take_work()
    assert [turn.prompt_tokens - turn.spared for turn in scheduler._waiting] == [1], "it is known by now"
    desk.run("late")
    assert list(scheduler._prompts._tree) == []


def test_turns_that_go_take_their_prompts_with_them(desk: Desk) -> None:
    """Cancelled, paused or waiting: whoever comes then is spared nothing that nobody computes any more."""
    for name in ("one", "two"):
        desk.put(name, prompt=100, tokens=5)
    for name in ("one", "two"):
        desk.scheduler.inbox.put(Pause(name))
        desk.scheduler.inbox.put(Cancel(name))
    desk.put("three", prompt=100, tokens=5)
    desk.scheduler.take_work()
    assert [turn.spared for turn in desk.scheduler._waiting] == [0]
    desk.run("three")


def test_sessions_that_rest_leave_the_pool_while_others_compute(tiny: Path) -> None:
    """Idle cells make every step slower; with no patience at all they are parked at the next step of another."""
    options = Options(parallel=4, pool_tokens=1024, threads=1, idle_seconds=0.0)
    desk = Desk(load(str(tiny), options, NativeLog(lambda _level, _text: None), extra_buffers=True))
    desk.put("first", prompt=40, tokens=5)
    desk.run("first")
    desk.put("second", prompt=40, tokens=5, first=300)
    desk.run("second")
    assert [node.sessions for node in desk.scheduler._residency.pool.nodes] == [{"key-second"}]
    assert desk.scheduler._residency.parked == 1


def test_a_forgotten_turn_that_is_put_aside_leaves_nothing(desk: Desk) -> None:
    """Its session is gone: what it has computed is not kept under the session's key."""
    desk.put("gone", prompt=40, tokens=100)
    desk.put("other", prompt=10, tokens=5)
    for order in ((), (Forget("key-gone"), Pause("gone")), (Resume("gone"), Pause("gone")), (Cancel("gone"),)):
        for each in order:
            desk.scheduler.inbox.put(each)
        desk.scheduler.take_work()
        desk.scheduler.step()
        assert desk.scheduler.check_integrity() == []
    desk.run("other")
    desk.scheduler.inbox.put(Forget("key-other"))
    desk.scheduler.take_work()
    assert desk.scheduler._residency.nodes == 0


def test_a_paused_turn_saves_up_no_share(desk: Desk) -> None:
    """While it rests others use the engine; when it goes on its account stands with them, as if it came anew."""
    for name, tokens in (("paused", 40), ("short", 20), ("long", 60)):
        desk.put(name, prompt=10, tokens=tokens)
    desk.scheduler.take_work()
    desk.scheduler.step()
    desk.scheduler.inbox.put(Pause("paused"))
    desk.run("short")
    desk.scheduler.inbox.put(Resume("paused"))
    desk.scheduler.take_work()
    rank = {turn.id: desk.scheduler._lobby._rank(turn) for turn in desk.scheduler._turns}
    assert rank["paused"] == rank["long"]
    desk.run("paused", "long")


def test_a_reproducible_turn_that_paused_says_the_same(desk: Desk) -> None:
    """Its context is freed meanwhile; prompt and reply are computed again in the same pieces, and it goes on."""
    desk.put("whole", prompt=70, tokens=60, solo=True)
    desk.run("whole")
    desk.put("paused", prompt=70, tokens=60, solo=True)
    while len(desk.text("paused")) < 20:
        desk.scheduler.take_work()
        desk.scheduler.step()
    desk.scheduler.inbox.put(Pause("paused"))
    desk.put("other", prompt=10, tokens=5)
    desk.run("other")
    assert not desk.scheduler._solo.turns
    before = desk.text("paused")
    desk.scheduler.inbox.put(Resume("paused"))
    desk.run("paused")
    assert desk.text("paused") == desk.text("whole")
    assert len(before) < len(desk.text("whole"))
    desk.scheduler.close()


def test_the_cost_of_a_step_is_told(desk: Desk) -> None:
    """What is our own and what sampling takes are gauges; steps in which nothing is computed do not count."""
    desk.scheduler.step()
    assert desk.scheduler._steps.gauges["own_seconds_per_step"] == 0
    desk.put("one", prompt=10, tokens=5)
    desk.run("one")
    gauges = desk.scheduler._steps.gauges
    assert 0 < gauges["own_seconds_per_step"] < 1
    assert 0 < gauges["sampling_seconds_per_step"] < 1
