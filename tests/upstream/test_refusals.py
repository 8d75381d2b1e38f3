"""A refused request is sent again in another form or with less, and what helped is known from then on (E4, S5)."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cfs.errors import ContextTooLong, EngineError
from cfs.wire import Message, SettingsPatch
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.turns import TurnRequest
from cfs_server.engine.contract.history_forms import HistoryForm
from cfs_server.engine.upstream.failures import RetryPolicy, of_event, of_status, refusal_of
from cfs_server.sessions.store import SessionStore
from tests.engine.support import ask, collect, request, user
from tests.upstream import strict_stub
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.strict_stub import WORDS_OF_LENGTH, StrictStub
from tests.upstream.stub import NotAllowed, Refusal, Speech
from tests.upstream.support import Naps, pair
from tests.upstream.test_history import calling, result

ASKED = user("a question")
ODD = [
    Message(role="assistant", content="I am here."),
    user("one"),
    Message(role="system", content="Be brief."),
    user("two"),
    user("three"),
    Message(role="assistant", content="", thinking="Hm."),
    user("  "),
    calling("call/" + "x" * 50).model_copy(update={"thinking": "I look."}),
    result("call/" + "x" * 50, ""),
    user("wait"),
    Message(role="assistant", content="done"),
]
RULES = {name: rule for name, rule in vars(strict_stub).items() if isinstance(rule, strict_stub.Rule)}
HISTORIES = {"USER_LAST": ODD, "THINKING_OF_CALLS": [user("one"), calling("1"), result("1"), ASKED]}


@pytest.mark.parametrize("name", RULES)
async def test_a_refusal_is_answered_with_a_form_that_the_server_takes(name: str) -> None:
    """It costs one or two requests, once; then the form is known."""
    stub = StrictStub(RULES[name])
    history = HISTORIES.get(name, [*ODD, ASKED])
    async with pair("openai", stub=stub) as both:
        await ask(both.engine, history)
        refused = len(stub.broken)
        assert 1 <= refused <= 2
        await ask(both.engine, [*history, ASKED])
        assert len(stub.broken) == refused
        assert both.naps.taken == []


async def test_nothing_changes_for_a_server_that_takes_it_all() -> None:
    """So what it has cached of a history stays."""
    async with pair("openai") as both:
        await ask(both.engine, [*ODD, ASKED])
        await ask(both.engine, [*ODD, ASKED])
        first, second = (body["messages"] for body in both.stub.bodies)
    assert first == second
    assert [row["role"] for row in first] == [message.role for message in [*ODD, ASKED]]
    assert [row["content"] for row in first if row["role"] == "user"] == [
        "one",
        "two",
        "three",
        "  ",
        "wait",
        "a question",
    ]


async def test_names_of_tools_are_mapped_back() -> None:
    """Names with a point, and two that are the same without their odd characters."""
    names = ["files.read", "files_read", "files/read", "x" * 65]
    tools = tuple({"type": "function", "function": {"name": name}} for name in names)
    stub = OpenAIStub()
    async with pair("openai", stub=stub) as both:
        await ask(both.engine, "hello", tools=tools)
        sent = [tool["function"]["name"] for tool in stub.bodies[-1]["tools"]]
        assert len(set(sent)) == len(names)
        assert sent[1] == "files_read"
        stub.acts.append(Speech(words=(), calls=tuple((name, ("{}",)) for name in sent)))
        answer = await ask(both.engine, "call them", tools=tools)
        assert [call.name for delta in answer.deltas for call in delta.calls if call.name] == names
        assert len(stub.refused) == 1


async def test_a_failure_without_words_is_no_rule_before_it_helps_twice() -> None:
    """A server may be in trouble, or its template may fail: 500 says neither."""
    trouble = [Refusal(500, message="Internal error")] * 2
    async with pair("openai", retries=RetryPolicy(most=1, sleep=Naps())) as both:
        for expected in (HistoryForm.PLAIN, HistoryForm.STRICT):
            both.stub.acts.extend(trouble)
            await ask(both.engine, [*ODD, ASKED])
            assert both.engine.history_form is expected
        await ask(both.engine, "hello")
        assert len(both.stub.bodies) == 2 * 3 + 1


async def test_a_hopeless_request_is_sent_in_all_forms_once_only() -> None:
    """The next ones with the same refusal are told at once; the error is the upstream's."""
    refusal = Refusal(400, "invalid_request_error", "this account has no access to the beta 7")
    async with pair("openai", *[refusal] * 9) as both:
        for requests in (3, 4, 5):
            with pytest.raises(EngineError, match="no access to the beta"):
                await ask(both.engine, [*ODD, calling("1"), result("1"), ASKED])
            assert len(both.stub.bodies) == requests


UNKNOWN_WORDS = ("misleading words", "no words", "no words, 422")


async def test_a_key_that_is_refused_in_a_stream_is_no_matter_of_the_history() -> None:
    async with pair("openai", Speech(words=(), failing=("authentication_error", "no such key"))) as both:
        with pytest.raises(EngineError, match="no such key"):
            await ask(both.engine, [*ODD, ASKED])
        assert len(both.stub.bodies) == 1


@pytest.mark.parametrize("name", [name for name in WORDS_OF_LENGTH if name not in UNKNOWN_WORDS])
def test_words_of_known_servers_cut_a_prompt_at_once(name: str) -> None:
    refusal = WORDS_OF_LENGTH[name]
    body = json.dumps({"error": {"message": refusal.words, "type": "", "code": refusal.code}})
    assert isinstance(of_status(refusal.status, body, None, "m").error, ContextTooLong)
    assert isinstance(of_event(refusal_of(body)).error, ContextTooLong) or refusal.status == 413


@pytest.mark.parametrize("name", [*UNKNOWN_WORDS, "vllm", "proxy", "lm studio", "ollama"])
async def test_a_long_session_goes_on_whatever_the_words_of_a_refusal(name: str) -> None:
    """Old exchanges leave the prompt; the upstream does not say how long a prompt may be."""
    stub = StrictStub(window=4000, too_long=WORDS_OF_LENGTH[name])
    async with (
        pair("openai", stub=stub) as both,
        SessionStore(both.engine, StoreLimits(session_events=20_000)) as store,
    ):
        store.create("chat", SettingsPatch(system="Be brief.", max_tokens=1))
        for number in range(20):
            request = TurnRequest(user(f"{number} " + "word " * 600))
            session, turn, _ = store.submit("chat", request)
            assert (await turn.result).error is None
        events = session.log.since(0)
        assert isinstance(events, list)
        shifts = [event for event in events if event.type == "context.shifted"]
        assert 2 <= len(shifts) <= len(stub.broken) <= 20


@pytest.mark.parametrize("name", ["max_model_len", "context_length", "context_window", "max_context_length"])
async def test_a_prompt_that_fills_the_models_context_is_too_long_without_words(name: str) -> None:
    """For programs that shorten their conversations themselves; a short prompt is refused for another reason."""
    stub = StrictStub(too_long=WORDS_OF_LENGTH["no words"], context=name)
    async with pair("openai", stub=stub) as both:
        assert both.engine.context_tokens == stub.window
        with pytest.raises(ContextTooLong, match="probably too long"):
            await ask(both.engine, "word " * (stub.window + 1))
        both.stub.acts.append(Refusal(400, message="no"))
        with pytest.raises(EngineError) as refused:
            await ask(both.engine, "hello")
        assert not isinstance(refused.value, ContextTooLong)


async def test_a_reply_that_leaves_no_room_for_the_prompt_gets_less() -> None:
    """Servers refuse both together; the message is not to blame."""

    class Counting(StrictStub):
        def read(self, body: Any) -> Any:
            if body["max_tokens"] > self.window // 2:
                raise NotAllowed("This model's maximum context length is 300 tokens. You requested 100000 tokens")
            return super().read(body)

    async with pair("openai", stub=Counting(context="max_model_len")) as both:
        with pytest.raises(ContextTooLong):
            await ask(both.engine, "hello", max_tokens=100_000)
        of_session = replace(request("hello", max_tokens=100_000), may_shorten=True)
        assert (await collect(both.engine, of_session)).text == "hello"
        assert both.stub.bodies[0]["max_tokens"] == 75


async def test_a_message_that_a_server_never_takes_does_not_end_the_session() -> None:
    """Such as one that a filter refuses: Oaklight/argo-proxy#91. The next turns are without it."""
    filtered = strict_stub.Rule(
        "Oaklight/argo-proxy#91",
        "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        lambda rows: any("forbidden" in row["content"] for row in rows),
    )
    stub = StrictStub(filtered)
    async with pair("openai", stub=stub) as both, SessionStore(both.engine) as store:
        store.create("chat")
        replies = []
        for words in ("one", "two", "forbidden", "three", "four"):
            session, turn, _ = store.submit("chat", TurnRequest(user(words)))
            replies.append((await turn.result).error)
        assert [bool(error) for error in replies] == [False, False, True, False, False]
        assert "content management policy" in (replies[2] or "")
        assert len(stub.broken) == 4  # with its history, and alone; before the next one in two forms
        assert [message.content for message in session.history.messages][:6] == [
            "one", "one", "two", "two", "forbidden", f"[Error: {replies[2]}]",
        ]  # fmt: skip
