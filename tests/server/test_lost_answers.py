"""A server that is killed between an effect and its answer: the next one answers the repeated request."""

import threading
from contextlib import suppress
from typing import Any

import httpx

from cfs import Session, Unreachable, api
from cfs.api import KEY, REPLAYED
from cfs.wire import AgentFinish, AgentUpdate, Message, NewMessage, SettingsPatch
from tests.server.restarting import Restarting
from tests.server.support import EVENTS


def test_each_write_whose_answer_died_with_the_server_is_carried_out_once(here: Restarting) -> None:
    """Messages, sessions, copies, new names, deletions and settings (S2-S4, S9, S14)."""
    for name in ("written", "copied", "renamed", "deleted", "set", "filed"):
        here.direct.call(api.create(name))
    calls: dict[str, api.Call[Any]] = {
        "made": api.create("made", transcript="Assistant: hello\n"),
        "nameless": api.create(),
        "written": api.append("written", b"hello"),
        "new": api.post("new", NewMessage(content="hello")),
        "copied": api.fork("copied"),
        "renamed": api.rename("renamed", "other"),
        "deleted": api.delete("deleted"),
        "set": api.configure("set", SettingsPatch(temperature=0.5)),
        "cancelled": api.cancel("set"),
    }
    for key, call in calls.items():
        here.lose(call, key)
    here.kill()
    here.start()
    before = {info.id: info.event for info in here.direct.call(api.list_sessions()).sessions}
    assert len(before) == 5 + 4, "six but one, and four new ones"
    for key, call in calls.items():
        answer = here.repeat(call, key)
        assert (answer.status_code < 300, answer.headers.get(REPLAYED)) == (True, "true"), answer.text
        call.result(api.ApiResponse(answer.status_code, answer.headers, answer.content))
    for name in ("written", "new"):
        assert here.direct.call(api.transcript(name, 30)).text == "User: hello\nAssistant: hello\n"
    after = {info.id: info.event for info in here.direct.call(api.list_sessions()).sessions}
    assert {name: after[name] for name in ("made", "other", "copied", "set")} == {
        name: before[name] for name in ("made", "other", "copied", "set")
    }
    assert after.keys() == before.keys()


def test_a_message_is_answered_in_each_form_by_the_next_server(here: Restarting) -> None:
    call = api.post("a", NewMessage(content="two words"))
    here.lose(call, "k")
    here.direct.call(api.wait("a", 30))
    for _ in range(2):
        here.kill()
        here.start()
        with httpx.Client(base_url=here.process.url, headers={KEY: "k"}, trust_env=False, timeout=30) as client:
            sent: dict[str, Any] = {"url": call.request.path, "content": call.request.body}
            media = {"Content-Type": "application/json"}
            accepted = client.post(**sent, headers=media).json()
            reply = client.post(**sent, headers=media, params={"wait": "true", "transcript": "true"}).json()
            events = client.post(**sent, headers=media | EVENTS).text
        assert accepted["turn"] == reply["turn"]
        assert reply["transcript"] == "User: two words\nAssistant: two words\n"
        assert events.startswith("id: ")
        assert [line for line in events.splitlines() if line.startswith("event: ")][-1] == "event: turn.finished"


def test_an_agents_calls_whose_answers_died_with_the_server_are_carried_out_once(here: Restarting) -> None:
    """The claim returns the same lease, which still holds (S10)."""
    here.direct.call(api.create("a", SettingsPatch(driver="agent")))
    here.direct.call(api.append("a", b"work"))
    claim = api.claim("a", lease=300)
    here.lose(claim, "claim")
    here.kill()
    here.start()
    answer = here.repeat(claim, "claim")
    lease = claim.read(api.ApiResponse(answer.status_code, answer.headers, answer.content))
    assert lease is not None
    step = Message(role="assistant", content="step")
    update = api.update("a", lease.turn, AgentUpdate(claim=lease.claim, messages=(step,), lease=300))
    here.lose(update, "update")
    here.kill()
    here.start()
    assert here.repeat(update, "update").json()["claim"] == lease.claim
    finish = api.finish("a", lease.turn, AgentFinish(claim=lease.claim, reply="done"))
    here.lose(finish, "finish")
    here.kill()
    here.start()
    ended = here.repeat(finish, "finish").json()
    assert (ended["turn"], ended["reply"], ended["finish_reason"]) == (lease.turn, "done", "stop")
    assert here.direct.call(api.transcript("a")).text == "User: work\nAssistant: step\nAssistant: done\n"


def test_the_sdk_does_it_by_itself(here: Restarting) -> None:
    """One call of a program, a server that dies with the answer, and a new one: one message, and its reply (C9)."""
    with Session("a", url=here.wire.url) as session:
        here.wire.swallow(1)
        replies: list[str] = []

        def send() -> None:
            with suppress(Unreachable):  # the machine was too slow for its patience
                replies.append(session.send("hello", idempotency_key="k").text)

        sending = threading.Thread(target=send)
        sending.start()
        while not here.wire.swallowed:
            sending.join(0.001)
        here.kill()
        here.start()
        sending.join()
        send()
        assert set(replies) == {"hello"}
        assert session.history == ["User: hello", "Assistant: hello"]


def test_a_file_of_a_workspace_is_written_once(here: Restarting) -> None:
    request = api.Request("PUT", "/v1/files/workspaces/a/x", headers={"If-None-Match": "*"}, body=b"content")
    call: api.Call[object] = api.Call(request, lambda answer: answer.body)
    here.lose(call, "k")
    here.kill()
    here.start()
    assert here.repeat(call, "k").status_code == 201
    assert here.repeat(call, "another").status_code == 412
