"""The first turn of a session may begin later, so that its writer can take the message back (S4)."""

from contextlib import ExitStack
from pathlib import Path

from cfs import api
from cfs.wire import NewMessage
from tests.server.restarting import Restarting
from tests.server.support import TEXT, ServerHarness, until

LATER = {"delay": "10"}


async def test_a_delayed_message_is_stored_and_its_turn_waits(server: ServerHarness) -> None:
    """It is in the transcript at once; whoever waits for the session lets the turn begin."""
    answer = await server.client.post("/v1/sessions/a/messages", content="hi", params=LATER)
    assert answer.status_code == 202
    shown = (await server.client.get("/v1/sessions/a")).json()
    assert (shown["state"], shown["queued"], shown["messages"]) == ("generating", 1, 1)
    assert server.engine.requests == []
    server.store.check_integrity()
    assert (await server.client.get("/v1/sessions/a", headers=TEXT, params={"wait": "20"})).text == (
        "User: hi\nAssistant: hi\n"
    )


async def test_a_delay_ends_by_itself(server: ServerHarness) -> None:
    await server.client.post("/v1/sessions/a/messages", content="hi", params={"delay": "0.01"})
    await until(lambda: server.store.get("a").idle)
    assert await server.text("a") == "User: hi\nAssistant: hi\n"


async def test_a_session_is_deleted_before_its_turn_begins(server: ServerHarness) -> None:
    """Nothing was generated, and no event says so."""
    await server.client.post("/v1/sessions/a/messages", content="hi", params=LATER)
    assert (await server.client.delete("/v1/sessions/a")).status_code == 204
    assert server.engine.requests == []


async def test_a_delayed_turn_is_cancelled_like_a_running_one(server: ServerHarness) -> None:
    """The message stays; the next one is answered."""
    await server.client.post("/v1/sessions/a/messages", content="hi", params=LATER)
    assert (await server.client.post("/v1/sessions/a/cancel")).json() == {"running": 0, "queued": 1}
    assert server.store.get("a").idle
    await server.client.post("/v1/sessions/a/messages", content="ho", params={"wait": "true"})
    assert await server.text("a") == "User: hi\nUser: ho\nAssistant: ho\n"


async def test_only_the_first_turn_waits(server: ServerHarness) -> None:
    """Who waits for the reply, or writes to a session at work, gets no delay of its own; the order stays."""
    waited = await server.client.post("/v1/sessions/a/messages", content="hi", params=LATER | {"wait": "true"})
    assert waited.json()["reply"] == "hi"
    for word in ("one", "two"):
        await server.client.post("/v1/sessions/b/messages", content=word, params=LATER)
    text = (await server.client.get("/v1/sessions/b", headers=TEXT, params={"wait": "20"})).text
    assert text == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"


async def test_a_replaced_transcript_may_wait_too(server: ServerHarness) -> None:
    await server.client.post("/v1/sessions", json={"id": "a"})
    headers = {"If-Match": "*", "Content-Type": "text/plain"}
    put = await server.client.put("/v1/sessions/a/transcript", content="User: hi\n", headers=headers, params=LATER)
    assert (put.json()["state"], server.engine.requests) == ("generating", [])
    assert (await server.client.get("/v1/sessions/a/wait")).json()["messages"] == 2


async def test_a_delay_has_a_limit(server: ServerHarness) -> None:
    for wrong in ("-1", "11", "nan", "x"):
        refused = await server.client.post("/v1/sessions/a/messages", content="hi", params={"delay": wrong})
        assert (refused.status_code, refused.json()["errors"][0]["at"]) == (422, "query.delay")
    assert len(server.store) == 0


def test_a_delayed_turn_goes_on_after_a_crash(tmp_path: Path) -> None:
    """The message was acknowledged, so it is answered: a restart ends the delay."""
    with ExitStack() as stack:
        server = Restarting(tmp_path / "data", stack)
        server.direct.call(api.append("a", b"hi", delay=10.0))
        assert server.direct.call(api.read("a")).messages == 1
        server.kill()
        server.start()
        assert [each.role for each in server.direct.call(api.read("a", wait=20)).history] == ["user", "assistant"]
        server.direct.call(api.post("a", NewMessage(content="ho")))
        assert server.direct.call(api.read("a", wait=20)).messages == 4
