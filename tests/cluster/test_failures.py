"""Replicas that crash, freeze, leave and join: nothing that was acknowledged is lost, work goes on elsewhere (P2)."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from outages import Proxy
from tests.cluster.support import Replicas, names, replica, replicas, say, text_of
from tests.postgres import PostgresServer, running_postgres
from tests.server.support import EventStream, Process, kinds
from tests.server.wire import Wire

pytestmark = pytest.mark.timeout(180)


@contextmanager
def writing(urls: list[str], sessions: list[str]) -> Iterator[dict[str, list[str]]]:
    """Write to sessions through all replicas during a block. The value lists the messages that were answered."""
    answered: dict[str, list[str]] = {session: [] for session in sessions}
    ended = threading.Event()

    def write(session: str) -> None:
        number = 0
        while not ended.is_set():
            text, url = f"m{number}", urls[number % len(urls)]
            try:
                assert say(url, session, text)["reply"] == text
            except httpx.TransportError:
                urls_left = [each for each in urls if each != url]
                assert say(urls_left[0], session, text)["reply"] == text  # the key makes it the same message
            answered[session].append(text)
            number += 1

    threads = [threading.Thread(target=write, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    try:
        yield answered
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def until_written(answered: dict[str, list[str]], more: int) -> None:
    """Wait until each session has got more answers."""
    before = {session: len(found) for session, found in answered.items()}
    while any(len(found) < before[session] + more for session, found in answered.items()):
        threading.Event().wait(0.02)


def require_whole(url: str, answered: dict[str, list[str]]) -> None:
    """Check that each session has exactly the messages that were answered, once and in order."""
    for session, messages in answered.items():
        lines = text_of(url, session).splitlines()
        assert lines == [line for text in messages for line in (f"User: {text}", f"Assistant: {text}")]


def living(found: Replicas, *ended: Process) -> list[str]:
    return [process.url for process in found.processes if process not in ended]


def test_the_sessions_of_a_killed_replica_go_on_at_the_others(database: str) -> None:
    with replicas(3, database) as found:
        sessions = [f"s{number}" for number in range(6)]
        victim = found.owner_of("s0")
        with writing(living(found, victim), sessions) as answered:
            until_written(answered, 3)
            victim.signal(signal.SIGKILL)
            until_written(answered, 3)
            found.until_served(*living(found, victim))
            until_written(answered, 3)
        for url in living(found, victim):
            require_whole(url, answered)
            assert names(url) == sessions


def test_a_frozen_replica_loses_its_slots_and_writes_nothing_when_it_wakes(database: str) -> None:
    with replicas(3, database) as found:
        sessions = [f"s{number}" for number in range(6)]
        frozen = found.owner_of("s0")
        others = living(found, frozen)
        with writing(others, sessions) as answered:
            until_written(answered, 2)
            frozen.signal(signal.SIGSTOP)
            found.until_served(*others)
            until_written(answered, 2)
            frozen.signal(signal.SIGCONT)
            assert say(frozen.url, "s0", "after")["reply"] == "after"  # relayed, or served after it was handed over
            until_written(answered, 2)
        found.until_served()
        lines = text_of(frozen.url, "s0").splitlines()
        assert lines.count("User: after") == 1
        assert [line for line in lines if "after" not in line] == [
            line for text in answered["s0"] for line in (f"User: {text}", f"Assistant: {text}")
        ]
        del answered["s0"]
        require_whole(frozen.url, answered)


async def test_what_waits_for_a_frozen_replica_goes_on_at_the_next_owner(database: str) -> None:
    """It would say nothing for as long as it is frozen."""
    with replicas(3, database) as found:
        await asyncio.to_thread(say, found.urls[0], "s0", "before")
        frozen = found.owner_of("s0")
        url = living(found, frozen)[0]
        streams = [await EventStream.open(url, path) for path in ("/v1/sessions/s0/events", "/v1/events")]
        frozen.signal(signal.SIGSTOP)
        assert (await asyncio.to_thread(say, url, "s0", "after"))["reply"] == "after"
        for stream in streams:
            assert await stream.next() is None
            stream.close()
        frozen.signal(signal.SIGCONT)


def test_a_replica_that_is_stopped_hands_everything_over(database: str) -> None:
    """No request fails, except with 503 and the time after which it can be repeated."""
    with replicas(3, database) as found:
        sessions = [f"s{number}" for number in range(6)]
        leaving = found.owner_of("s0")
        with writing(living(found, leaving), sessions) as answered:
            until_written(answered, 2)
            leaving.signal(signal.SIGTERM)
            code, log = leaving.ended()
            assert code == 0, log
            assert "journal.incomplete" not in log
            until_written(answered, 2)
        require_whole(living(found, leaving)[0], answered)


async def test_all_who_wait_for_a_replica_that_stops_or_at_it_are_woken(database: str) -> None:
    """A write that may not be repeated says so: it was stored, or whether it was stored is not known."""
    with replicas(2, database, "--scripted-interval", "600", "--shutdown-grace", "0.1") as found:
        here = "s0"
        leaving, (other,) = found.owner_of(here), found.others(here)
        there = next(name for name in map("t{}".format, range(1000)) if found.owner_of(name) is other)
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            for name in (here, there):
                assert (await client.post(f"{leaving.url}/v1/sessions/{name}/messages", content=b"x")).is_success
        ways = [(leaving, here), (other, here), (leaving, there)]
        reads = [
            (process.url, f"/v1/sessions/{name}{route}") for process, name in ways for route in ("?wait=60", "/wait")
        ]
        reads += [(process.url, f"/dav/sessions/{name}") for process, name in ways]
        writes = [(process.url, f"/v1/sessions/{name}/messages?wait=60") for process, name in ways]
        wires = [Wire(url) for url, _ in (*reads, *writes, *writes)]
        for wire in wires:
            await wire.ask("GET", b"/healthz")
        asked = [wire.ask("GET", path.encode()) for wire, (_, path) in zip(wires, reads, strict=False)]
        for number, (wire, (_, path)) in enumerate(zip(wires[len(reads) :], (*writes, *writes), strict=True)):
            key = {} if number < len(writes) else {"Idempotency_Key": f"key {number}"}
            asked.append(wire.ask("POST", path.encode(), b"x", Content_Type="text/plain", **key))
        waiting = [asyncio.create_task(each) for each in asked]
        streams = [await EventStream.open(process.url, "/v1/events") for process in (leaving, other)]
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            for name, queued in ((here, 4), (there, 2)):
                while (await client.get(f"{other.url}/v1/sessions/{name}")).json()["queued"] < queued:
                    pass
        leaving.signal(signal.SIGTERM)
        answers = await asyncio.gather(*waiting)
        for stream in streams:
            await stream.rest()
            stream.close()
        code, log = await asyncio.to_thread(leaving.ended)
        for wire in wires:
            await wire.close()
    again = [(answer.status, b"\nretry-after: 1\r" in answer.head.lower()) for answer in answers]
    assert again == [(503, True)] * len(reads) + [(503, False)] * len(writes) + [(503, True)] * len(writes)
    assert (code, "exceeded" in log) == (0, False), log


def test_a_replica_that_joins_gets_its_part(database: str) -> None:
    with replicas(2, database) as found:
        sessions = [f"s{number}" for number in range(6)]
        with writing(found.urls, sessions) as answered:
            until_written(answered, 2)
            with replica(database) as joined:
                found.until_served(*found.urls, joined.url)
                until_written(answered, 2)
                require = {session: list(messages) for session, messages in answered.items()}
                assert all(text_of(joined.url, session).count("User:") >= len(require[session]) for session in sessions)
                joined.signal(signal.SIGTERM)
                assert joined.ended()[0] == 0
            until_written(answered, 2)
        require_whole(found.urls[0], answered)


async def test_a_stream_resumes_at_the_next_owner_without_a_gap(database: str) -> None:
    with replicas(3, database) as found:
        await asyncio.to_thread(say, found.urls[0], "s0", "first")
        victim = found.owner_of("s0")
        left, right = living(found, victim)
        stream = await EventStream.open(victim.url, "/v1/sessions/s0/events?after=0")
        seen = await stream.until("turn.finished")
        victim.signal(signal.SIGKILL)
        while (event := await stream.next()) is not None:
            seen.append(event)
        stream.close()
        await asyncio.to_thread(say, left, "s0", "second")
        headers = {"Last-Event-ID": seen[-1].id}
        async with await EventStream.open(right, "/v1/sessions/s0/events", headers) as resumed:
            more = await resumed.until("turn.finished")
        assert "stale" not in kinds(more)
        assert [event.event for event in more].count("message.added") == 2


async def test_the_stream_of_all_sessions_misses_and_repeats_nothing(database: str) -> None:
    """Its reader goes from replica to replica, also when one of them is killed."""
    with replicas(3, database) as found:
        sessions = [f"s{number}" for number in range(6)]
        victim = found.owner_of("s0")
        urls = living(found, victim)
        cursor, seen = "0", list[tuple[str, int]]()

        async def read(url: str, until: int) -> None:
            nonlocal cursor
            while len([None for _, number in seen if number]) < until:
                headers = {} if cursor == "0" else {"Last-Event-ID": cursor}
                path = "/v1/events?after=0" if cursor == "0" else "/v1/events"
                async with await EventStream.open(url, path, headers) as stream:
                    while (event := await stream.next()) is not None:
                        assert event.event != "stale"
                        cursor = event.id
                        if event.event == "message.added":
                            said = httpx.Response(200, content=event.data).json()
                            seen.append((said["session"], said["data"]["index"]))
                        if len(seen) >= until:
                            return

        for session in sessions:
            await asyncio.to_thread(say, urls[0], session, "first")
        await read(urls[0], 12)
        victim.signal(signal.SIGKILL)
        for session in sessions:
            await asyncio.to_thread(say, urls[1], session, "second")
        await read(urls[1], 24)
        await read(urls[0], 24)
        assert sorted(seen) == sorted((session, index) for session in sessions for index in range(4))
        for session in sessions:
            assert [index for name, index in seen if name == session] == [0, 1, 2, 3]


def test_while_the_database_is_away_reads_go_on_and_writes_wait() -> None:
    with running_postgres() as server:
        url = server.url(server.new_database())
        with replicas(2, url) as found:
            for number in range(4):
                say(found.urls[0], f"s{number}", "before")
            server.stop(signal.SIGINT)
            owner = found.processes[0]
            mine = [n for n in range(4) if text_if_here(owner.url, f"s{n}") is not None]
            refused = httpx.post(
                f"{owner.url}/v1/sessions/s{mine[0]}/messages", content=b"lost?", timeout=60, trust_env=False
            )
            assert refused.status_code == 503
            assert "Retry-After" in refused.headers
            until_not_ready(owner.url)  # the refusal may be that of the other replica
            server.start()
            for number in range(4):
                for replica_url in found.urls:
                    say(replica_url, f"s{number}", f"after {replica_url}")
            found.until_served()
            for number in range(4):
                assert "User: before" in text_of(found.urls[1], f"s{number}")


def until_not_ready(url: str) -> None:
    """Wait until a replica says that it cannot serve."""
    while httpx.get(f"{url}/readyz", timeout=60, trust_env=False).status_code != 503:
        time.sleep(0.02)


def text_if_here(url: str, session: str) -> str | None:
    """Return the transcript of a session if the replica has it or can reach its owner."""
    answer = httpx.get(f"{url}/v1/sessions/{session}", headers={"Accept": "text/plain"}, timeout=60, trust_env=False)
    return answer.text if answer.status_code == 200 else None


def test_a_replica_that_is_cut_off_from_the_database_shows_nothing_old(database: str, postgres: PostgresServer) -> None:
    way = Proxy(postgres.port)
    with replica(database) as one, replica(database.replace(f":{postgres.port}/", f":{way.port}/")) as cut_off:
        found = Replicas([one, cut_off], database)
        found.until_served()
        session = next(name for name in map(str, range(100)) if found.owner_of(name) is cut_off)
        say(one.url, session, "before")
        way.cut()
        found.until_served(one.url)
        say(one.url, session, "after")
        shown = text_if_here(cut_off.url, session)
        assert shown is None or "after" in shown
        way.mend()
        found.until_served()
        assert text_of(cut_off.url, session) == text_of(one.url, session)


def test_slots_are_spread_over_several_databases(postgres: PostgresServer) -> None:
    with running_postgres() as second:
        urls = f"{postgres.url(postgres.new_database())} {second.url(second.new_database())}"
        with replica(urls) as one, replica(urls) as two:
            sessions = [f"s{number}" for number in range(12)]
            for session in sessions:
                assert say(one.url, session, "hello")["reply"] == "hello"
                assert text_of(two.url, session) == "User: hello\nAssistant: hello\n"
            assert names(two.url) == sorted(sessions)
            second.stop(signal.SIGQUIT)
            answers = [
                httpx.post(f"{url}/v1/sessions/{session}/messages", content=b"more", timeout=60, trust_env=False)
                for session in sessions
                for url in (one.url,)
            ]
            statuses = [answer.status_code for answer in answers]
            assert 202 in statuses, "the sessions of the other database go on"
            assert 503 in statuses
            second.start()
            for session in sessions:
                assert say(two.url, session, "again")["reply"] == "again"
