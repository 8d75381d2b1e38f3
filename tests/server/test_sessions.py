"""Sessions as resources over HTTP (S2, S13, S14, H1)."""

import asyncio
import json
from urllib.parse import quote

import pytest

from cfs.contract.route_words import ROUTE_WORDS
from tests.server.support import TEXT, ServerHarness, running_server, until


async def test_a_session_without_a_name_gets_one(server: ServerHarness) -> None:
    bodies: list[dict[str, str] | None] = [{}, None]
    for body in bodies:
        answer = (
            await server.client.post("/v1/sessions", json=body)
            if body is not None
            else await server.client.post("/v1/sessions")
        )
        assert answer.status_code == 201
        assert answer.headers["Location"] == f"/v1/sessions/{answer.json()['id']}"
        assert (await server.client.get(answer.headers["Location"])).status_code == 200


async def test_a_session_is_made_with_settings_and_a_history_and_without_a_turn(server: ServerHarness) -> None:
    transcript = "User: hi\nAssistant: hello\n"
    body = {"id": "a", "settings": {"temperature": 0, "stop": ["x"]}, "transcript": transcript}
    assert (await server.client.post("/v1/sessions", json=body)).json()["messages"] == 2
    assert await server.text("a") == transcript
    assert (await server.client.get("/v1/sessions/a/settings")).json()["stop"] == ["x"]
    assert server.engine.requests == []
    assert (await server.client.post("/v1/sessions", json=body)).json()["type"] == "urn:cfs:error:already-exists"


async def test_a_session_is_made_with_messages_and_all_that_a_transcript_lacks(server: ServerHarness) -> None:
    call = {"id": "c", "name": "look", "arguments": {"at": [1, None]}}
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call], "thinking": "Hm."},
        {"role": "tool", "content": "7", "tool_call_id": "c", "name": "look"},
        {"role": "assistant", "content": "Seven."},
    ]
    assert (await server.client.post("/v1/sessions", json={"id": "a", "messages": messages})).status_code == 201
    shown = (await server.client.get("/v1/sessions/a")).json()["history"]
    assert [{key: each[key] for key in message} for each, message in zip(shown, messages, strict=True)] == messages
    assert server.engine.requests == []
    both = {"id": "b", "messages": messages, "transcript": "User: hi\n"}
    refused = await server.client.post("/v1/sessions", json=both)
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:cfs:error:invalid-parameters")
    asked = {"id": "b", "messages": messages[:1]}
    assert (await server.client.post("/v1/sessions", json=asked)).status_code == 201
    assert await server.text("b") == "User: hi\nAssistant: hi\n"
    for odd in ({"role": "user", "content": "\ud800"}, {"role": "king", "content": ""}):
        body = json.dumps({"id": "c", "messages": [odd]})
        refused = await server.client.post("/v1/sessions", content=body, headers={"Content-Type": "application/json"})
        assert refused.status_code in (400, 422), refused.text


async def test_too_many_messages_are_no_history() -> None:
    async with running_server(max_messages=2) as server:
        body = {"id": "a", "messages": [{"role": "user", "content": "hi"}] * 3}
        refused = await server.client.post("/v1/sessions", json=body)
        assert (refused.status_code, refused.json()["type"]) == (413, "urn:cfs:error:too-large")


@pytest.mark.parametrize(
    "name", ["你好", "a b", "100%", "a?b#c", "x.y", "a\\b", "'\"", "*", "é" * 127, *sorted(ROUTE_WORDS)]
)
async def test_any_legal_name_works_percent_encoded(server: ServerHarness, name: str) -> None:
    path = f"/v1/sessions/{quote(name, safe='')}"
    assert (await server.client.post(f"{path}/messages", params={"wait": "true"}, content=b"x")).status_code == 200
    assert (await server.client.get(path)).json()["id"] == name
    assert (await server.client.get(f"{path}/settings")).status_code == 200
    assert (await server.client.get("/v1/sessions")).json()["sessions"][0]["id"] == name
    assert (await server.client.get((await server.client.post(f"{path}/fork")).headers["Location"])).status_code == 200
    assert (await server.client.delete(path)).status_code == 204


async def test_a_route_word_is_a_session_at_the_root_and_a_route_below(server: ServerHarness) -> None:
    await server.say("events", "x", wait="true")
    await server.say("events/messages1", "y", wait="true")
    assert (await server.client.get("/v1/sessions/events")).json()["id"] == "events"
    assert (await server.client.get("/v1/sessions/events/messages1")).json()["id"] == "events/messages1"
    assert (
        await server.client.get("/v1/sessions/events/events", headers={"Accept": "application/json"})
    ).status_code == 406
    assert (await server.client.put("/v1/sessions/a/events")).status_code == 405
    assert (await server.client.delete("/v1/sessions/a/events")).status_code == 405


async def test_sub_sessions_form_a_tree(server: ServerHarness) -> None:
    for name in ("main/coder/tester", "main/writer", "maine"):
        await server.say(name, "x", wait="true")
    tree = (await server.client.get("/v1/sessions/main/sub_sessions")).json()
    assert [child["id"] for child in tree["children"]] == ["main/coder", "main/writer"]
    assert tree["children"][0]["children"][0]["id"] == "main/coder/tester"
    page = (await server.client.get("/v1/sessions", params={"prefix": "main/"})).json()["sessions"]
    assert [session["id"] for session in page] == ["main/coder", "main/writer"]
    assert (await server.client.delete("/v1/sessions/main")).status_code == 204
    assert [session.id for session in server.store] == ["maine"]


async def test_a_thousand_sessions_are_listed_page_by_page(server: ServerHarness) -> None:
    names = [f"s{n:04}" for n in range(1000)]
    for name in names:
        server.store.create(name)
    whole = (await server.client.get("/v1/sessions", params={"limit": 1000})).json()
    assert ([session["id"] for session in whole["sessions"]], whole["next"]) == (names, None)
    found: list[str] = []
    after = ""
    while after is not None:
        page = (await server.client.get("/v1/sessions", params={"limit": 300, "after": after, "prefix": "s"})).json()
        found += [session["id"] for session in page["sessions"]]
        after = page["next"]
    assert found == names
    assert (await server.client.get("/v1/sessions", params={"prefix": "s099"})).json()["sessions"][9]["id"] == "s0999"


async def test_sessions_with_turns_are_listed_wherever_they_are(server: ServerHarness) -> None:
    for name in ("idle", "main/coder", "main/writer", "a"):
        server.store.create(name)
    server.engine.hold()
    for name in ("main/coder", "a"):
        await server.client.post(f"/v1/sessions/{name}/messages", content=b"hi")
    whole = (await server.client.get("/v1/sessions?active=true")).json()["sessions"]
    assert [info["id"] for info in whole] == ["a", "main/coder"]
    assert all(info["turn_since"] >= info["created_at"] for info in whole)
    page = (await server.client.get("/v1/sessions?active=true&limit=1")).json()
    assert ([info["id"] for info in page["sessions"]], page["next"]) == (["a"], "a")
    page = (await server.client.get("/v1/sessions?active=true&after=a&prefix=main")).json()
    assert ([info["id"] for info in page["sessions"]], page["next"]) == (["main/coder"], None)
    server.engine.release()


async def test_json_ends_with_a_newline(server: ServerHarness) -> None:
    """So that curl in a shell leaves the prompt on a line of its own."""
    await server.client.post("/v1/sessions/a/messages?wait=true", content=b"hi")
    for path in ("", "healthz", "readyz", "v1/sessions", "v1/sessions/a", "v1/sessions/b", "v1/models", "v1/nothing"):
        answer = await server.client.get(f"/{path}", headers={"Accept": "application/json"})
        assert answer.text.endswith("}\n"), path
    asked = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
    for path, body in (("sessions/a/messages?wait=true", {"content": "hi"}), ("chat/completions", asked), ("x", {})):
        answer = await server.client.post(f"/v1/{path}", json=body)
        assert answer.text.endswith("}\n"), path


async def test_settings_change_one_by_one_and_null_is_the_default(server: ServerHarness) -> None:
    await server.create("a", temperature=0.1, top_k=5)
    changed = await server.client.patch("/v1/sessions/a/settings", json={"temperature": None, "seed": 7})
    assert changed.status_code == 200
    assert [changed.json()[key] for key in ("temperature", "top_k", "seed")] == [0.7, 5, 7]
    assert changed.json() == (await server.client.get("/v1/sessions/a/settings")).json()


async def test_a_fork_goes_on_by_itself(server: ServerHarness) -> None:
    await server.say("a", "one", wait="true")
    await server.say("a", "two", wait="true")
    answer = await server.client.post("/v1/sessions/a/fork", json={"id": "b", "at": 2})
    assert (answer.status_code, answer.headers["Location"]) == (201, "/v1/sessions/b")
    await server.say("b", "three", wait="true")
    assert await server.text("b") == "User: one\nAssistant: one\nUser: three\nAssistant: three\n"
    assert (await server.client.post("/v1/sessions/a/fork", json={"id": "b"})).status_code == 409
    assert (await server.client.post("/v1/sessions/a/fork", json={"at": 9})).status_code == 409


async def test_each_message_has_a_time_that_a_copy_keeps(server: ServerHarness) -> None:
    await server.say("a", "one", wait="true")
    await server.say("a", "two", wait="true")
    times = (await server.client.get("/v1/sessions/a")).json()["times"]
    added = [event.time for event in server.store.get("a").log.since(0) if event.type == "message.added"]  # type: ignore[union-attr]
    assert times == added == sorted(times)
    await server.client.post("/v1/sessions/a/fork", json={"id": "b", "at": 2})
    assert (await server.client.get("/v1/sessions/b")).json()["times"] == times[:2]


async def test_a_rename_moves_the_session_and_what_is_below(server: ServerHarness) -> None:
    await server.say("a/b", "x", wait="true")
    answer = await server.client.post("/v1/sessions/a/rename", json={"id": "c"})
    assert (answer.status_code, answer.json()["id"]) == (200, "c")
    assert (await server.client.get("/v1/sessions/c/b")).status_code == 200
    assert (await server.client.get("/v1/sessions/a/b")).status_code == 404


async def test_a_wait_covers_the_sub_sessions_and_wakes_with_the_last_of_them(server: ServerHarness) -> None:
    server.engine.hold()
    await server.create("main")
    await server.say("main/coder", "x")
    waiting = asyncio.create_task(server.client.get("/v1/sessions/main/wait"))
    late = await server.client.get("/v1/sessions/main/wait", params={"timeout": 0.05})
    assert (late.status_code, late.json()["type"]) == (504, "urn:cfs:error:timeout")
    assert not waiting.done()
    server.engine.release()
    answer = await waiting
    assert (answer.status_code, answer.json()["state"]) == (200, "idle")


async def test_a_reader_that_waits_is_woken_by_the_deletion(server: ServerHarness) -> None:
    server.engine.hold()
    await server.say("a", "x")
    waiting = [
        asyncio.create_task(server.client.get("/v1/sessions/a", params={"wait": 30})),
        asyncio.create_task(server.client.get("/v1/sessions/a/wait")),
        asyncio.create_task(server.say("a", "y", wait="true")),
    ]
    await until(lambda: not (len(server.store.get("a").queue) < 1 or server.store.get("a").changed.waiting < 2))
    await server.client.delete("/v1/sessions/a")
    answers = await asyncio.gather(*waiting)
    assert [(answer.status_code, answer.json()["type"]) for answer in answers] == [
        (410, "urn:cfs:error:session-deleted")
    ] * 3


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("text/plain", "text/plain"),
        ("text/*", "text/plain"),
        ("application/json;q=0.5, text/plain", "text/plain"),
        ("text/plain;q=0, */*", "application/json"),
        ("application/json, text/plain, */*", "application/json"),
        ("text/plain, */*", "text/plain"),
        ("TEXT/PLAIN; charset=utf-8", "text/plain"),
        ("image/png", None),
        ("application/json;q=0", None),
        ("text/plain;q=abc", None),
    ],
)
async def test_a_session_is_read_as_json_or_as_text(
    server: ServerHarness, accept: str | None, media: str | None
) -> None:
    await server.say("a", "x", wait="true")
    answer = await server.client.get("/v1/sessions/a", headers={"Accept": accept or ""})
    if media is None:
        assert answer.status_code == 406
    else:
        assert answer.headers["content-type"].partition(";")[0] == media


async def test_a_long_transcript_comes_whole(server: ServerHarness) -> None:
    text = "".join(f"User: {n}\nAssistant: {'漢' * 1000}\n" for n in range(1000))
    server.store.create("a", transcript=text)
    answer = await server.client.get("/v1/sessions/a", headers=TEXT)
    assert answer.text == text
    assert int(answer.headers["content-length"]) == len(text.encode()) == server.store.get("a").history.size


async def test_an_edited_transcript_takes_the_place_of_the_history(server: ServerHarness) -> None:
    await server.say("a", "x", wait="true")
    etag = (await server.client.get("/v1/sessions/a", headers=TEXT)).headers["ETag"]
    edited = "User: y\nAssistant: z\n"
    answer = await server.client.put("/v1/sessions/a/transcript", content=edited, headers={"If-Match": etag})
    assert answer.status_code == 200
    read = await server.client.get("/v1/sessions/a", headers=TEXT)
    assert (read.text, read.headers["ETag"]) == (edited, answer.headers["ETag"])


async def test_an_import_that_ends_with_an_unanswered_message_is_answered(server: ServerHarness) -> None:
    """By `POST` with a transcript, by `PUT`, and in a copy that ends there; the answer does not wait for it (S14)."""
    said = "User: hi\nAssistant: hello\n"
    server.engine.hold()
    made = await server.client.post("/v1/sessions", json={"id": "a", "transcript": f"{said}User: and now?\n"})
    assert (made.status_code, made.json()["state"], made.json()["messages"]) == (201, "generating", 3)
    await server.create("b")
    put = await server.client.put(
        "/v1/sessions/b/transcript", content=f"{said}User: and now?\n", headers={"If-Match": "*"}
    )
    assert (put.status_code, put.json()["state"]) == (200, "generating")
    server.engine.release()
    await server.text("a")
    await server.client.post("/v1/sessions/a/fork", json={"id": "c", "at": 3})
    await server.client.post("/v1/sessions/a/fork", json={"id": "d", "at": 2})
    for name in "abc":
        assert await server.text(name) == f"{said}User: and now?\nAssistant: and now?\n"
    assert await server.text("d") == said


async def test_a_transcript_is_not_replaced_under_a_running_turn(server: ServerHarness) -> None:
    server.engine.hold()
    await server.say("a", "x")
    answer = await server.client.put("/v1/sessions/a/transcript", content="User: y\n", headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:cfs:error:conflict")


async def test_the_store_is_full_at_its_limits() -> None:
    async with running_server(max_sessions=2, max_total_bytes=1000) as server:
        await server.create("a")
        await server.create("b")
        answer = await server.client.post("/v1/sessions", json={"id": "c"})
        assert (answer.status_code, answer.json()["type"]) == (507, "urn:cfs:error:storage-full")
        assert (await server.say("a", "x" * 500)).status_code == 507
        assert (await server.client.delete("/v1/sessions/b")).status_code == 204
        assert (await server.client.post("/v1/sessions", json={"id": "c"})).status_code == 201
