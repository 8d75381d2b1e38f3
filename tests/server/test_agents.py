"""An agent that answers a session over HTTP (S10)."""

import asyncio
from typing import Any

import httpx
import pytest

from cfs_server.domain.turns import Turn
from cfs_server.sessions.session import Session
from tests.server.support import EventStream, ServerHarness, kinds, spoken, until

URL = "/v1/sessions/a"


async def claim(server: ServerHarness, **terms: float) -> httpx.Response:
    return await server.client.post(f"{URL}/claim", json=terms)


async def act(server: ServerHarness, held: dict[str, Any], what: str, **body: Any) -> httpx.Response:
    return await server.client.post(f"{URL}/turns/{held['turn']}/{what}", json={"claim": held["claim"]} | body)


async def test_an_agent_claims_streams_uses_tools_and_finishes(server: ServerHarness) -> None:
    await server.create("a", driver="agent")
    async with await EventStream.open(server.url, f"{URL}/messages", body=b"build it") as stream:
        assert server.store.get("a").state == "waiting_for_agent"
        held = (await claim(server)).json()
        assert (held["message"]["role"], held["message"]["content"]) == ("user", "build it")
        call = {"id": "c1", "name": "write_file", "arguments": {"path": "/x"}}
        messages = [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "done", "tool_call_id": "c1"},
        ]
        assert (await act(server, held, "update", text="all ")).status_code == 200
        assert (await act(server, held, "update", text="done", messages=messages)).status_code == 200
        finished = (await act(server, held, "finish", usage={"completion_tokens": 3})).json()
        events = await stream.rest()
    assert spoken(events) == finished["reply"] == "all done"
    assert finished["usage"]["completion_tokens"] == 3
    assert kinds(events)[-1] == "turn.finished"
    history = (await server.client.get(URL)).json()["history"]
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "assistant"]
    assert server.engine.requests == []


WORK = {
    "plan": [{"text": "write it", "status": "completed"}, {"text": "test it", "status": "in_progress"}],
    "jobs": [{"id": 1, "command": "make test", "state": "running"}],
    "budget": {"limit": "$0.50", "tokens": 1200, "cost": 0.25},
}


async def test_an_agent_says_how_far_its_work_is(server: ServerHarness) -> None:
    """A session shows what was said last, also when the turn is over; an event says each change."""
    await server.create("a", driver="agent")
    async with await EventStream.open(server.url, f"{URL}/messages", body=b"build it") as stream:
        held = (await claim(server)).json()
        assert (await server.client.get(URL)).json()["work"] is None
        for _ in range(2):
            assert (await act(server, held, "update", work=WORK)).status_code == 200
        assert (await act(server, held, "update", text="x")).status_code == 200
        assert (await server.client.get(URL)).json()["work"] == WORK
        done = WORK | {"jobs": []}
        assert (await act(server, held, "finish", work=done)).status_code == 200
        events = await stream.rest()
    assert (await server.client.get(URL)).json()["work"] == done
    assert [event.data for event in events if event.event == "work.reported"] != []
    assert kinds(events).count("work.reported") == 2, "the same once more is no event"
    held = {"turn": held["turn"], "claim": "other"}
    assert (await act(server, held, "update", work={})).status_code == 404


@pytest.mark.parametrize(
    "work",
    [
        {"plan": [{"text": ""}]},
        {"plan": [{"text": "x", "status": "late"}]},
        {"plan": [{"text": "x"}] * 51},
        {"jobs": [{"id": 0, "command": "x"}]},
        {"budget": {"limit": "five"}},
    ],
)
async def test_work_in_another_form_is_refused(server: ServerHarness, work: dict[str, Any]) -> None:
    await server.create("a", driver="agent")
    await server.say("a", "build it")
    held = (await claim(server)).json()
    assert (await act(server, held, "update", work=work)).status_code == 422


async def test_there_is_nothing_to_claim_while_nothing_waits_or_another_holds_the_turn(server: ServerHarness) -> None:
    await server.create("a", driver="agent")
    assert (await claim(server)).status_code == 204
    await server.say("a", "x")
    assert (await claim(server)).status_code == 200
    await server.say("a", "y")
    assert (await claim(server, wait=0.05)).status_code == 204


async def test_an_agent_may_wait_for_the_next_message(server: ServerHarness) -> None:
    await server.create("a", driver="agent")
    waiting = asyncio.create_task(claim(server, wait=30))
    await until(lambda: server.store.get("a").changed.waiting)
    await server.say("a", "x")
    assert (await waiting).json()["message"]["content"] == "x"


async def test_a_wait_for_a_message_ends_with_the_session(server: ServerHarness) -> None:
    await server.create("a", driver="agent")
    waiting = asyncio.create_task(claim(server, wait=30))
    await until(lambda: server.store.get("a").changed.waiting)
    await server.client.delete(URL)
    assert (await waiting).status_code == 410


async def test_a_wait_for_a_message_ends_with_the_server(server: ServerHarness) -> None:
    await server.create("a", driver="agent")
    waiting = asyncio.create_task(claim(server, wait=30))
    await until(lambda: server.store.get("a").changed.waiting)
    await server.store.drain(0)
    assert (await waiting).status_code == 503


async def test_an_agent_that_hangs_up_while_it_waits_takes_no_message(server: ServerHarness) -> None:
    await server.create("a", driver="agent")
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST {URL}/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"
    )
    writer.write(head.encode() + b'{"wait": 30}')
    waiting = server.store.get("a").changed
    await until(lambda: waiting.waiting > 0)
    writer.transport.abort()
    await until(lambda: waiting.waiting == 0)
    await server.say("a", "x")
    assert server.store.get("a").state == "waiting_for_agent"


async def test_the_lease_of_a_dead_agent_ends_and_its_message_waits_again(server: ServerHarness) -> None:
    await server.create("a", driver="agent")
    await server.say("a", "x")
    dead = (await claim(server, lease=0.02)).json()
    await server.until("a", "state.changed", 3)
    while server.store.get("a").state != "waiting_for_agent":
        await server.store.get("a").log.broadcast.wait()
    alive = (await claim(server)).json()
    assert (alive["turn"], alive["message"]) == (dead["turn"], dead["message"])
    assert alive["claim"] != dead["claim"]
    stolen = await act(server, alive | {"claim": dead["claim"]}, "finish", reply="mine")
    assert (stolen.status_code, stolen.json()["type"]) == (403, "urn:cfs:error:forbidden")
    assert (await act(server, alive, "finish", reply="done")).json()["reply"] == "done"
    assert await server.text("a") == "User: x\nAssistant: done\n"


async def test_an_agent_that_was_only_late_goes_on_with_its_turn(server: ServerHarness) -> None:
    """As long as nobody else has claimed it; a cancelled turn is over for good."""
    await server.create("a", driver="agent")
    await server.say("a", "x")
    held = (await claim(server, lease=0.02)).json()
    while server.store.get("a").state != "waiting_for_agent":
        await server.store.get("a").log.broadcast.wait()
    assert (await act(server, held | {"claim": "wrong"}, "update", text="no")).status_code == 404
    assert (await act(server, held, "update", text="I live")).status_code == 200
    assert server.store.get("a").state == "generating"
    assert (await claim(server)).status_code == 204
    assert (await act(server, held, "finish")).json()["reply"] == "I live"
    assert await server.text("a") == "User: x\nAssistant: I live\n"
    late = await act(server, held, "update", text="more")
    assert (late.status_code, late.json()["type"]) == (404, "urn:cfs:error:not-found")


async def test_agents_that_wait_are_not_woken_by_the_text_of_a_reply(
    server: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten agents try again when the session's state changes: not with each update, of which a reply has hundreds."""
    await server.create("a", driver="agent")
    await server.say("a", "x")
    held = (await claim(server)).json()
    tries = 0
    take = Session.claim

    def counted(session: Session, lease_seconds: float) -> Turn | None:
        nonlocal tries
        tries += 1
        return take(session, lease_seconds)

    monkeypatch.setattr(Session, "claim", counted)
    waiting = [asyncio.create_task(claim(server, wait=30)) for _ in range(10)]
    await until(lambda: server.store.get("a").changed.waiting == 10)
    for _ in range(20):
        assert (await act(server, held, "update", text="word ")).status_code == 200
    assert tries == 10
    await act(server, held, "finish")
    await server.client.patch(f"{URL}/settings", json={"driver": "model"})
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {409}


async def test_an_update_renews_the_lease(server: ServerHarness) -> None:
    await server.create("a", driver="agent")
    await server.say("a", "x")
    held = (await claim(server, lease=5)).json()
    renewed = (await act(server, held, "update", lease=600)).json()
    assert renewed["expires_at"] > held["expires_at"] + 500


async def test_an_agent_that_fails_says_so_and_the_next_message_can_be_claimed(server: ServerHarness) -> None:
    await server.create("a", driver="agent")
    await server.say("a", "x")
    await server.say("a", "y")
    held = (await claim(server)).json()
    spent = {"prompt_tokens": 30, "completion_tokens": 4}
    failed = (await act(server, held, "finish", error="no tools", usage=spent)).json()
    assert (failed["finish_reason"], failed["error"]) == ("error", "no tools")
    assert (await server.client.get(URL)).json()["tokens"] == 34
    assert (await claim(server)).json()["message"]["content"] == "y"


async def test_cancel_takes_the_turn_from_the_agent(server: ServerHarness) -> None:
    await server.create("a", driver="agent")
    await server.say("a", "x")
    held = (await claim(server)).json()
    await act(server, held, "update", text="half")
    await server.client.post(f"{URL}/cancel")
    assert (await act(server, held, "update", text="more")).status_code == 404
    assert await server.text("a") == "User: x\nAssistant: half [Cancelled]\n"


async def test_only_a_session_that_an_agent_drives_can_be_claimed(server: ServerHarness) -> None:
    await server.create("a")
    assert (await claim(server)).status_code == 409


@pytest.mark.parametrize("terms", [{"lease": 0}, {"lease": 1e9}, {"wait": -1}, {"wait": 61}])
async def test_terms_out_of_range_are_refused(server: ServerHarness, terms: dict[str, float]) -> None:
    await server.create("a", driver="agent")
    assert (await claim(server, **terms)).status_code == 422
