"""A turn's states: one table says which may follow which, and nothing else changes them."""

import asyncio
import itertools
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cfs.completions import UNREADABLE
from cfs.errors import CfsError
from cfs.wire import Message, SettingsPatch, Usage
from cfs_server.domain.turns import TRANSITIONS, InvalidTransition, Turn, TurnRequest, TurnState
from cfs_server.engine.contract.interface import CallDelta, Delta
from tests.sessions.support import running_store

ENDED = {TurnState.FINISHED, TurnState.FAILED, TurnState.CANCELLED}


def test_every_state_has_a_row_and_the_ends_lead_nowhere() -> None:
    assert set(TRANSITIONS) == set(TurnState)
    assert {state for state, following in TRANSITIONS.items() if not following} == ENDED
    reachable = {TurnState.QUEUED}
    while more := set().union(*(TRANSITIONS[state] for state in reachable)) - reachable:
        reachable |= more
    assert reachable == set(TurnState)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(TurnState, TurnState)))
async def test_a_turn_enters_a_state_only_as_the_table_allows(before: TurnState, after: TurnState) -> None:
    turn = Turn(TurnRequest(Message(role="user", content="hi")), state=before)
    if after in TRANSITIONS[before]:
        turn.enter(after)
        assert turn.state is after
    else:
        with pytest.raises(InvalidTransition):
            turn.enter(after)
        assert turn.state is before


class TurnMachine(RuleBasedStateMachine):
    """One session and all turns that it ever had: their states follow the table, and agree with where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.turns: dict[str, Turn] = {}
        self.states: dict[str, TurnState] = {}
        self.runner.run(self._open())

    async def _open(self) -> None:
        self.opened = running_store()
        self.harness = await self.opened.__aenter__()
        self.harness.engine.hold()
        self.session = self.harness.store.create("a")

    def teardown(self) -> None:
        self.runner.run(self.opened.__aexit__(None, None, None))
        self.runner.close()
        assert all(turn.state in ENDED and turn.result.done() for turn in self.turns.values())

    def run(self, action: object) -> None:
        async def run() -> None:
            with suppress(CfsError):
                action()  # type: ignore[operator]
            for _ in range(8):
                await asyncio.sleep(0)

        self.runner.run(run())

    @rule(generate=st.booleans())
    def submit(self, generate: bool) -> None:
        def submit() -> None:
            turn = self.harness.say("a", "one two", generate=generate)
            self.turns[turn.id], self.states[turn.id] = turn, TurnState.QUEUED

        self.run(submit)

    @rule(driver=st.sampled_from(["agent", "model"]))
    def drive(self, driver: str) -> None:
        self.run(lambda: self.session.change_settings(SettingsPatch.model_validate({"driver": driver})))

    @rule()
    def claim(self) -> None:
        self.run(lambda: self.session.claim(3_600))

    @rule(data=st.data(), error=st.none() | st.just("no idea"))
    def finish(self, data: st.DataObject, error: str | None) -> None:
        leased = [turn for turn in self.turns.values() if turn.lease is not None]
        if leased:
            turn = data.draw(st.sampled_from(leased))
            secret = turn.lease.secret if turn.lease else ""
            self.run(lambda: self.session.finish(turn.id, secret, reply="done", error=error, usage=Usage()))

    @rule()
    def expire(self) -> None:
        running = self.session.running
        if running is not None and running.state is TurnState.LEASED:
            self.run(lambda: self.session.expire(running))

    @rule(queued=st.booleans())
    def cancel(self, queued: bool) -> None:
        self.run(lambda: self.session.cancel(queued=queued))

    @rule()
    def one_token(self) -> None:
        self.run(lambda: self.harness.engine.step(1))

    @invariant()
    def states_follow_the_table_and_agree_with_the_queue(self) -> None:
        self.session.check_integrity()
        for turn in self.turns.values():
            assert turn.state in _reachable(self.states[turn.id])
            self.states[turn.id] = turn.state
            assert (turn.state is TurnState.QUEUED) == (turn in self.session.queue)
            assert (turn is self.session.running) == (turn.state not in ENDED | {TurnState.QUEUED})
            assert turn.result.done() == (turn.state in ENDED)


def _reachable(state: TurnState) -> set[TurnState]:
    found, new = {state}, {state}
    while new:
        new = set().union(*(TRANSITIONS[each] for each in new)) - found
        found |= new
    return found


TestTurns = TurnMachine.TestCase
TestTurns.settings = settings(stateful_step_count=40)


async def test_a_call_that_cannot_be_read_is_kept_unless_the_reply_is_cut_off() -> None:
    """Who runs the calls has to tell the model what was wrong. A call that is cut off is no call."""
    turn = Turn(TurnRequest(Message(role="user", content="go")))
    for index, arguments in enumerate(('{"a": 1}', '{"a": 1}{"b": 2}', "")):
        turn.said.append(Delta("", 1, calls=(CallDelta(index, f"id{index}", "f", arguments),)))
    whole, cut = turn.reply("", cut=False), turn.reply("", cut=True)
    assert [call.arguments for call in whole.tool_calls] == [{"a": 1}, {UNREADABLE: '{"a": 1}{"b": 2}'}, {}]
    assert [call.arguments for call in cut.tool_calls] == [{"a": 1}]
