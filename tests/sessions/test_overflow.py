"""What of a history is in prompts (S5, S8): the policy, with an engine that says nothing of what would fit."""

from collections.abc import Iterable

import pytest

from cfs.errors import ContextTooLong, EngineError
from cfs.wire import Message, Settings, SettingsPatch, ToolCall
from cfs_server.domain.history import error_reply, is_error_reply
from cfs_server.engine.contract.fitting import check_bound, count_fitting, exchanges, leading_systems, least_tokens
from cfs_server.engine.contract.interface import GenerationRequest
from tests.sessions.support import running_store

WORDS = 60


def words(messages: Iterable[Message]) -> int:
    return sum(len(message.content.split()) for message in messages)


def small(request: GenerationRequest) -> Iterable[str]:
    """Answer like an upstream with a small context, which says only that it is too long."""
    if words(request.messages) + len((request.settings.system or "").split()) > WORDS:
        raise ContextTooLong("the conversation is too long for the upstream's model")
    if request.messages[0].content.startswith("Summarize"):
        return ["they", " counted"]
    return ["one", " two"]


def failing_on(word: str) -> object:
    def script(request: GenerationRequest) -> Iterable[str]:
        if request.messages[-1].content == word:
            raise EngineError("it broke")
        return ["fine"]

    return script


def user(content: str) -> Message:
    return Message(role="user", content=content)


def assistant(content: str, **more: object) -> Message:
    return Message.model_validate({"role": "assistant", "content": content, **more})


async def test_replies_that_are_errors_are_in_no_prompt() -> None:
    """Whatever `overflow` says; the message that they answer stays, and so does a reply that was cancelled."""
    async with running_store(failing_on("bad")) as d:  # type: ignore[arg-type]
        for overflow in ("shift", "error", "summarize"):
            text = "User: a\nAssistant: half a [Cancelled]\nUser: b\nAssistant: [Error: imported]\n"
            d.store.create(overflow, SettingsPatch(overflow=overflow), text)
            d.say(overflow, "bad")
            d.say(overflow, "good")
            assert "Assistant: [Error: it broke]\nUser: good\nAssistant: fine\n" in await d.text(overflow)
            contents = [message.content for message in d.engine.requests[-1].messages]
            assert contents == ["a", "half a [Cancelled]", "b", "bad", "good"]


def test_what_reads_as_an_error_reply() -> None:
    assert is_error_reply(error_reply("two\nlines"))
    for other in (user("[Error: x]"), assistant("[Error: x] and more"), assistant("so: [Error: x]")):
        assert not is_error_reply(other)


@pytest.mark.parametrize("overflow", ["shift", "summarize"])
async def test_an_engine_that_does_not_say_how_much_fits(overflow: str) -> None:
    """The oldest exchanges leave until it takes the prompt; the system message and the last message never do."""
    async with running_store(small) as d:
        d.store.create("chat", SettingsPatch.model_validate({"overflow": overflow, "system": "be kind"}))
        for number in range(50):
            turn = d.say("chat", f"this is number {number}")
            assert (await turn.result).error is None
        requests = [r for r in d.engine.requests if not r.messages[0].content.startswith("Summarize")]
        assert all(request.messages[-1].content.startswith("this is number") for request in requests)
        assert all(request.settings.system == "be kind" for request in requests)
        assert d.store.get("chat").history.text.count("User: this is number") == 50
        shifts = [event for event in d.store.get("chat").log.since(0) if event.type == "context.shifted"]  # type: ignore[union-attr]
        assert len(requests) < 50 + 2 * len(shifts)
        assert 5 < len(shifts) < 25
        if overflow == "summarize":
            assert {shift.data["summary"] for shift in shifts} == {"they counted"}
            note = requests[-1].messages[0]
            assert (note.role, note.content.endswith("\nthey counted")) == ("system", True)
            assert any("/summary" in key for key in d.engine.forgotten)


async def test_a_summary_that_fails_leaves_a_shift() -> None:
    def script(request: GenerationRequest) -> Iterable[str]:
        if request.messages[0].content.startswith("Summarize"):
            raise EngineError("no")
        return small(request)

    async with running_store(script) as d:
        d.store.create("chat", SettingsPatch(overflow="summarize"))
        for number in range(12):
            assert (await d.say("chat", f"this is number {number}").result).error is None
        assert "context.shifted" in d.types("chat")


async def test_a_shifted_session_may_be_cancelled_while_it_is_summarized() -> None:
    async with running_store(small) as d:
        d.store.create("chat", SettingsPatch(overflow="summarize"))
        while "context.shifted" not in d.types("chat"):
            await d.say("chat", "this is one").result
        turns = [d.say("chat", f"this is number {number}") for number in range(6)]
        d.engine.hold()
        d.store.cancel("chat", queued=True)
        d.engine.release()
        assert {(await turn.result).reason for turn in turns} <= {"cancelled", "stop"}


async def test_a_long_message_alone_is_refused_and_left_out() -> None:
    async with running_store(small) as d:
        d.say("chat", "hello there")
        failed = await d.say("chat", "word " * 70).result
        assert failed.error is not None
        assert "too long by itself" in failed.error
        assert (await d.say("chat", "hello again").result).error is None
        assert [m.content for m in d.engine.requests[-1].messages] == ["hello there", "one two", "hello again"]
        assert "context.shifted" not in d.types("chat")


async def test_a_system_message_that_is_too_long_is_not_the_fault_of_the_message() -> None:
    async with running_store(small) as d:
        d.store.create("chat", SettingsPatch(system="word " * 70))
        failed = await d.say("chat", "hello").result
        assert failed.error == "the conversation is too long for the upstream's model"
        d.store.get("chat").change_settings(SettingsPatch(system=None))
        assert (await d.say("chat", "hello again").result).error is None
        assert [m.content for m in d.engine.requests[-1].messages] == ["hello", "hello again"]


async def test_changing_the_setting_changes_the_next_prompt() -> None:
    """`error` means the whole history again."""
    async with running_store(small) as d:
        d.store.create("chat")
        while "context.shifted" not in d.types("chat"):
            await d.say("chat", "this is one").result
        d.store.get("chat").change_settings(SettingsPatch(overflow="error"))
        assert (await d.say("chat", "hello").result).error is not None
        d.store.get("chat").change_settings(SettingsPatch(overflow=None))
        assert (await d.say("chat", "hello").result).error is None


CALL = ToolCall(id="1", name="look", arguments={})
TALK = [
    Message(role="system", content="be kind"),
    assistant("Welcome!"),
    user("look there"),
    assistant("", tool_calls=(CALL,)),
    Message(role="tool", content="a tree", tool_call_id="1"),
    assistant("I see a tree."),
    user("and there"),
]


def test_exchanges_are_whole() -> None:
    assert leading_systems(TALK) == 1
    assert exchanges(TALK, 1) == [1, 2, 6]
    assert exchanges(TALK, 2) == [2, 6]
    assert exchanges([], 0) == []


@pytest.mark.parametrize(("limit", "fits"), [(1000, 2), (60, 1), (80, 2)])
def test_what_fits_is_filled_to_three_quarters(limit: int, fits: int) -> None:
    found = count_fitting(TALK, limit=limit, max_last=limit, whole=words, count=lambda text: len(text.split()))
    assert found == fits


def test_a_last_exchange_that_is_too_long_is_told() -> None:
    long = [*TALK, user("word " * 100)]
    assert count_fitting(long, limit=50, max_last=60, whole=words, count=len) == 0


def test_the_bound_is_sure_and_looks_no_further_than_it_must() -> None:
    """A prompt that might fit passes; of a long history only the end is looked at."""
    check_bound([user("x" * 90)] * 10, None, 100, longest=10)
    with pytest.raises(ContextTooLong) as caught:
        check_bound([user("x" * 100), assistant("ok")] * 1_000, None, 100, longest=10)
    assert caught.value.fits == 6
    with pytest.raises(ContextTooLong) as caught:
        check_bound([user("x"), user("y" * 10_000)], None, 100, longest=10)
    assert caught.value.fits == 0
    assert least_tokens([assistant("<think>" + "x" * 1_000 + "</think>ok")], longest=10) == 1


def test_the_setting_is_one_of_three() -> None:
    assert Settings().overflow == "shift"
    with pytest.raises(ValueError, match="overflow"):
        SettingsPatch.model_validate({"overflow": "explode"})
