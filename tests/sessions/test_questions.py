"""Questions of an agent to a person: the first answer counts, and none outlives its turn (A5)."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from cfs.errors import CfsError, Conflict, Forbidden, InvalidParameters, NotFound, StorageFull, TooMany
from cfs.wire import NewQuestion, SettingsPatch, Usage
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.questions import MOST_CLOSED, MOST_OPEN, Question, QuestionState
from cfs_server.domain.quotas import Quota, StoreLimits
from cfs_server.domain.turns import Turn
from cfs_server.sessions.session import Session
from tests.sessions.support import StoreHarness, running_store


class Asking:
    """A session with an agent that may ask."""

    def __init__(self, d: StoreHarness, session: Session, turn: Turn) -> None:
        self.d, self.session, self.turn = d, session, turn
        assert turn.lease is not None
        self.claim = turn.lease.secret

    def ask(self, text: str = "make test", claim: str | None = None) -> Question:
        """Ask whether a command may run."""
        return self.session.ask(NewQuestion(claim=claim or self.claim, text=text), "agent")

    def answer(self, question: Question, answer: str | None = "allow", claim: str | None = None) -> Question:
        """Answer a question as Alice."""
        return self.session.answer_question(question.id, answer, "alice", claim)

    def events(self) -> list[LoggedEvent]:
        """What was published about questions."""
        events = self.session.log.since(0)
        assert isinstance(events, list)
        return [event for event in events if event.type.startswith("question.")]


@asynccontextmanager
async def asking(limits: StoreLimits | None = None) -> AsyncIterator[Asking]:
    async with running_store(limits=limits) as d:
        session = d.store.create("a", SettingsPatch(driver="agent"))
        d.say("a", "build it")
        turn = session.claim(3_600)
        assert turn is not None
        yield Asking(d, session, turn)


async def test_a_question_is_open_until_its_first_answer() -> None:
    async with asking() as a:
        question = a.ask("make test")
        assert (question.state, question.asker, question.turn) == (QuestionState.OPEN, "agent", a.turn.id)
        assert a.session.info(0).open_questions == 1
        answered = a.answer(question, "always")
        assert (answered.state, answered.answer, answered.by) == (QuestionState.ANSWERED, "always", "alice")
        assert a.session.info(0).open_questions == 0
        with pytest.raises(Conflict, match="by alice: always") as refused:
            a.answer(question, "deny")
        assert refused.value.extra == {"answer": "always", "by": "alice"}
        assert a.session.question(question.id) == answered
        asked, said = a.events()
        assert asked.data | {"text": "make test", "choices": ["allow", "always", "deny"]} == asked.data
        assert said.data == {
            "turn": a.turn.id, "id": question.id, "answer": "always", "by": "alice", "terminal": False
        }  # fmt: skip


async def test_only_the_agent_that_holds_the_turn_asks() -> None:
    async with asking() as a:
        with pytest.raises(Forbidden):
            a.ask(claim="wrong")
        a.session.finish(a.turn.id, a.claim, reply="done", error=None, usage=Usage())
        with pytest.raises(NotFound):
            a.ask()
        assert a.events() == []


async def test_an_answer_is_one_of_the_choices() -> None:
    async with asking() as a:
        question = a.ask()
        with pytest.raises(InvalidParameters, match="allow, always, deny"):
            a.answer(question, "yes")
        with pytest.raises(NotFound):
            a.session.answer_question("0" * 32, "allow", "alice")
        assert a.session.question(question.id).state is QuestionState.OPEN


async def test_the_agent_withdraws_its_question_or_notes_what_its_terminal_said() -> None:
    """Nobody else withdraws it; with its claim the answer is marked as one of the terminal."""
    async with asking() as a:
        first, second = a.ask(), a.ask()
        with pytest.raises(Forbidden):
            a.answer(first, None)
        with pytest.raises(Forbidden):
            a.answer(first, "allow", "wrong")
        assert a.answer(first, None, a.claim).state is QuestionState.WITHDRAWN
        with pytest.raises(Conflict, match="withdrawn"):
            a.answer(first)
        assert a.answer(second, "allow", a.claim).terminal
        with pytest.raises(Conflict, match="by alice at the agent's terminal: allow"):
            a.answer(second)


ENDS: dict[str, Callable[[Asking], object]] = {
    "finished": lambda a: a.session.finish(a.turn.id, a.claim, reply="x", error=None, usage=Usage()),
    "failed": lambda a: a.session.finish(a.turn.id, a.claim, reply=None, error="x", usage=Usage()),
    "cancelled": lambda a: a.session.cancel(queued=False),
    "abandoned": lambda a: a.session.abandon("the server was shut down"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_question_is_withdrawn_at_the_end_of_its_turn(end: str) -> None:
    async with asking() as a:
        question = a.ask()
        answered = a.ask()
        a.answer(answered, "deny")
        ENDS[end](a)
        assert [event.data["answer"] for event in a.events()[2:]] == ["deny", None]
        assert a.session.questions == {}
        for each in (question, answered):
            with pytest.raises(NotFound, match="its turn has ended"):
                a.answer(each)


async def test_a_question_is_withdrawn_with_the_lease_and_asked_again_after_it() -> None:
    async with asking() as a:
        question = a.ask()
        a.session.expire(a.turn)
        assert a.session.question(question.id).state is QuestionState.WITHDRAWN
        with pytest.raises(Conflict):
            a.answer(question)
        again = a.ask()  # by the agent that was only late
        assert (a.session.state, a.session.question(again.id).state) == ("generating", QuestionState.OPEN)


async def test_a_deleted_session_has_no_questions() -> None:
    async with asking() as a:
        a.ask()
        a.d.store.delete("a")
        assert a.d.store.account.bytes == 0


async def test_a_renamed_session_keeps_its_questions() -> None:
    async with asking() as a:
        question = a.ask()
        a.d.store.rename("a", "b")
        assert a.answer(question).answer == "allow"


async def test_questions_are_limited() -> None:
    """In number, those that are open and those that are kept, and by the quota of their owner."""
    async with asking() as a:
        questions = [a.ask(f"make {number}") for number in range(MOST_OPEN)]
        with pytest.raises(TooMany):
            a.ask()
        for question in questions:
            a.answer(question)
        for number in range(MOST_CLOSED):
            a.answer(a.ask(f"again {number}"), "deny")
        last = a.ask("the last")
        assert [each.text for each in a.session.questions.values()] == [
            *(f"again {number}" for number in range(MOST_CLOSED)),
            "the last",
        ]
        a.answer(last)
        a.session.account.quota = Quota(size=a.session.account.bytes + 1_000)
        with pytest.raises(StorageFull):
            a.ask("x" * 1_000)
        a.session.account.quota = Quota()


@pytest.mark.parametrize("text", ["\u202etset ekam", "a\nb", " ", "é" * 1_000])
async def test_the_text_is_kept_exactly(text: str) -> None:
    async with asking() as a:
        assert a.session.question(a.ask(text).id).text == text
        with pytest.raises(CfsError):
            a.ask(claim="wrong")
