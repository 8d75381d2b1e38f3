"""The versions of a conversation: to read them, to go back to one, and forward again (S16, S17)."""

import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs import api, wire
from cfs.contract.transcript import render
from cfs.transports.http import Client
from cfs_server.journal.journal import Journal
from cfs_server.journal.sqlite import SqliteBackend
from tests.server.restarting import Restarting
from tests.server.support import TEXT, ServerHarness, running_server


@asynccontextmanager
async def stored(tmp_path: Path, **settings: Any) -> AsyncIterator[ServerHarness]:
    """A server whose sessions are in a file."""
    journal = Journal(SqliteBackend(tmp_path / "sessions.db"))
    await journal.open()
    try:
        async with running_server(journal=journal, **settings) as server:
            yield server
    finally:
        await journal.close()


@pytest.fixture(params=["memory", "file"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServerHarness]:
    """A server with and without a store."""
    async with running_server() if request.param == "memory" else stored(tmp_path) as running:
        yield running


async def talk(server: ServerHarness, session: str, *texts: str) -> None:
    """Send messages, one after the other has been answered."""
    for text in texts:
        assert (await server.say(session, text, wait="true")).status_code == 200


async def at(server: ServerHarness, session: str, moment: int | str) -> str:
    """Read the transcript of a version."""
    answer = await server.client.get(f"/v1/sessions/{session}", params={"at": str(moment)}, headers=TEXT)
    assert answer.status_code == 200, answer.text
    return answer.text


async def rewind(server: ServerHarness, session: str, **how: Any) -> dict[str, Any]:
    """Rewind a session."""
    answer = await server.client.post(f"/v1/sessions/{session}/rewind", json=how)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def redo(server: ServerHarness, session: str) -> httpx.Response:
    """Undo the last rewind."""
    return await server.client.post(f"/v1/sessions/{session}/redo")


async def test_each_message_is_a_version_which_can_be_read_as_it_was(server: ServerHarness) -> None:
    await talk(server, "main", "one", "two")
    versions = (await server.client.get("/v1/sessions/main/versions")).json()["versions"]
    assert [(each["number"], each["kind"], each["role"], each["text"]) for each in versions] == [
        (0, "created", None, ""),
        (1, "message", "user", "one"),
        (2, "message", "assistant", "one"),
        (3, "message", "user", "two"),
        (4, "message", "assistant", "two"),
    ]
    assert await at(server, "main", 2) == "User: one\nAssistant: one\n"
    assert await at(server, "main", 0) == ""
    past = (await server.client.get("/v1/sessions/main", params={"at": "3"})).json()
    assert [message["content"] for message in past["history"]] == ["one", "one", "two"]
    assert (past["messages"], past["size"]) == (3, len("User: one\nAssistant: one\nUser: two\n"))
    assert past["times"] == [version["at"] for version in versions[1:4]]


async def test_the_etag_of_a_version_is_the_one_it_had(server: ServerHarness) -> None:
    await talk(server, "main", "one")
    now = (await server.client.get("/v1/sessions/main", headers=TEXT)).headers["ETag"]
    await talk(server, "main", "two")
    past = await server.client.get("/v1/sessions/main", params={"at": "2"}, headers=TEXT)
    assert past.headers["ETag"] == now
    same = await server.client.get("/v1/sessions/main", params={"at": "2"}, headers=TEXT | {"If-None-Match": now})
    assert same.status_code == 304


async def test_a_time_names_the_version_that_was_current_then(server: ServerHarness) -> None:
    await talk(server, "main", "one", "two")
    versions = (await server.client.get("/v1/sessions/main/versions")).json()["versions"]
    later = wire_time(versions[2]["at"] + 1e-5 if versions[2]["at"] + 1e-5 < versions[3]["at"] else versions[2]["at"])
    assert await at(server, "main", later) in ("User: one\nAssistant: one\n", "User: one\n")
    assert await at(server, "main", "2999-01-01") == await server.text("main")
    missing = await server.client.get("/v1/sessions/main", params={"at": "1999-01-01"})
    assert (missing.status_code, "did not exist" in missing.json()["detail"]) == (404, True)


def wire_time(seconds: float) -> str:
    """Write a time as a parameter."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.mark.parametrize("moment", ["last week", "-1", "1.5", "2027-13-01", "", "9999999999"])
async def test_what_is_no_version_and_no_time_is_refused(server: ServerHarness, moment: str) -> None:
    await talk(server, "main", "one")
    answer = await server.client.get("/v1/sessions/main", params={"at": moment})
    assert answer.status_code == 422, answer.text
    assert (await server.client.post("/v1/sessions/main/rewind", json={"to": moment})).status_code == 422


async def test_a_version_that_does_not_exist_is_named_with_those_that_do(server: ServerHarness) -> None:
    await talk(server, "main", "one")
    answer = await server.client.get("/v1/sessions/main", params={"at": "7"})
    assert (answer.status_code, answer.json()["detail"]) == (404, "session 'main' has no version 7: it has 0 to 2")


async def test_a_rewind_is_a_version_and_redo_undoes_it(server: ServerHarness) -> None:
    await talk(server, "main", "one", "two")
    before = await server.text("main")
    done = await rewind(server, "main", to=2)
    assert await server.text("main") == "User: one\nAssistant: one\n"
    (step,) = done["sessions"]
    assert [each["text"] for each in step["removed"]] == ["two", "two"]
    assert (step["version"], step["to"], step["answers"]) == (5, 2, False)
    assert await at(server, "main", 4) == before
    assert (await redo(server, "main")).status_code == 200
    assert await server.text("main") == before
    kinds = [each["kind"] for each in (await server.client.get("/v1/sessions/main/versions")).json()["versions"]]
    assert kinds[-2:] == ["rewound", "redone"]
    assert (await redo(server, "main")).status_code == 409


async def test_rewinds_are_undone_one_after_the_other(server: ServerHarness) -> None:
    await talk(server, "main", "one", "two", "three")
    before = await server.text("main")
    await rewind(server, "main", to=4)
    await rewind(server, "main", to=2)
    await redo(server, "main")
    assert await server.text("main") == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    await redo(server, "main")
    assert await server.text("main") == before


async def test_after_a_new_message_nothing_is_redone_but_all_is_still_there(server: ServerHarness) -> None:
    await talk(server, "main", "one", "two")
    await rewind(server, "main", to=2)
    await talk(server, "main", "other")
    refused = await redo(server, "main")
    assert (refused.status_code, "earlier version" in refused.json()["detail"]) == (409, True)
    await rewind(server, "main", to=4)
    assert "two" in await server.text("main")


async def test_a_dry_run_says_the_same_and_changes_nothing(server: ServerHarness) -> None:
    await talk(server, "main", "one", "two")
    before, events = await server.text("main"), server.store.get("main").log.last
    planned = await rewind(server, "main", to=2, dry_run=True)
    assert (await server.text("main"), server.store.get("main").log.last) == (before, events)
    done = await rewind(server, "main", to=2)
    assert planned["dry_run"] is True
    assert planned["sessions"][0]["removed"] == done["sessions"][0]["removed"]


async def test_a_rewind_to_the_present_changes_nothing(server: ServerHarness) -> None:
    await talk(server, "main", "one")
    events = server.store.get("main").log.last
    await rewind(server, "main", to=2)
    assert server.store.get("main").log.last == events


async def test_a_rewind_to_a_question_answers_it_again(server: ServerHarness) -> None:
    await talk(server, "main", "one", "two")
    assert (await rewind(server, "main", to=3))["sessions"][0]["answers"] is True
    assert await server.text("main") == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    assert len(server.engine.requests) == 3


async def test_a_rewind_cancels_what_runs_and_waits_and_says_so(server: ServerHarness) -> None:
    await talk(server, "main", "one")
    server.engine.hold()
    await server.say("main", "long")
    await server.say("main", "waiting")
    done = await rewind(server, "main", to=2)
    assert done["sessions"][0]["cancelled"] == ["long", "waiting"]
    server.engine.release()
    assert await server.text("main") == "User: one\nAssistant: one\n"
    await redo(server, "main")
    assert "User: long\nAssistant: [Cancelled]\n" in await server.text("main")


async def test_readers_get_one_event_which_says_where_the_history_is(server: ServerHarness) -> None:
    await talk(server, "main", "one", "two")
    last = server.store.get("main").log.last
    await rewind(server, "main", to=2)
    events = server.store.get("main").log.since(last)
    assert isinstance(events, list)
    assert [(event.type, event.data["rewound_to"], event.data["messages"]) for event in events] == [
        ("history.replaced", 2, 2)
    ]


async def test_sub_sessions_go_back_to_the_same_time_and_come_back_together(server: ServerHarness) -> None:
    await talk(server, "main", "one")
    await talk(server, "main/old", "early")
    await talk(server, "main", "two")
    await talk(server, "main/old", "late")
    await talk(server, "main/new", "young")
    before = {name: await server.text(name) for name in ("main", "main/old", "main/new")}
    done = await rewind(server, "main", to=3, sub_sessions=True)
    assert [(each["session"], each["to"]) for each in done["sessions"]] == [
        ("main", 3),
        ("main/new", None),
        ("main/old", 2),
    ]
    assert await server.text("main/old") == "User: early\nAssistant: early\n"
    assert await server.text("main/new") == ""
    assert (await redo(server, "main")).status_code == 409  # version 3 is a question, which has been answered again
    await rewind(server, "main", to=2, sub_sessions=True)
    assert (await redo(server, "main")).status_code == 200
    assert (await server.text("main"), await server.text("main/old")) == (
        "User: one\nAssistant: one\nUser: two\nAssistant: two\n",
        "User: early\nAssistant: early\n",
    )
    await rewind(server, "main", to=4, sub_sessions=True)
    assert await server.text("main") == before["main"]


async def test_one_sub_session_goes_back_alone(server: ServerHarness) -> None:
    await talk(server, "main", "one")
    await talk(server, "main/child", "early", "late")
    await talk(server, "main/other", "stays")
    await rewind(server, "main/child", to=2)
    assert await server.text("main/child") == "User: early\nAssistant: early\n"
    assert await server.text("main/other") == "User: stays\nAssistant: stays\n"
    assert await server.text("main") == "User: one\nAssistant: one\n"


async def test_a_condition_protects_what_was_said_since(server: ServerHarness) -> None:
    await talk(server, "main", "one")
    seen = (await server.client.get("/v1/sessions/main")).headers["ETag"]
    await talk(server, "main", "two")
    answer = await server.client.post("/v1/sessions/main/rewind", json={"to": 1}, headers={"If-Match": seen})
    assert answer.status_code == 412
    assert "two" in await server.text("main")


async def test_the_effects_of_calls_are_named_as_lasting(server: ServerHarness) -> None:
    """Those that change nothing, or only what goes back, are not."""
    names = ["send_mail", "send_mail", "read_file", "sys_spawn_agent", "write_file"]
    calls = [{"id": str(number), "name": name, "arguments": {}} for number, name in enumerate(names)]
    await talk(server, "main", "hi")
    for message in (
        {"role": "assistant", "content": "", "tool_calls": calls},
        *[{"role": "tool", "content": "ok", "tool_call_id": str(number)} for number in range(len(calls))],
    ):
        answer = await server.client.post("/v1/sessions/main/messages", json=message)
        assert answer.status_code == 202, answer.text
    planned = await rewind(server, "main", to=2, dry_run=True)
    without_files = "Other effects of calls stay as they are: send_mail (2), write_file."
    assert planned["lasting"] == [without_files]
    shown = [message["text"] for message in planned["sessions"][0]["removed"]]
    assert shown[0].startswith("[CALL:send_mail()] [CALL:send_mail()] [CALL:read_file()]")
    assert (await rewind(server, "main", to=3, dry_run=True))["lasting"] == []


async def test_an_edit_is_a_version_and_can_be_taken_back(tmp_path: Path) -> None:
    async with stored(tmp_path) as server:
        await talk(server, "main", "one")
        before = await server.text("main")
        edited = await server.client.put(
            "/v1/sessions/main/transcript",
            content="User: other\nAssistant: words\n",
            headers={"If-Match": "*", "Content-Type": "text/plain"},
        )
        assert edited.status_code == 200
        await rewind(server, "main", to=2)
        assert await server.text("main") == before
        assert await at(server, "main", 3) == "User: other\nAssistant: words\n"


async def test_without_a_store_old_versions_leave_when_they_need_much_memory() -> None:
    async with running_server() as server:
        await talk(server, "main", "one", "x" * 3_000_000)
        for text in ("other", "z" * 2_000_000, "last"):
            edited = f"User: {text}\nAssistant: words\n"
            headers = {"If-Match": "*", "Content-Type": "text/plain"}
            answer = await server.client.put("/v1/sessions/main/transcript", content=edited, headers=headers)
            assert answer.status_code == 200
        answer = await server.client.get("/v1/sessions/main", params={"at": "2"})
        assert answer.json()["detail"] == "session 'main' has no version 2: it has 5 to 7"
        assert await at(server, "main", 5) == "User: other\nAssistant: words\n"


async def test_many_versions_come_in_pages(server: ServerHarness) -> None:
    await talk(server, "main", *map(str, range(6)))
    numbers: list[int] = []
    before: int | None = None
    while True:
        params = {"limit": "5"} | ({} if before is None else {"before": str(before)})
        page = (await server.client.get("/v1/sessions/main/versions", params=params)).json()
        numbers = [each["number"] for each in page["versions"]] + numbers
        if (before := page["before"]) is None:
            break
    assert numbers == list(range(13))


async def test_a_repeated_redo_is_carried_out_once(server: ServerHarness) -> None:
    await talk(server, "main", "one", "two")
    await rewind(server, "main", to=2)
    for _ in range(2):
        answer = await server.client.post("/v1/sessions/main/redo", headers={"Idempotency-Key": "k"})
        assert answer.status_code == 200
    assert len((await server.client.get("/v1/sessions/main/versions")).json()["versions"]) == 7


@pytest.mark.parametrize("steps", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_random_walks_read_back_each_version_after_kills(tmp_path: Path, steps: int) -> None:
    """Steps of messages, edits, rewinds, redos and kills: each version reads back byte for byte."""
    walk = random.Random(7)
    with ExitStack() as stack:
        server = Restarting(tmp_path, stack)
        versions: list[str] = [""]
        undo: list[int] = []
        stack.enter_context(Client(server.process.url)).call(api.create("main"))

        def ask(call: api.Call[Any]) -> Any:
            with Client(server.process.url) as client:
                return client.call(call)

        def text() -> str:
            return versions[-1]

        for step in range(steps):
            what = walk.choices(["say", "edit", "rewind", "redo", "kill"], [10, 2, 6, 4, 1])[0]
            if what == "say":
                ask(api.say("main", wire.NewMessage(content=f"m{step}"), 30))
                versions += [f"{text()}User: m{step}\n", f"{text()}User: m{step}\nAssistant: m{step}\n"]
                undo.clear()
            elif what == "edit":
                edited = f"User: e{step}\nAssistant: x\n"
                ask(api.replace("main", edited, ask(api.transcript("main")).etag))
                versions.append(edited)
                undo.clear()
            elif what == "rewind":
                to = walk.randrange(len(versions))
                if versions[to] == text() or versions[to].rpartition("\n")[0].rpartition("\n")[2].startswith("User"):
                    continue
                undo.append(len(versions) - 1)
                ask(api.rewind("main", wire.RewindRequest(to=to)))
                versions.append(versions[to])
            elif what == "redo" and undo:
                versions.append(versions[undo.pop()])
                ask(api.redo("main", wire.RedoRequest()))
            elif what == "kill":
                server.kill()
                server.start()
            assert ask(api.transcript("main")).text == text(), (step, what)
        for number, expected in enumerate(versions):
            shown = ask(api.read_at("main", number))
            assert wire_text(shown) == expected
    with sqlite3.connect(tmp_path / "sessions.db") as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def wire_text(shown: wire.SessionDetail) -> str:
    """Render the messages of a session."""
    return render(shown.history)
