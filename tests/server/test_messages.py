"""Writing to a session over HTTP, and the forms of the answer (S3, S4, S5, H1)."""

import asyncio
import json

import pytest

from cfs_server.engine.host.scripted import failing
from tests.server.support import EVENTS, JSON, TEXT, EventStream, ServerHarness, running_server, until


async def test_a_message_is_accepted_at_once_and_answered_later(server: ServerHarness) -> None:
    server.engine.hold()
    answer = await server.say("a", "hello")
    assert answer.status_code == 202
    accepted = answer.json()
    assert accepted["session"] == "a"
    assert accepted["turn"]
    assert accepted["accepted_bytes"] == 5
    assert answer.headers["Location"] == "/v1/sessions/a"
    assert answer.headers["X-CFS-State"] == "generating"
    server.engine.release()
    assert await server.text("a") == "User: hello\nAssistant: hello\n"


async def test_the_event_number_of_the_acceptance_is_that_of_the_message(server: ServerHarness) -> None:
    number = (await server.say("a", "hello")).json()["event"]
    events = server.store.get("a").log.since(number - 1)
    assert isinstance(events, list)
    assert (events[0].type, events[0].data["message"]["content"]) == ("message.added", "hello")


async def test_wait_answers_with_the_finished_reply(server: ServerHarness) -> None:
    reply = (await server.say("a", "hello there", wait="true")).json()
    assert (reply["reply"], reply["finish_reason"], reply["error"]) == ("hello there", "stop", None)
    assert reply["usage"]["completion_tokens"] == 2


async def test_a_wait_that_is_too_short_names_the_turn_which_goes_on(server: ServerHarness) -> None:
    server.engine.hold()
    answer = await server.say("a", "hello", wait="0.05")
    assert answer.status_code == 504
    running = server.store.get("a").running
    assert running is not None
    assert answer.json()["turn"] == running.id
    server.engine.release()
    assert await server.text("a") == "User: hello\nAssistant: hello\n"


async def test_a_failed_turn_is_a_finished_one_with_an_error() -> None:
    async with running_server(failing("out of memory", after=["half"])) as server:
        answer = await server.say("a", "hello", wait="true")
        assert answer.status_code == 200
        reply = answer.json()
        assert (reply["finish_reason"], reply["error"]) == ("error", "out of memory")
        assert await server.text("a") == "User: hello\nAssistant: [Error: out of memory]\n"


async def test_a_client_that_hangs_up_while_it_waits_cancels_nothing_and_frees_its_wait(server: ServerHarness) -> None:
    server.engine.hold()
    stream = await asyncio.create_task(_post_and_leave(server))
    await until(lambda: not (_requests_in_flight(server)))
    assert server.store.get("a").state == "generating"
    server.engine.release()
    assert await server.text("a") == "User: x\nAssistant: x\n"
    await stream.wait_closed()


async def _post_and_leave(server: ServerHarness) -> asyncio.StreamWriter:
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/sessions/a/messages?wait=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
    await until(lambda: not ("a" not in [session.id for session in server.store]))
    assert _requests_in_flight(server) == 1
    writer.transport.abort()
    return writer


def _requests_in_flight(server: ServerHarness) -> int:
    return len(server.server.server_state.tasks)


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (b"hello", "hello"),
        (b"hello\n", "hello"),
        (b"User: hello\n", "hello"),
        (b"a=b&c=d%20e", "a=b&c=d%20e"),
        ("你好\r\n".encode(), "你好\r"),
        (b'{"content": "x"}', '{"content": "x"}'),
    ],
)
@pytest.mark.parametrize(
    "media",
    ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream", None, "text/plain; charset=UTF-8"],
)
async def test_any_body_that_is_no_json_is_the_message_itself(
    server: ServerHarness, body: bytes, stored: str, media: str | None
) -> None:
    headers = {"Content-Type": media} if media else {}
    answer = await server.client.post("/v1/sessions/a/messages?wait=true", content=body, headers=headers)
    assert answer.status_code == 200
    assert server.store.get("a").history.messages[0].content == stored


@pytest.mark.parametrize("body", [b"", b"\n", b"  \n", b"User: ", b"User: \n"])
async def test_an_empty_write_makes_the_session_and_nothing_else(server: ServerHarness, body: bytes) -> None:
    for params in ({}, {"wait": "true"}):
        answer = await server.client.post("/v1/sessions/a/messages", content=body, params=params)
        assert (answer.status_code, answer.json()["turn"]) == (202, None)
    assert server.store.get("a").idle
    assert await server.text("a") == ""


async def test_json_says_the_role_the_settings_of_this_turn_and_whether_to_answer(server: ServerHarness) -> None:
    post = server.client.post
    await post("/v1/sessions/a/messages", json={"content": "be brief", "role": "system"})
    await post("/v1/sessions/a/messages", json={"content": "User: is data here", "generate": False})
    answer = await post("/v1/sessions/a/messages?wait=true", json={"content": "x y z", "settings": {"max_tokens": 2}})
    assert answer.json()["finish_reason"] == "length"
    assert [(message.role, message.content) for message in server.store.get("a").history.messages] == [
        ("system", "be brief"),
        ("user", "User: is data here"),
        ("user", "x y z"),
        ("assistant", "x y"),
    ]
    assert server.store.get("a").settings.max_tokens == 512, "only this turn's"


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}, {"type": "array"}),
        ({"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {}}}, {}),
        ({"type": "text"}, None),
        (None, None),
    ],
)
async def test_a_response_format_reaches_the_engine_as_a_schema(
    server: ServerHarness, given: dict[str, object] | None, schema: dict[str, object] | None
) -> None:
    await server.client.post("/v1/sessions/a/messages?wait=true", json={"content": "x", "response_format": given})
    assert server.engine.requests[0].options.json_schema == schema


async def test_log_probabilities_come_with_the_reply_for_those_who_ask(server: ServerHarness) -> None:
    asked = await server.client.post("/v1/sessions/a/messages?wait=true", json={"content": "one two", "logprobs": 2})
    assert server.engine.requests[0].options.logprobs == 2
    told = asked.json()["logprobs"]
    assert "".join(token["token"] for token in told) == asked.json()["reply"]
    assert told[0] == {"token": "one", "bytes": list(b"one"), "logprob": 0.0, "top": []}
    other = await server.client.post("/v1/sessions/a/messages?wait=true", json={"content": "one two"})
    assert other.json()["logprobs"] is None
    events = server.store.get("a").log.since(0)
    assert isinstance(events, list)
    assert not any("logprobs" in event.data for event in events)


@pytest.mark.parametrize("given", [-1, 21, 1.5, "3", True])
async def test_a_number_of_alternatives_out_of_range_is_refused(server: ServerHarness, given: object) -> None:
    answer = await server.client.post("/v1/sessions/a/messages", json={"content": "x", "logprobs": given})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "given", [{}, {"type": "yaml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, 1]
)
async def test_an_unknown_response_format_is_refused(server: ServerHarness, given: object) -> None:
    answer = await server.client.post("/v1/sessions/a/messages", json={"content": "x", "response_format": given})
    assert answer.status_code == 422
    assert len(server.store) == 0


async def test_the_driver_cannot_be_set_for_one_message(server: ServerHarness) -> None:
    body = {"content": "x", "settings": {"driver": "agent"}}
    answer = await server.client.post("/v1/sessions/a/messages", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:cfs:error:invalid-parameters")


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("text/event-stream", "text/event-stream"),
        ("text/event-stream, */*;q=0.1", "text/event-stream"),
        ("*/*", "application/json"),
        ("application/json, text/event-stream;q=0.5", "application/json"),
        ("text/*", "text/event-stream"),
    ],
)
async def test_the_form_of_the_answer_is_the_one_that_the_client_likes_best(
    server: ServerHarness, accept: str, media: str
) -> None:
    answer = await server.client.post("/v1/sessions/a/messages", content=b"x", headers={"Accept": accept})
    assert answer.headers["content-type"].partition(";")[0] == media


async def test_nothing_is_stored_for_a_client_that_would_accept_no_answer(server: ServerHarness) -> None:
    answer = await server.client.post("/v1/sessions/a/messages", content=b"x", headers={"Accept": "image/png"})
    assert answer.status_code == 406
    assert len(server.store) == 0


async def test_fifty_sessions_written_at_once_get_their_own_answers_side_by_side(server: ServerHarness) -> None:
    names = [f"s{n}" for n in range(50)]
    server.engine.hold()
    for name in names:
        assert (await server.say(name, f"answer of {name}")).status_code == 202
    assert (await server.engine.stats()).running == 50, "all turns run before any has ended"
    server.engine.release()
    texts = await asyncio.gather(*(server.text(name) for name in names))
    assert texts == [f"User: answer of {name}\nAssistant: answer of {name}\n" for name in names]


async def test_what_is_for_one_life_of_a_session_reaches_no_other(server: ServerHarness) -> None:
    """`X-CFS-Life`: 410 where the session was deleted, or is another one; without it a message makes one (S2)."""
    said = await server.say("a", "one", wait="true")
    life = {"X-CFS-Life": said.headers["X-CFS-Life"]}
    assert (await server.client.get("/v1/sessions/a")).headers["X-CFS-Life"] == life["X-CFS-Life"]

    async def statuses() -> set[tuple[int, str]]:
        answers = [
            await server.client.post("/v1/sessions/a/messages", content=b"two", headers=life),
            await server.client.post("/v1/sessions/a/messages?wait=true", content=b"two", headers=life),
            await server.client.get("/v1/sessions/a", headers=life),
            await server.client.patch("/v1/sessions/a/settings", json={"seed": 1}, headers=life),
            await server.client.get("/v1/sessions/a/wait", headers=life),
        ]
        return {(answer.status_code, answer.json().get("type", "")) for answer in answers}

    assert {status for status, _ in await statuses()} == {202, 200}
    await server.client.post("/v1/sessions/a/rename", json={"id": "b"}, headers=life)
    renamed = {(410, "urn:cfs:error:session-renamed")}
    assert await statuses() == renamed
    assert (await server.client.get("/v1/sessions/b", headers=life)).status_code == 200, (
        "it is the same by another name"
    )
    await server.create("a")
    assert await statuses() == renamed
    assert await server.text("a") == ""
    assert (await server.client.delete("/v1/sessions/a", headers=life)).status_code == 410
    assert (await server.say("a", "three")).status_code == 202


async def test_the_turns_of_one_session_never_overlap_and_keep_their_order(server: ServerHarness) -> None:
    await asyncio.gather(*(server.say("a", f"m{n}") for n in range(20)))
    history = (await server.text("a")).splitlines()
    assert [line.partition(": ")[0] for line in history] == ["User", "Assistant"] * 20
    assert [line.split()[1] for line in history[::2]] == [line.split()[1] for line in history[1::2]]
    events = server.store.get("a").log.since(0)
    assert isinstance(events, list)
    marks = [event.type for event in events if event.type in ("turn.started", "turn.finished")]
    assert marks == ["turn.started", "turn.finished"] * 20


async def test_tokens_arrive_one_by_one(server: ServerHarness) -> None:
    server.engine.hold()
    async with await EventStream.open(server.url, "/v1/sessions/a/messages", body=b"one two three") as stream:
        await stream.until("turn.started")
        for word in ("one", " two", " three"):
            server.engine.step()
            (event,) = await stream.take(1)
            assert json.loads(event.data)["data"]["text"] == word
        server.engine.release()
        assert [event.event for event in await stream.rest()] == ["message.added", "turn.finished"]


async def test_cancel_stops_the_engine_keeps_the_text_and_runs_the_next_turn(server: ServerHarness) -> None:
    server.engine.hold()
    await server.say("a", "one two three four")
    await server.say("a", "next")
    server.engine.step(2)
    await server.until("a", "token", 2)
    answer = await server.client.post("/v1/sessions/a/cancel")
    assert answer.json() == {"running": 1, "queued": 0}
    await server.until("a", "turn.finished")
    spoken = (await server.engine.stats()).tokens_generated
    assert spoken == 2
    server.engine.release()
    assert await server.text("a") == (
        "User: one two three four\nAssistant: one two [Cancelled]\nUser: next\nAssistant: next\n"
    )
    assert (await server.engine.stats()).tokens_generated == spoken + 1


async def test_cancel_takes_what_waits_and_what_is_below_if_asked(server: ServerHarness) -> None:
    server.engine.hold()
    for name in ("a", "a", "a/b"):
        await server.say(name, "x")
    answer = await server.client.post("/v1/sessions/a/cancel", json={"queued": True, "cascade": True})
    assert answer.json() == {"running": 2, "queued": 1}


async def test_text_is_read_as_it_stands_while_a_turn_runs(server: ServerHarness) -> None:
    server.engine.hold()
    await server.say("a", "one two")
    answer = await server.client.get("/v1/sessions/a", headers=TEXT)
    assert (answer.text, answer.headers["X-CFS-State"]) == ("User: one two\n", "generating")
    late = await server.client.get("/v1/sessions/a", params={"wait": 0.05}, headers=TEXT)
    assert (late.status_code, late.text) == (200, "User: one two\n")
    assert (late.headers["X-CFS-State"], late.headers["X-CFS-Settled"]) == ("generating", "false")


async def test_the_json_shows_the_partial_reply_and_what_waits(server: ServerHarness) -> None:
    server.engine.hold()
    await server.say("a", "one two")
    await server.say("a", "later")
    server.engine.step()
    await server.until("a", "token")
    shown = (await server.client.get("/v1/sessions/a")).json()
    assert (shown["partial"], [message["content"] for message in shown["queue"]]) == ("one", ["later"])


async def test_a_json_body_may_have_a_charset_and_a_suffix(server: ServerHarness) -> None:
    for media in ("application/json; charset=utf-8", "application/vnd.cfs+json"):
        body = json.dumps({"content": "x"})
        answer = await server.client.post(
            "/v1/sessions/a/messages", content=body, headers=JSON | {"Content-Type": media}
        )
        assert answer.status_code == 202
    assert server.store.get("a").history.messages[0].content == "x"


async def test_a_message_is_refused_while_the_server_goes_down(server: ServerHarness) -> None:
    await server.store.drain(0)
    answer = await server.client.post("/v1/sessions/a/messages", content=b"x", headers=EVENTS)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert (await server.client.get("/readyz")).status_code == 503
    assert (await server.client.get("/healthz")).status_code == 200


async def test_the_reply_brings_the_transcript_up_to_it_if_that_is_asked_for(server: ServerHarness) -> None:
    """One request says all that happened; what comes later is not in it."""
    await server.say("a", "one", wait="true")
    second = (await server.say("a", "two", wait="true", transcript="true")).json()
    assert second["transcript"] == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    assert (await server.say("a", "three", wait="true")).json()["transcript"] is None
    server.engine.hold()
    waiting = [asyncio.create_task(server.say("a", text, wait="true", transcript="true")) for text in ("four", "five")]
    await server.until("a", "turn.started", 4)
    server.engine.release()
    ends = [(await each).json()["transcript"].splitlines()[-1] for each in waiting]
    assert ends == ["Assistant: four", "Assistant: five"]


# -- tools ------------------------------------------------------------------------------------------------------------

READ = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Reads.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


async def test_tools_go_with_a_message_and_calls_come_with_its_reply() -> None:
    """As in completions: the results are messages of their own, and the last one asks for the next reply."""
    replies = ["Two.[CALL:read('a')][CALL:read(path='b')]", "Done."]
    async with running_server(lambda _: [replies.pop(0)]) as server:
        route = "/v1/sessions/a/messages?wait=true"
        first = (await server.client.post(route, json={"content": "go", "tools": [READ]})).json()
        assert (first["reply"], first["finish_reason"]) == ("Two.", "tool_calls")
        assert [(call["name"], call["arguments"]) for call in first["tool_calls"]] == [
            ("read", {"path": "a"}),
            ("read", {"path": "b"}),
        ]
        one, two = (call["id"] for call in first["tool_calls"])
        empty = {"role": "tool", "content": "", "tool_call_id": one}
        assert (await server.client.post("/v1/sessions/a/messages", json=empty)).status_code == 202
        last = {"role": "tool", "content": "B", "tool_call_id": two, "generate": True, "tools": [READ]}
        assert (await server.client.post(route, json=last)).json()["reply"] == "Done."
        assert await server.text("a") == (
            "User: go\nAssistant: Two.\n[CALL:read(path='a')]\n[CALL:read(path='b')]\n"
            "Tool: \nTool: B\nAssistant: Done.\n"
        )
        begun, ended = server.engine.requests
        assert begun.options.tools == ended.options.tools == (READ,)
        assert [message.tool_call_id for message in ended.messages[2:]] == [one, two]


async def test_a_program_posts_what_another_model_has_said(server: ServerHarness) -> None:
    """Its calls, its thinking and the name of its author come back as they were, and nothing answers."""
    call = {"id": "1", "name": "read", "arguments": {"path": "a"}}
    said = {"role": "assistant", "content": "", "tool_calls": [call], "thinking": "Look.", "name": "Ann"}
    answer = await server.client.post("/v1/sessions/a/messages", json=said)
    assert answer.status_code == 202
    (kept,) = (await server.client.get("/v1/sessions/a", params={"wait": 5})).json()["history"]
    assert {key: kept[key] for key in said} == said
    assert await server.text("a") == "Assistant: [CALL:read(path='a')]\n"
    assert server.engine.requests == []


async def test_tools_are_of_one_turn() -> None:
    """The next message has none unless it brings some; what is named must be called."""
    async with running_server() as server:
        await server.client.post("/v1/sessions/a/messages?wait=true", json={"content": "one", "tools": [READ]})
        await server.client.post("/v1/sessions/a/messages?wait=true", json={"content": "two"})
        named = {"type": "function", "function": {"name": "read"}}
        body = {"content": "three", "tools": [READ], "tool_choice": named}
        await server.client.post("/v1/sessions/a/messages?wait=true", json=body)
        asked = [(len(request.options.tools), request.options.tool_choice) for request in server.engine.requests]
        assert asked == [(1, "auto"), (0, "auto"), (1, "required")]


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"tools": [READ, READ]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [READ], "tool_choice": {"function": {"name": "write"}}}, "tool_choice"),
        ({"tools": [{"function": {}}]}, "tools.0.function.name"),
        ({"tool_call_id": "abc"}, "tool_call_id"),
        ({"tool_calls": [{"id": "1", "name": "read", "arguments": {}}]}, "tool_calls"),
        ({"role": "tool", "thinking": "Hm."}, "thinking"),
    ],
)
async def test_what_tools_cannot_be_is_refused(server: ServerHarness, body: dict[str, object], at: str) -> None:
    answer = await server.client.post("/v1/sessions/a/messages", json={"content": "go"} | body)
    assert (answer.status_code, answer.json()["errors"][0]["at"]) == (422, at)
    assert server.engine.requests == []


async def test_an_agent_takes_no_tools(server: ServerHarness) -> None:
    """It has its own; nothing is written."""
    await server.client.post("/v1/sessions", json={"id": "a", "settings": {"driver": "agent"}})
    answer = await server.client.post("/v1/sessions/a/messages", json={"content": "go", "tools": [READ]})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:cfs:error:conflict")
    assert await server.text("a") == ""
