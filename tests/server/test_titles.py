"""Titles, failures and origins: what listings show of a session's content, to whom, and how copies are named."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cfs.errors import EngineError
from cfs.state import SessionState
from cfs.state.stream import StreamEvent
from cfs.wire import Event, Message, Origin
from cfs_server.domain.ids import copy_ids
from cfs_server.domain.topics import topic_of
from cfs_server.engine.contract.interface import GenerationRequest
from cfs_server.journal.records import encode_head
from tests.filesystem.support import grant
from tests.server.guests import guests
from tests.server.support import EVENTS, EventStream, ServerHarness, data, running_server
from tests.sessions.disk import Disk
from tests.sessions.test_restore import run

SESSIONS = "/v1/sessions"


async def info(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    """The session as listings show it."""
    answer = await client.get(SESSIONS, params={"prefix": session})
    found: dict[str, Any] = next(each for each in answer.json()["sessions"] if each["id"] == session)
    detail = (await client.get(f"{SESSIONS}/{session}")).json()
    assert detail.get("status") == 404 or {**detail, **found} == detail
    return found


async def fork(client: httpx.AsyncClient, session: str, **how: Any) -> httpx.Response:
    return await client.post(f"{SESSIONS}/{session}/fork", json=how)


# -- titles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("Plan a garden", "Plan a garden"),
        ("\n\n  Plan\ta  garden, \nwith roses", "Plan a garden,"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
        ("四" * 200, "四" * 79 + "…"),
        ("word " * 40, ("word " * 40)[:79] + "…"),
        (" \n ", ""),
        ("<system-reminder>\nToday is\n\nMonday.\n</system-reminder>\n\n\nPlan a garden", "Plan a garden"),
        ("<environment_context>\n  <cwd>/x</cwd>\n</environment_context>", ""),
        ("<a_b>1</a_b><c-d x='2'>3</c-d> Plan\n<a_b>4</a_b>", "Plan"),
        ("# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>Plan", "Plan"),
        ("This is the Qwen Code. We are setting up the context for our chat.\nToday is Monday.", ""),
        ("I have *added these files to the chat* so you can go ahead and edit them.\n\nx", ""),
        ("<user_instructions>Be brief.", "<user_instructions>Be brief."),
        ("<b>Plan</b> a garden", "<b>Plan</b> a garden"),
        ("<" + "a-" * 50_000, "<" + "a-" * 39 + "…"),
    ],
)
def test_topic_is_the_first_line(text: str, topic: str) -> None:
    messages = [Message(role="system", content="Be brief."), Message(role="user", content=text)]
    assert topic_of(messages) == topic
    assert len(topic) <= 80


async def test_what_a_program_puts_first_is_no_title(server: ServerHarness) -> None:
    """Codex sends its surroundings as a message of their own."""
    context = "<environment_context>\n  <cwd>/x</cwd>\n</environment_context>"
    items = [{"role": "user", "content": context}, {"role": "user", "content": "Plan a garden"}]
    answer = await server.client.post("/v1/responses", json={"input": items})
    assert (await info(server.client, answer.json()["cfs"]["session"]))["title"] == "Plan a garden"


async def test_title_is_the_setting_or_the_first_line_of_a_user(server: ServerHarness) -> None:
    client = server.client
    await server.create("a")
    assert (await info(client, "a"))["title"] is None
    await server.say("a", "Plan a garden\nwith roses", wait="true")
    await server.say("a", "And a pond", wait="true")
    assert (await info(client, "a"))["title"] == "Plan a garden"
    settings = f"{SESSIONS}/a/settings"
    assert (await client.patch(settings, json={"title": "Roses <b>"})).json()["title"] == "Roses <b>"
    assert (await info(client, "a"))["title"] == "Roses <b>"
    await client.patch(settings, json={"title": None})
    await client.put(f"{SESSIONS}/a/transcript", content="User: A balcony\n", headers={"If-Match": "*"})
    assert (await info(client, "a"))["title"] == "A balcony"
    for wrong in ("", "two\nlines", "\u0007", "x" * 201, 7):
        assert (await client.patch(settings, json={"title": wrong})).status_code == 422


async def test_events_carry_the_title_when_it_changes(server: ServerHarness) -> None:
    await server.say("a", "Plan a garden", wait="true")
    await server.say("a", "And a pond", wait="true")
    await server.client.patch(f"{SESSIONS}/a/settings", json={"title": "Roses"})
    async with await EventStream.open(server.url, f"{SESSIONS}/a/events?after=0", EVENTS) as stream:
        events = await stream.until("settings.changed")
    titles = [(event.event, data(event)["title"]) for event in events if "title" in data(event)]
    assert titles == [("message.added", "Plan a garden"), ("settings.changed", "Roses")]


async def test_title_and_origin_outlive_a_restart() -> None:
    disk = Disk()
    async with run(disk, clean=True) as r:
        r.say("a", "Plan a garden")
        await r.settled("a")
        r.store.fork("a")
    async with run(disk) as r:
        assert all(not session.history.loaded for session in r.store)
        assert [session.title for session in r.store] == ["Plan a garden"] * 2
        assert r.store.get("a-2").origin == Origin(session="a", messages=2)


async def test_title_of_a_session_of_an_older_version_is_found() -> None:
    """Its head lacks the topic, so the history is read once, and the next head has it."""
    disk = Disk()
    async with run(disk, clean=True) as r:
        r.say("a", "Plan a garden")
        await r.settled("a")
        r.store.get("a").history.topic = None
        assert "topic" not in json.loads(encode_head(r.store.get("a").head()))["history"]
    async with run(disk) as r:
        assert r.store.get("a").title is None
        await r.store.find_topics()
        assert r.store.get("a").title == "Plan a garden"
        r.store.checkpoint(10)
    async with run(disk) as r:
        assert r.store.get("a").title == "Plan a garden"


# -- failures ---------------------------------------------------------------------------------------------------------


def breaks(request: GenerationRequest) -> Iterator[str]:
    if request.messages[-1].content == "break":
        raise EngineError("it broke")
    yield "yes"


async def failures(server: ServerHarness, session: str) -> tuple[bool, bool]:
    """Whether a listing calls the newest message an error, and whether the events do."""
    listed = await info(server.client, session)
    state = SessionState()
    async with await EventStream.open(server.url, f"{SESSIONS}/{session}/events?after=0", EVENTS) as stream:
        while state.event < listed["event"]:
            raw = await stream.next()
            assert raw is not None
            event = Event.model_validate_json(raw.data)
            state.apply(StreamEvent(event.type, event.data, number=event.number, time=event.time))
    return listed["failed"], state.failed


async def test_listing_and_events_say_that_the_newest_message_is_an_error() -> None:
    async with running_server(breaks) as server:
        await server.say("a", "break", wait="true")
        assert await failures(server, "a") == (True, True)
        await fork(server.client, "a", id="copy")
        assert await failures(server, "copy") == (True, True)
        await server.say("a", "and now?", wait="true")
        assert await failures(server, "a") == (False, False)
        place = f"{SESSIONS}/a/transcript"
        text = "User: break\nAssistant: [Error: it broke]\n"
        await server.client.put(place, content=text, headers={"If-Match": "*"})
        assert await failures(server, "a") == (True, True)
        await server.client.put(place, content="User: hello\nAssistant: yes\n", headers={"If-Match": "*"})
        assert await failures(server, "a") == (False, False)


async def test_a_failure_outlives_a_restart() -> None:
    disk = Disk()
    async with run(disk, breaks, clean=True) as r:
        r.say("a", "break")
        await r.settled("a")
    async with run(disk, breaks) as r:
        assert not r.store.get("a").history.loaded
        assert r.store.get("a").info(0).failed


# -- copies -----------------------------------------------------------------------------------------------------------


async def test_copies_are_named_after_the_original(server: ServerHarness) -> None:
    await server.create("a/b")
    await server.create("a-3")
    for parent, names in (("a", ["a-2", "a-4"]), ("a/b", ["a/b-2", "a/b-3"])):
        for name in names:
            copied = (await fork(server.client, parent)).json()
            assert (copied["id"], copied["origin"]) == (name, {"session": parent, "messages": 0})


@pytest.mark.parametrize("name", ["x" * 255, "四" * 85, "%" * 84, "a/" + "x" * 64])
def test_long_names_have_copies_too(name: str) -> None:
    ids = copy_ids(name)
    found = [next(ids) for _ in range(12)]
    assert len(set(found)) == 12
    assert found[0].endswith("-2")
    assert found[-1].endswith("-13")


async def test_a_copy_takes_the_first_messages(server: ServerHarness) -> None:
    for text in ("one", "two"):
        await server.say("a", text, wait="true")
    for name in ("messages", "at"):
        copied = (await fork(server.client, "a", **{name: 2})).json()
        assert copied["origin"] == {"session": "a", "messages": 2}
        assert await server.text(copied["id"]) == "User: one\nAssistant: one\n"
    again = (await fork(server.client, "a", messages=3)).json()
    assert await server.text(again["id"]) == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    assert (await fork(server.client, "a", messages=5)).status_code == 409
    for wrong in (-1, "2", 1.5):
        assert (await fork(server.client, "a", messages=wrong)).status_code == 422
    await server.client.post(f"{SESSIONS}/a/rename", json={"id": "z"})
    assert (await info(server.client, again["id"]))["origin"] == {"session": "a", "messages": 3}


# -- who sees them ----------------------------------------------------------------------------------------------------


async def test_who_may_only_list_sees_no_title(server: ServerHarness) -> None:
    """The title is a part of the messages."""
    async with guests(server, alice=[grant("/sessions")], bob=[grant("/sessions/a", "list", "file")]) as who:
        await who["alice"].create("a/b", "User: secret\nAssistant: yes\n")
        await who["alice"].client.patch(f"{SESSIONS}/a/settings", json={"title": "secret"})
        for path in (SESSIONS, f"{SESSIONS}?prefix=a/", f"{SESSIONS}/a/sub_sessions", f"{SESSIONS}/a/wait"):
            assert "secret" in (await who["alice"].client.get(path)).text, path
            answer = await who["bob"].client.get(path)
            assert answer.status_code == 200, path
            assert "secret" not in answer.text, path
            assert '"id":"a' in answer.text


async def test_origin_is_hidden_from_who_may_not_read_it(server: ServerHarness) -> None:
    async with guests(server, alice=[grant("/sessions")], bob=[grant("/sessions/shared")]) as who:
        await who["alice"].create("hidden-plans", "User: hi\nAssistant: yes\n")
        assert (await fork(who["alice"].client, "hidden-plans", id="shared/x")).json()["origin"] is not None
        for path in (SESSIONS + "?prefix=shared/", f"{SESSIONS}/shared/x", f"{SESSIONS}/shared/sub_sessions"):
            answer = await who["bob"].client.get(path)
            assert '"title":"hi"' in answer.text
            assert "hidden" not in answer.text
        async with await who["bob"].stream("/v1/events?after=0") as stream:
            created = await stream.take(2)
        assert "hidden" not in created[-1].data


async def test_naming_a_copy_tells_nothing_of_other_sessions(server: ServerHarness) -> None:
    """Without the right to write `a-2`, the answer is the same whether that session exists."""
    async with guests(server, alice=[grant("/sessions")], bob=[grant("/sessions/a", "read_binary")]) as who:
        await who["alice"].create("a")
        before = await fork(who["bob"].client, "a")
        assert before.status_code in (403, 404)
        await who["alice"].create("a-2")
        after = await fork(who["bob"].client, "a")
        assert (after.status_code, after.json()) == (before.status_code, before.json())
        assert (await fork(who["alice"].client, "a")).json()["id"] == "a-3"
