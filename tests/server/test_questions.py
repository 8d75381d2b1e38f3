"""Questions of agents over HTTP: asked with a claim, answered from anywhere, once (A5)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs import api
from cfs.wire import MAX_QUESTION, NewMessage, SettingsPatch
from cfs_filesystem import Grant
from tests.filesystem.support import grant
from tests.server.guests import Guest, guests
from tests.server.restarting import Restarting
from tests.server.support import EventStream, ServerHarness, until

URL = "/v1/sessions/a"
ASKED = f"{URL}/questions"


async def held(client: httpx.AsyncClient) -> str:
    """Make a session whose turn an agent holds, and return the claim."""
    await client.post("/v1/sessions", json={"id": "a", "settings": {"driver": "agent"}})
    await client.post(f"{URL}/messages", content=b"build it")
    claim: str = (await client.post(f"{URL}/claim", json={})).json()["claim"]
    return claim


async def ask(client: httpx.AsyncClient, claim: str, text: str = "make test", **more: Any) -> str:
    answer = await client.post(ASKED, json={"claim": claim, "text": text, **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def test_a_question_is_asked_read_and_answered(server: ServerHarness) -> None:
    claim = await held(server.client)
    async with await EventStream.open(server.url, f"{URL}/events") as stream:
        first = await ask(server.client, claim, "make\ntest", directory="/srv/demo")
        second = await ask(server.client, claim, "sleep 9", background=True)
        (info,) = (await server.client.get("/v1/sessions")).json()["sessions"]
        assert info["open_questions"] == 2
        detail = (await server.client.get(URL)).json()
        assert [each["id"] for each in detail["questions"]] == [first, second]
        listed = (await server.client.get(ASKED)).json()["questions"]
        assert listed == detail["questions"]
        assert listed[0] | {
            "kind": "command", "text": "make\ntest", "choices": ["allow", "always", "deny"], "directory": "/srv/demo",
            "background": False, "state": "open", "answer": None, "by": None, "terminal": False, "asker": "local",
        } == listed[0]  # fmt: skip
        answered = (await server.client.post(f"{ASKED}/{first}", json={"answer": "allow"})).json()
        assert (answered["state"], answered["answer"], answered["by"]) == ("answered", "allow", "local")
        assert [each["id"] for each in (await server.client.get(ASKED)).json()["questions"]] == [second]
        every = (await server.client.get(ASKED, params={"all": "true"})).json()["questions"]
        assert [each["state"] for each in every] == ["answered", "open"]
        late = await server.client.post(f"{ASKED}/{first}", json={"answer": "deny"})
        assert (late.status_code, late.json()["answer"], late.json()["by"]) == (409, "allow", "local")
        events = await stream.take(3)
    assert [event.event for event in events] == ["question.asked", "question.asked", "question.answered"]


async def test_a_reader_waits_for_the_answer(server: ServerHarness) -> None:
    claim = await held(server.client)
    question = await ask(server.client, claim)
    log = server.store.get("a").log
    now = (await server.client.get(f"{ASKED}/{question}", params={"wait": 0.02})).json()
    assert now["state"] == "open", "it is shown as it is when the time is over"
    waiting = asyncio.create_task(server.client.get(f"{ASKED}/{question}", params={"wait": 30}))
    await until(lambda: log.broadcast.waiting)
    await server.client.post(f"{ASKED}/{question}", json={"answer": "deny"})
    assert (await waiting).json()["answer"] == "deny"


async def test_a_wait_ends_with_the_turn_the_session_or_the_server(server: ServerHarness) -> None:
    async def waits() -> asyncio.Task[httpx.Response]:
        claim = await held(server.client)
        question = await ask(server.client, claim)
        waiting = asyncio.create_task(server.client.get(f"{ASKED}/{question}", params={"wait": 30}))
        await until(lambda: server.store.get("a").log.broadcast.waiting)
        return waiting

    waiting = await waits()
    await server.client.post(f"{URL}/cancel")
    assert (await waiting).status_code == 404
    waiting = await waits()
    await server.client.delete(URL)
    assert (await waiting).status_code in (404, 410)
    waiting = await waits()
    await server.store.drain(0)
    assert (await waiting).status_code in (404, 503)


async def test_requests_with_a_key_ask_and_answer_once(server: ServerHarness) -> None:
    claim = await held(server.client)
    new = {"claim": claim, "text": "make test"}
    asked = [await server.client.post(ASKED, json=new, headers={"Idempotency-Key": "q"}) for _ in range(2)]
    assert asked[0].json() == asked[1].json()
    assert server.store.get("a").info(0).open_questions == 1
    place, said = f"{ASKED}/{asked[0].json()['id']}", {"answer": "deny"}
    answers = [await server.client.post(place, json=said, headers={"Idempotency-Key": "a"}) for _ in range(2)]
    assert [each.status_code for each in answers] == [200, 200]


async def test_of_many_answers_one_counts(server: ServerHarness) -> None:
    claim = await held(server.client)
    place = f"{ASKED}/{await ask(server.client, claim)}"
    given = ["allow", "deny"] * 4
    answers = await asyncio.gather(*(server.client.post(place, json={"answer": each}) for each in given))
    won = [each.json()["answer"] for each in answers if each.status_code == 200]
    assert [each.status_code for each in answers].count(409) == len(given) - 1
    assert [server.store.get("a").questions[place[-32:]].answer] == won


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": ""},
        {"text": "x" * (MAX_QUESTION + 1)},
        {"kind": "password"},
        {"choices": []},
        {"choices": ["x" * 1_025]},
        {"choices": ["allow"] * 9},
        {"directory": "x" * 5_000},
        {"claim": None},
    ],
)
async def test_a_question_with_a_wrong_form_is_refused(server: ServerHarness, wrong: dict[str, Any]) -> None:
    claim = await held(server.client)
    assert (await server.client.post(ASKED, json={"claim": claim, "text": "x", **wrong})).status_code == 422
    assert (await server.client.get(ASKED)).json() == {"questions": []}


# -- who may answer ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def callers(server: ServerHarness, **grants: Sequence[Grant]) -> AsyncIterator[tuple[dict[str, Guest], str]]:
    """Let these callers in; the one called `agent` has asked."""
    async with guests(server, agent=[grant("/")], **grants) as who:
        claim = await held(who["agent"].client)
        yield who, claim


async def test_an_agents_token_cannot_answer_its_own_question(server: ServerHarness) -> None:
    """Where tokens tell callers apart. With its claim it can note an answer, which is marked as the terminal's."""
    async with callers(server, person=[grant("/")]) as (who, claim):
        question = await ask(who["agent"].client, claim)
        place = f"{ASKED}/{question}"
        own = await who["agent"].client.post(place, json={"answer": "allow"})
        assert (own.status_code, "another token" in own.json()["detail"]) == (403, True)
        assert server.store.get("a").info(0).open_questions == 1
        made = await who["agent"].client.post("/v1/shares", json={"session": "a", "access": "write", "expires": None})
        shared = {"Authorization": f"Bearer {made.json()['token']}"}
        bearer = await server.client.post(place, json={"answer": "allow"}, headers=shared)
        assert bearer.status_code == 403, "nor can a share that it has made"
        other = (await who["person"].client.post(place, json={"answer": "allow"})).json()
        assert (other["asker"], other["by"], other["terminal"]) == ("agent", "person", False)
        second = f"{ASKED}/{await ask(who['agent'].client, claim)}"
        noted = (await who["agent"].client.post(second, json={"answer": "allow", "claim": claim})).json()
        assert (noted["by"], noted["terminal"]) == ("agent", True)


async def test_a_request_in_the_name_of_an_agent_answers_nothing(server: ServerHarness) -> None:
    """Also without tokens: what an agent's tools send by mistake has this header."""
    claim = await held(server.client)
    place = f"{ASKED}/{await ask(server.client, claim)}"
    refused = await server.client.post(place, json={"answer": "allow"}, headers={"X-CFS-Agent": "main"})
    assert refused.status_code == 403
    assert (await server.client.post(place, json={"answer": "allow"})).status_code == 200


async def test_who_may_only_read_sees_the_question_and_cannot_answer(server: ServerHarness) -> None:
    reader = [grant("/sessions/a", "read_binary", "file", "list")]
    async with callers(server, reader=reader) as (who, claim):
        question = await ask(who["agent"].client, claim)
        assert (await who["reader"].client.get(f"{ASKED}/{question}")).json()["text"] == "make test"
        refused = await who["reader"].client.post(f"{ASKED}/{question}", json={"answer": "allow"})
        assert refused.status_code == 403
        assert server.store.get("a").info(0).open_questions == 1


# -- restarts ---------------------------------------------------------------------------------------------------------


def test_questions_and_answers_survive_a_kill_of_the_server(tmp_path: Path) -> None:
    """Those that wait are still open, and an answer that was accepted is kept."""
    with ExitStack() as stack:
        server = Restarting(tmp_path, stack)
        client = server.direct
        client.call(api.create("a", SettingsPatch(driver="agent")))
        client.call(api.post("a", NewMessage(content="build it")))
        held = client.call(api.claim("a"))
        assert held is not None
        first, second = (client.call(api.ask("a", held.claim, text)) for text in ("make one", "make two"))
        client.call(api.answer("a", first.id, "allow"))
        server.kill()
        server.start()
        found = client.call(api.questions("a", every=True))
        assert [(each.text, each.state, each.answer) for each in found] == [
            ("make one", "answered", "allow"),
            ("make two", "open", None),
        ]
        assert client.call(api.answer("a", second.id, "deny")).answer == "deny"
