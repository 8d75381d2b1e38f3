"""The end of a server: turns finish or are marked, streams say goodbye, nothing hangs (P3)."""

import asyncio
import json
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.server.support import EventStream, Process, kinds, serving, spoken

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
