"""The states of a turn: the table of transitions, and random lives of turns on the real scheduler."""

import shutil
import tempfile
from array import array
from itertools import product
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cfs.wire import Settings
from cfs_server.engine.contract.interface import TOO_LONG
from cfs_server.engine.contract.protocol import (
    CancelTurn,
    Ended,
    Forget,
    FromWorker,
    Pause,
    Resume,
    Step,
    WorkerOptions,
)
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import load
from cfs_server.engine.worker.generation import TRANSITIONS, Generation, GenerationState, InvalidGenerationTransition
from cfs_server.engine.worker.sampling import Sampler
from cfs_server.engine.worker.scheduler import Scheduler
from cfs_server.engine.worker.text import TextStream
from cfs_server.engine.worker.wait_queue import WaitQueue

PATHS: dict[GenerationState, tuple[GenerationState, ...]] = {
    GenerationState.WAITING: (),
    GenerationState.LOADING: (GenerationState.LOADING,),
    GenerationState.RUNNING: (GenerationState.RUNNING,),
    GenerationState.PREEMPTED: (GenerationState.RUNNING, GenerationState.PREEMPTED),
    GenerationState.PAUSED: (GenerationState.PAUSED,),
    GenerationState.FINISHED: (GenerationState.FINISHED,),
}
"""A way from a new turn to each state."""


def generation(name: str, prompt: list[int], tokens: int, key: str = "", *, deterministic: bool = False) -> Generation:
    """Make a greedy turn of its own account."""
    sampler = Sampler(Settings(temperature=0, max_tokens=tokens))
    made = Generation(name, key or name, array("i", prompt), len(prompt), tokens, sampler, TextStream())
    made.share, made.deterministic = ("", "interactive", name), deterministic
    return made


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("before", "after"), list(product(GenerationState, GenerationState)))
def test_the_table_decides_which_state_follows(
    before: GenerationState, after: GenerationState, deterministic: bool
) -> None:
    """A turn is in the list of its state and nowhere else; a refused change changes nothing."""
    queue, turn = WaitQueue(1.0), generation("one", [1, 2], 5, deterministic=deterministic)
    queue.add(generation("other", [1, 2], 5))
    queue.add(turn)
    for state in PATHS[before]:
        queue.move(turn, state)
    if after in TRANSITIONS[before]:
        queue.move(turn, after)
    else:
        with pytest.raises(InvalidGenerationTransition, match=f"one is {before.value} and cannot become {after.value}"):
            queue.move(turn, after)
    assert turn.state is (after if after in TRANSITIONS[before] else before)
    assert queue.turns.count(turn) == (turn.state is not GenerationState.FINISHED)
    assert queue.check_integrity() == []


def test_a_state_that_was_changed_elsewhere_is_a_violation() -> None:
    """The lists show it."""
    queue, turn = WaitQueue(1.0), generation("one", [1, 2], 5)
    queue.add(turn)
    turn.state = GenerationState.RUNNING
    assert queue.check_integrity() == ["one is running and in the wrong list"]


class SchedulerMachine(RuleBasedStateMachine):
    """Turns come, compute, pause, resume and are cancelled, with a pool, memory and slices that are too small.

    The model of it: which turns there are, which of them are paused, and how often each has ended.
    """

    def __init__(self, model: Path, reached: set[GenerationState]) -> None:
        super().__init__()
        self.reached = reached
        self.folder = tempfile.mkdtemp()
        options = WorkerOptions(
            parallel=2,
            pool_tokens=256,
            context_tokens=256,
            threads=1,
            slice_seconds=0.0,
            idle_seconds=0.0,
            parked_bytes=20_000,
            disk=self.folder,
            disk_bytes=1 << 20,
            speculation="always",
        )
        loaded = load(str(model), options, NativeLog(lambda _level, _text: None), extra_buffers=True)
        self.frames: list[FromWorker] = []
        self.scheduler = Scheduler(loaded, self.frames.append)
        self.turns: dict[str, Generation] = {}
        self.paused: set[str] = set()

    @property
    def ended(self) -> dict[str, list[Ended]]:
        found: dict[str, list[Ended]] = {}
        for frame in self.frames:
            for ended in frame.ended if isinstance(frame, Step) else ():
                found.setdefault(ended.id, []).append(ended)
        return found

    @property
    def open(self) -> list[str]:
        """Names of the turns that have not ended."""
        ended = self.ended
        return [name for name in self.turns if name not in ended]

    def handle(self, *work: Generation | CancelTurn | Pause | Resume | Forget) -> None:
        for each in work:
            self.scheduler.inbox.put(each)
        if work:  # without any the scheduler would wait for some
            self.scheduler.take_work()

    def compute(self) -> None:
        if set(self.open) - self.paused:  # else there is nothing to do, and the scheduler would wait for work
            self.scheduler.take_work()
        self.scheduler.step()

    @rule(
        start=st.integers(0, 3),
        prompt=st.integers(2, 90),
        tokens=st.integers(1, 60),
        session=st.sampled_from("abc"),
        deterministic=st.sampled_from([False, False, True]),
        late=st.sampled_from([False, False, False, True]),
    )
    def submit(self, start: int, prompt: int, tokens: int, session: str, deterministic: bool, late: bool) -> None:
        name = f"t{len(self.turns)}"
        log = [100 * start + 1, *range(21, 20 + prompt)]
        turn = self.turns[name] = generation(name, log, tokens, session, deterministic=deterministic)
        if late:
            turn.may_take, turn.ends_at = 0.0, 0.0
        self.handle(turn)

    @rule(count=st.integers(1, 20))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.compute()
            self.reached.update(turn.state for turn in self.turns.values())

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.open))
        self.paused.add(name)
        self.handle(Pause(name))
        assert self.turns[name].state is GenerationState.PAUSED

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.open))
        self.paused.discard(name)
        self.handle(Resume(name))
        assert self.turns[name].state is not GenerationState.PAUSED

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.open))
        self.handle(CancelTurn(name))
        self.scheduler.step()
        assert [ended.reason for ended in self.ended[name]] == ["cancelled"]

    @rule(session=st.sampled_from("abc"))
    def forget(self, session: str) -> None:
        self.handle(Forget(session))

    @invariant()
    def books_agree(self) -> None:
        assert self.scheduler.check_integrity() == []
        queue = self.scheduler._queue
        assert {turn.id for turn in queue.turns} >= set(self.open)
        assert {turn.id for turn in queue.paused} == self.paused & set(self.open)
        assert all(len(ended) == 1 for ended in self.ended.values())

    def teardown(self) -> None:
        try:
            self.handle(*map(Resume, self.open))
            self.paused.clear()
            while self.open:
                self.steps(1)
                assert self.scheduler.check_integrity() == []
            for name, turn in self.turns.items():
                [ended] = self.ended[name]
                assert turn.state is GenerationState.FINISHED
                assert ended.reason in ("length", "cancelled") or ended.error == TOO_LONG.format(0)
            self.handle(*map(Forget, "abc"))
            cache = self.scheduler._cache
            assert (cache.nodes, cache.pool.cells_used, cache.memory.used) == (0, 0, 0)
        finally:
            self.scheduler.close()
            shutil.rmtree(self.folder)


@pytest.mark.parametrize("kind", ["tiny", "recurrent"])
@pytest.mark.timeout(300)
def test_random_lives_of_turns(request: pytest.FixtureRequest, kind: str) -> None:
    """Every turn ends exactly once and nothing is left of any. All states are seen but loading, which is too short."""
    path: Path = request.getfixturevalue(kind)
    reached: set[GenerationState] = set()

    class Machine(SchedulerMachine):
        def __init__(self) -> None:
            super().__init__(path, reached)

    few = settings(max_examples=25, stateful_step_count=25, deadline=None, derandomize=True)
    run_state_machine_as_test(Machine, settings=few)
    assert reached >= set(GenerationState) - {GenerationState.LOADING}
