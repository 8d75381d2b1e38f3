"""With `X-CFS-Session` a program that speaks to OpenAI gets its conversation as a file (H4, S4, S6, S14)."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import openai
import pytest

from cfs.errors import EngineError
from cfs.wire import Message
from cfs_filesystem import Grant
from cfs_server.domain.events import LoggedEvent
from cfs_server.engine.contract.interface import Delta, GenerationRequest
from cfs_server.engine.host.scripted import Script, ScriptedEngine
from tests.filesystem.support import grant
from tests.server.guests import guests
from tests.server.openai_client import READ, speaking
from tests.server.support import ServerHarness, running_server, until

CALL = '<tool_call>{"name": "read_file", "arguments": {"path": "a"}}</tool_call>'
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


def scripted(*replies: str | tuple[str | Delta, ...]) -> Script:
    """Make a script that gives one reply after the other."""
    left = list(replies)

    def script(_: GenerationRequest) -> Iterable[str | Delta]:
        reply = left.pop(0)
        return [reply] if isinstance(reply, str) else reply

    return script


async def ask(
    client: httpx.AsyncClient, messages: list[dict[str, Any]], session: str = "chat", **members: Any
) -> httpx.Response:
    """Send a request that a session records."""
    headers = {"X-CFS-Session": session}
    return await client.post("/v1/chat/completions", json={"messages": messages, **members}, headers=headers)


def said(answer: httpx.Response) -> dict[str, Any]:
    """What the model said, ready to be sent back."""
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


def seen(server: ServerHarness, session: str = "chat") -> list[str]:
    """Name the events of a session."""
    events = server.store.get(session).log.since(0)
    assert isinstance(events, list)
    return [event.type for event in events]


def tokens(server: ServerHarness, session: str = "chat") -> list[LoggedEvent]:
    """The events that carry pieces of replies."""
    events = server.store.get(session).log.since(0)
    assert isinstance(events, list)
    return [event for event in events if event.type == "token"]


@pytest.mark.feature("openai", "chat completions", "resume")
async def test_a_conversation_of_the_official_client_becomes_a_file() -> None:
    """Two turns, and the second adds to what the first left."""
    async with running_server(scripted("Hi!", "Bye!")) as server, speaking(server.url) as client:
        messages: list[Any] = [*HELLO]
        for more in ("goodbye", None):
            found = await client.chat.completions.create(
                model="x", messages=messages, extra_headers={"X-CFS-Session": "chat"}
            )
            messages.append(found.choices[0].message.to_dict())
            if more:
                messages.append({"role": "user", "content": more})
        assert await server.text("chat") == (
            "System: Be brief.\nUser: hello\nAssistant: Hi!\nUser: goodbye\nAssistant: Bye!\n"
        )
        assert seen(server).count("message.added") == 5
        assert "history.replaced" not in seen(server)
        kept = found.to_dict()["cfs"]
        assert isinstance(kept, dict)
        assert (kept["session"], kept["finish_reason"]) == ("chat", "stop")
        assert kept["turn"] == tokens(server)[-1].data["turn"]


async def test_calls_thinking_and_results_are_kept_as_they_are() -> None:
    """The history has them in their parts, and the transcript shows what was called."""
    async with running_server(scripted(("<think>I must look.</think>", CALL), "It says A.")) as server:
        messages = [*HELLO]
        first = said(await ask(server.client, messages, tools=[READ]))
        call = first["tool_calls"][0]
        del first["reasoning_content"]  # which most programs do not send back
        messages += [first, {"role": "tool", "tool_call_id": call["id"], "content": "A"}]
        await ask(server.client, messages, tools=[READ])
        history = server.store.get("chat").history.messages
        assert history[2] == Message(
            role="assistant",
            content="",
            thinking="I must look.",
            tool_calls=({"id": call["id"], "name": "read_file", "arguments": {"path": "a"}},),
        )
        assert history[3] == Message(role="tool", content="A", tool_call_id=call["id"])
        assert await server.text("chat") == (
            "System: Be brief.\nUser: hello\nAssistant: [CALL:read_file(path='a')]\nTool: A\nAssistant: It says A.\n"
        )
        assert "history.replaced" not in seen(server)
        detail = (await server.client.get("/v1/sessions/chat")).json()
        assert detail["history"][2]["tool_calls"][0]["arguments"] == {"path": "a"}
        events = [event.data for event in tokens(server)]
        assert [(one["text"], one.get("thinking"), "calls" in one) for one in events] == [
            ("", "I must look.", False),
            ("", None, True),
            ("It says A.", None, False),
        ]


async def test_another_conversation_takes_the_place_of_the_history() -> None:
    """Edited, shortened or quite different: the client's view is the truth, and one event says so."""
    views = [
        [
            {"role": "user", "content": "edited"},
            {"role": "assistant", "content": "Hi!"},
            {"role": "user", "content": "x"},
        ],
        [{"role": "user", "content": "x"}],
    ]
    async with running_server(scripted("Hi!", "two", "three")) as server:
        await ask(server.client, HELLO)
        before = server.store.get("chat").etag
        for count, view in enumerate(views, 1):
            await ask(server.client, view)
            assert seen(server).count("history.replaced") == count
        assert await server.text("chat") == "User: x\nAssistant: three\n"
        assert server.store.get("chat").etag != before


async def test_the_session_is_seen_while_its_turn_runs() -> None:
    """Its state, its partial reply, its events; a blocked reader gets the whole in the end."""
    engine = ScriptedEngine(lambda _: ["one", " two"])
    engine.hold()
    async with running_server(engine=engine) as server:
        asking = asyncio.create_task(ask(server.client, HELLO))
        await until(lambda: server.store.find("chat"))
        reading = asyncio.create_task(server.text("chat"))
        engine.step(1)
        await server.until("chat", "token")
        now = (await server.client.get("/v1/sessions/chat")).json()
        assert (now["state"], now["partial"]) == ("generating", "one")
        assert not reading.done()
        engine.release()
        assert (await reading).endswith("Assistant: one two\n")
        assert said(await asking)["content"] == "one two"


async def test_requests_to_one_session_wait_for_each_other() -> None:
    """Each is judged when its turn begins: of two that go on from the same point the second puts its own view there."""
    engine = ScriptedEngine(lambda request: [f"to {request.messages[-1].content}"])
    engine.hold()
    async with running_server(engine=engine) as server:
        first = asyncio.create_task(ask(server.client, [{"role": "user", "content": "a"}]))
        await until(lambda: server.store.find("chat") is not None and server.store.get("chat").running)
        second = asyncio.create_task(ask(server.client, [{"role": "user", "content": "b"}]))
        third = [
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "to b"},
            {"role": "user", "content": "c"},
        ]
        await until(lambda: len(server.store.get("chat").queue) == 1)
        last = asyncio.create_task(ask(server.client, third))
        await until(lambda: len(server.store.get("chat").queue) == 2)
        engine.release()
        answers = [said(await each)["content"] for each in (first, second, last)]
        assert answers == ["to a", "to b", "to c"]
        assert await server.text("chat") == "User: b\nAssistant: to b\nUser: c\nAssistant: to c\n"
        assert seen(server).count("history.replaced") == 1


async def test_cancelling_the_session_ends_the_completion() -> None:
    """The client has what was said, and is told under `cfs`; the file has the mark."""
    engine = ScriptedEngine(lambda _: ["one", " two"])
    engine.hold()
    async with running_server(engine=engine) as server:
        asking = asyncio.create_task(ask(server.client, HELLO))
        await until(lambda: server.store.find("chat"))
        engine.step(1)
        await server.until("chat", "token")
        await server.client.post("/v1/sessions/chat/cancel")
        answer = await asking
        assert said(answer)["content"] == "one"
        assert (answer.json()["choices"][0]["finish_reason"], answer.json()["cfs"]["finish_reason"]) == (
            "stop",
            "cancelled",
        )
        assert (await server.text("chat")).endswith("Assistant: one [Cancelled]\n")


async def test_deleting_the_session_ends_the_completion(server: ServerHarness) -> None:
    server.engine.hold()
    asking = asyncio.create_task(ask(server.client, HELLO))
    await until(lambda: server.store.find("chat"))
    await server.client.delete("/v1/sessions/chat")
    answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "session_deleted")


async def test_a_turn_that_fails_is_told_to_both() -> None:
    """The client gets the error that it was, the file the line that stands for it; and the next turn works."""

    def script(request: GenerationRequest) -> Iterable[str]:
        if request.messages[-1].content == "hello":
            raise EngineError("it broke")
        return ["fine"]

    async with running_server(script) as server:
        answer = await ask(server.client, HELLO)
        assert (answer.status_code, answer.json()["detail"]) == (502, "it broke")
        assert (await server.text("chat")).endswith("Assistant: [Error: it broke]\n")
        assert said(await ask(server.client, [{"role": "user", "content": "again"}]))["content"] == "fine"


async def test_settings_of_the_session_stay_and_serve_as_defaults(server: ServerHarness) -> None:
    """What the request says counts for its turn; a length that was set counts where it says none."""
    await server.create("chat", temperature=0.25, system="You are brief.")
    await ask(server.client, HELLO, top_p=0.5)
    await server.client.patch("/v1/sessions/chat/settings", json={"max_tokens": 99})
    await ask(server.client, HELLO)
    await ask(server.client, HELLO, max_tokens=3)
    first, second, third = (request.settings for request in server.engine.requests)
    assert (first.temperature, first.top_p, first.system, first.max_tokens) == (0.25, 0.5, "You are brief.", 8192)
    assert (second.max_tokens, third.max_tokens) == (99, 3)
    assert server.store.get("chat").settings.top_p == 0.95


async def test_sub_sessions_and_any_legal_name_can_record(server: ServerHarness) -> None:
    for name, session in (("main/coder", "main/coder"), ("%E8%81%8A%E5%A4%A9%201", "聊天 1")):
        assert said(await ask(server.client, HELLO, session=name))["content"] == "hello"
        assert len(server.store.get(session).history) == 3
    assert server.store.find("main") is not None
    for name in ("..", "%FF", "a//b", ""):
        assert (await ask(server.client, HELLO, session=name)).json()["error"]["code"] == "invalid_identifier"


async def test_an_agent_that_is_attached_answers_the_program(server: ServerHarness) -> None:
    """A program may talk to an agent as to a model; the agent has tools of its own."""
    await server.create("chat", driver="agent")
    refused = await ask(server.client, HELLO, tools=[READ])
    assert (refused.status_code, "takes neither tools" in refused.json()["detail"]) == (409, True)
    for reply in (None, "Done, and more."):
        asking = asyncio.create_task(ask(server.client, HELLO))
        await until(lambda: server.store.get("chat").queue)
        claim = (await server.client.post("/v1/sessions/chat/claim")).json()
        assert claim["message"]["content"] == "hello"
        turn = f"/v1/sessions/chat/turns/{claim['turn']}"
        await server.client.post(f"{turn}/update", json={"claim": claim["claim"], "text": "Done"})
        await server.client.post(f"{turn}/finish", json={"claim": claim["claim"], "reply": reply})
        assert said(await asking)["content"] == (reply or "Done")


async def test_an_edited_transcript_keeps_the_calls_before_the_edit() -> None:
    """The text shows no ids: what it still begins with stays what it was."""
    async with running_server(scripted((CALL,), "Fine.")) as server:
        first = said(await ask(server.client, HELLO, tools=[READ]))
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "A"}
        await ask(server.client, [*HELLO, first, result], tools=[READ])
        session = server.store.get("chat")
        before = session.history.messages
        edited = (await server.text("chat")).replace("Fine.", "Not fine.")
        answer = await server.client.put(
            "/v1/sessions/chat/transcript",
            content=edited.encode(),
            headers={"If-Match": session.etag, "Content-Type": "text/plain"},
        )
        assert answer.status_code == 200
        assert session.history.messages[:4] == before[:4]
        assert session.history.messages[4].content == "Not fine."


# -- rights and limits ------------------------------------------------------------------------------------------------


@pytest.fixture
async def strict() -> AsyncIterator[ServerHarness]:
    async with running_server() as server:
        yield server


WRITER = Grant(prefix="/sessions/mine", ops={"read", "write"})


async def test_who_may_write_to_no_session_may_not_use_the_model(strict: ServerHarness) -> None:
    """Reading, or files, is not enough; the models may be listed with any token."""
    reader = Grant(prefix="/sessions", ops={"read", "list", "file", "delete"})
    async with guests(
        strict, reader=[reader], files=[grant("/workspaces")], nobody=[], writer=[WRITER], all=[grant("/")]
    ) as who:
        for name, status in (("reader", 403), ("files", 403), ("nobody", 403), ("writer", 200), ("all", 200)):
            client = who[name].client
            answer = await client.post("/v1/chat/completions", json={"messages": HELLO})
            counted = await client.post("/v1/tokens", json={"texts": ["a"]})
            assert (answer.status_code, counted.status_code) == (status, status), name
            assert (await client.get("/v1/models")).status_code == 200
    async with speaking(strict.url, "cfs_wrong") as unknown:
        with pytest.raises(openai.AuthenticationError) as caught:
            await unknown.models.list()
        assert caught.value.code == "invalid_api_key"


async def test_recording_needs_the_rights_of_the_session(strict: ServerHarness) -> None:
    """Writing and reading; what cannot be seen does not exist."""
    async with guests(
        strict,
        writer=[Grant(prefix="/sessions/mine", ops={"write"})],
        reader=[Grant(prefix="/sessions/mine", ops={"read"}), grant("/sessions/other")],
        both=[WRITER],
    ) as who:
        for name, session, status in (
            ("writer", "mine", 403),
            ("reader", "mine", 403),
            ("both", "other", 404),
            ("both", "mine", 200),
        ):
            assert (await ask(who[name].client, HELLO, session=session)).status_code == status, name


async def test_who_may_not_delete_may_add_but_not_replace(strict: ServerHarness) -> None:
    """Rewriting a history takes what it held: that is the right to delete (G9)."""
    async with guests(strict, adder=[WRITER], owner=[grant("/sessions/mine")]) as who:
        adder, owner = who["adder"].client, who["owner"].client
        first = said(await ask(adder, HELLO, session="mine"))
        more = [*HELLO, first, {"role": "user", "content": "more"}]
        assert said(await ask(adder, more, session="mine"))["content"] == "more"
        refused = await ask(adder, HELLO, session="mine")
        assert (refused.status_code, "may not replace" in refused.json()["detail"]) == (403, True)
        session = strict.store.get("mine")
        assert (len(session.history), session.idle) == (5, True)
        assert said(await ask(owner, HELLO, session="mine"))["content"] == "hello"
        assert len(session.history) == 3


async def test_a_view_that_has_become_another_while_it_waited_is_refused(strict: ServerHarness) -> None:
    """It fitted when it came, and not when its turn began: nothing is added, and the next turn runs."""
    async with guests(strict, adder=[WRITER]) as who:
        client = who["adder"].client
        strict.engine.hold()
        asking = [asyncio.create_task(ask(client, HELLO, session="mine"))]
        await until(lambda: strict.store.find("mine") is not None and strict.store.get("mine").running)
        asking.append(asyncio.create_task(ask(client, HELLO, session="mine")))
        await until(lambda: len(strict.store.get("mine").queue) == 1)
        asking.append(asyncio.create_task(who["adder"].say("mine", "plain", wait="true")))
        await until(lambda: len(strict.store.get("mine").queue) == 2)
        strict.engine.release()
        assert [(await each).status_code for each in asking] == [200, 403, 200]
        assert [message.content for message in strict.store.get("mine").history.messages] == [
            *("Be brief.", "hello", "hello"),
            *("plain", "plain"),
        ]


async def test_a_recorded_conversation_counts_for_its_account() -> None:
    """What it adds must fit; what the session holds already is not counted twice."""
    long = {"role": "user", "content": "x" * 3000}
    async with running_server(token_bytes=10_000) as server:
        first = said(await ask(server.client, [long]))
        messages = [long, first, {"role": "user", "content": "y"}]
        second = said(await ask(server.client, messages))
        full = await ask(server.client, [*messages, second, long])
        assert (full.status_code, full.json()["error"]["code"]) == (507, "storage_full")


async def test_calls_go_through_json() -> None:
    """What the events say of a call is JSON that can be sent on."""
    async with running_server(scripted((CALL,))) as server:
        await ask(server.client, HELLO, tools=[READ])
        (token,) = tokens(server)
        (call,) = json.loads(token.json)["data"]["calls"]
        assert (call["index"], call["name"], json.loads(call["arguments"])) == (0, "read_file", {"path": "a"})
