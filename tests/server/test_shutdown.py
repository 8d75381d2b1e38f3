"""The end of a server: turns finish or are marked, streams say goodbye, nothing hangs (P3)."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.support import EventStream, Process, kinds, serving, spoken
from tests.server.wire import Wire

Call = tuple[str, bytes, bytes, dict[str, str]]
"""A method, a target, a body and headers."""
SCRIPTED = ("--engine", "scripted", "--log-format", "json")


@pytest.fixture
def slow() -> Iterator[Process]:
    """A server whose turns take as long as they have words, times a tenth of a second."""
    with serving(*SCRIPTED, "--scripted-interval", "0.1", "--shutdown-grace", "30") as process:
        yield process


def defects(errors: str) -> list[str]:
    """Lines of the log that no orderly end should have."""
    return [line for line in errors.splitlines() if json.loads(line)["level"] in ("error", "critical")]


async def ended(process: Process) -> tuple[int, str]:
    return await asyncio.to_thread(process.ended)


async def test_a_hundred_streams_and_a_running_turn_see_the_end(slow: Process) -> None:
    streams = [await EventStream.open(slow.url, "/v1/events") for _ in range(100)]
    turn = await EventStream.open(slow.url, "/v1/sessions/a/messages", body=b"one two three")
    await turn.until("token")
    slow.signal()
    assert spoken(await turn.until("turn.finished")) == " two three"
    for stream in streams:
        events = await stream.rest()
        assert kinds(events)[-3:] == ["turn.finished", "state.changed", "goodbye"]
        assert stream.ended, "the answer was completed, not cut"
        assert events[-1].id
    code, errors = await ended(slow)
    assert (code, defects(errors)) == (0, [])
    for stream in (*streams, turn):
        stream.close()


async def test_while_turns_finish_nothing_new_is_taken(slow: Process) -> None:
    async with httpx.AsyncClient(base_url=slow.url, timeout=60) as client:
        waiting = asyncio.create_task(client.post("/v1/sessions/a/messages?wait=true", content=b"1 2 3 4 5 6 7 8"))
        async with await EventStream.open(slow.url, "/v1/events") as stream:
            await stream.until("token")
            slow.signal()
            while (await client.get("/readyz")).status_code != 503:
                pass
            refused = await client.post("/v1/sessions/b/messages", content=b"x")
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
            assert (await waiting).json()["reply"] == "1 2 3 4 5 6 7 8"
    code, errors = await ended(slow)
    assert (code, defects(errors)) == (0, [])


async def test_a_turn_that_does_not_finish_in_time_is_marked() -> None:
    with serving(*SCRIPTED, "--scripted-interval", "60", "--shutdown-grace", "0.1") as process:
        async with await EventStream.open(process.url, "/v1/sessions/a/messages", body=b"never said") as stream:
            await stream.until("turn.started")
            process.signal()
            (failed,) = [event for event in await stream.rest() if event.event == "turn.failed"]
        assert json.loads(failed.data)["data"]["error"] == "the server was shut down"
        assert (await ended(process))[0] == 0


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_at_once(first: signal.Signals) -> None:
    with serving(*SCRIPTED, "--scripted-interval", "600", "--shutdown-grace", "600") as process:
        async with await EventStream.open(process.url, "/v1/sessions/a/messages", body=b"x") as stream:
            await stream.until("turn.started")
            process.signal(first)
            async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
                while (await client.get("/readyz")).status_code != 503:
                    pass
            process.signal(signal.SIGTERM)
            code, errors = await ended(process)
        assert (code, "Traceback" in errors) == (128 + signal.SIGTERM, False)


async def test_an_idle_server_with_idle_clients_ends_promptly() -> None:
    with serving(*SCRIPTED) as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
            await client.get("/healthz")
            process.signal()
            code, errors = await ended(process)
        assert (code, defects(errors)) == (0, [])


async def held_session(client: httpx.AsyncClient, name: str) -> str:
    """Make a session whose turn an agent holds, and return the path of the agent's open question."""
    await client.post("/v1/sessions", json={"id": name, "settings": {"driver": "agent"}})
    await client.post(f"/v1/sessions/{name}/messages", content=b"build it")
    claim = (await client.post(f"/v1/sessions/{name}/claim", json={})).json()["claim"]
    asked = await client.post(f"/v1/sessions/{name}/questions", json={"claim": claim, "text": "make test"})
    return f"/v1/sessions/{name}/questions/{asked.json()['id']}"


async def calls_that_wait(client: httpx.AsyncClient) -> tuple[list[Call], list[Call]]:
    """Return calls of all routes that wait: those that may be repeated, and those whose message is stored."""
    question = await held_session(client, "held")
    await client.post("/v1/sessions", json={"id": "unasked", "settings": {"driver": "agent"}})
    for name in ("busy", "above/below"):
        await client.post(f"/v1/sessions/{name}/messages", content=b"x")
    json_, text = {"content_type": "application/json"}, {"content_type": "text/plain"}
    chat = b'{"messages":[{"role":"user","content":"x"}],"model":"scripted","max_tokens":9}'
    return [
        ("GET", b"/v1/sessions/busy?wait=60", b"", {}),
        ("GET", b"/v1/sessions/above?wait=60", b"", {}),
        ("GET", b"/v1/sessions/busy/wait?timeout=60", b"", {}),
        ("GET", question.encode() + b"?wait=60", b"", {}),
        ("GET", b"/dav/sessions/busy", b"", {}),
        ("POST", b"/v1/sessions/unasked/claim", b'{"wait":60}', json_),
        ("POST", b"/v1/chat/completions", chat, json_),
        ("POST", b"/v1/messages", chat, json_),
    ], [
        ("POST", b"/v1/sessions/said/messages?wait=60", b"x", text),
        ("POST", b"/v1/chat/completions", chat, json_ | {"X_CFS_Session": "chat"}),
        ("POST", b"/v1/responses", b'{"input":"x","model":"scripted"}', json_),
    ]


async def test_all_who_wait_are_woken_and_told_whether_to_repeat(tmp_path: Path) -> None:
    """What was stored goes on at the next start, so it is not to be sent again."""
    grace = ("--scripted-interval", "600", "--shutdown-grace", "0.1")
    with serving(*SCRIPTED, *grace, CFS_DATA_DIR=str(tmp_path)) as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
            repeatable, stored = await calls_that_wait(client)
            wires = [Wire(process.url) for _ in (*repeatable, *stored)]
            for wire in wires:
                await wire.ask("GET", b"/healthz")
            waiting = [
                asyncio.create_task(wire.ask(method, target, body, **fields))
                for wire, (method, target, body, fields) in zip(wires, (*repeatable, *stored), strict=True)
            ]
            await client.get("/healthz")  # answered after the requests before it have begun
        process.signal()
        answers = await asyncio.gather(*waiting)
        code, errors = await ended(process)
        for wire in wires:
            await wire.close()
    again = [(answer.status, b"\nretry-after: 5\r" in answer.head.lower()) for answer in answers]
    assert again == [(503, True)] * len(repeatable) + [(503, False)] * len(stored)
    assert (code, defects(errors)) == (0, [])
