"""The server with the real worker and the embedded model, spoken to by curl (issue: must be seen to work)."""

import asyncio
import json
import os
import signal
import subprocess

import httpx
import psutil
import pytest

from cfs.contract.sse import ServerSentEvent, SSEDecoder
from cfs_server.engine.host.process import Heartbeat
from tests.pacing.gate import Gate, closed
from tests.server.support import EventStream, Process, data, kinds, serving, spoken

NAMES = [
    "Alice",
    "Tom",
    "Maria",
    "Peter",
    "Anna",
    "Laura",
    "Paul",
    "Emma",
    "Lucas",
    "Julia",
    "David",
    "Sarah",
    "Daniel",
    "Sophie",
    "Martin",
    "Helen",
    "Oscar",
    "Clara",
    "Felix",
    "Nina",
    "Robert",
    "Diana",
    "Simon",
    "Karen",
    "Victor",
    "Linda",
    "George",
    "Eva",
    "Frank",
    "Susan",
    "Henry",
    "Marta",
    "Ivan",
    "Rosa",
    "Jack",
    "Olga",
    "Kevin",
    "Paula",
    "Leon",
    "Vera",
    "Mark",
    "Irene",
    "Noah",
    "Sandra",
    "Otto",
    "Teresa",
    "Philip",
    "Wendy",
    "Ralph",
    "Zoe",
]

ENDLESS = {
    "stop": ["\0never"],
    "temperature": 5.0,
    "min_p": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 103,
    "max_tokens": 600,
}
"""The next token can be any. With most other seeds one of the first hundreds of tokens ends the reply."""


def curl(*arguments: str) -> str:
    """Run curl as a user would; what it prints."""
    return subprocess.run(["curl", "-sS", *arguments], capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_three_commands_of_the_readme(model_server: Process) -> None:
    url = f"{model_server.url}/v1/sessions/chat1"
    stream = curl("-N", "-d", "My name is Alice.", "-H", "Accept: text/event-stream", f"{url}/messages")
    events = SSEDecoder().feed(stream.encode())
    assert stream.count("\nid: ") + stream.startswith("id: ") == len(events), "an id on each"
    assert kinds(events)[:2] == ["message.added", "turn.started"]
    assert kinds(events)[-2:] == ["message.added", "turn.finished"]
    assert "token" in kinds(events), "in one piece where the reader is slower than the model"
    assert spoken(events).strip() == data(events[-1])["reply"]
    reply = json.loads(curl("-d", "What is my name?", f"{url}/messages?wait=true"))
    assert "Alice" in reply["reply"]
    assert reply["usage"]["cached_tokens"] > 0, "the first turn was not read again"
    lines = curl("-H", "Accept: text/plain", url).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["User", "Assistant"] * 2
    assert lines[0] == "User: My name is Alice."


def test_curl_takes_a_file_and_chinese_and_an_ampersand_as_they_are(model_server: Process) -> None:
    url = f"{model_server.url}/v1/sessions/%E4%BD%A0%E5%A5%BD"
    curl("--data-binary", "你好 & a=b%20c\n", f"{url}/messages?wait=true")
    assert json.loads(curl(url))["history"][0]["content"] == "你好 & a=b%20c"
    assert curl("-o", os.devnull, "-w", "%{http_code}", "-X", "DELETE", url) == "204"


async def test_tokens_arrive_while_the_model_goes_on(model_server: Process, model_gate: Gate) -> None:
    """What has arrived is shown to others, too; and there is still a turn to cancel when the second piece is there."""
    url = "/v1/sessions/slowly"
    body = json.dumps({"content": "Tell me a joke.", "settings": ENDLESS}).encode()
    headers = {"Content-Type": "application/json"}
    with closed(model_gate):
        async with (
            httpx.AsyncClient(base_url=model_server.url, timeout=60) as client,
            await EventStream.open(model_server.url, f"{url}/messages", headers, body) as stream,
        ):
            times = [time_of((await stream.until("token"))[-1])]
            partial = (await client.get(url)).json()["partial"]
            while times[-1] == times[0]:
                model_gate.close()
                times.append(time_of((await stream.until("token"))[-1]))
            cancelled = (await client.post(f"{url}/cancel")).json()
            rest = await stream.rest()
    assert cancelled["running"] == 1
    assert data(rest[-1])["reply"].startswith(partial.strip())
    times += [time_of(event) for event in rest if event.event == "token"]
    assert times == sorted(times)


def time_of(event: ServerSentEvent) -> float:
    return float(json.loads(event.data)["time"])


async def test_fifty_conversations_at_once_are_answered_each_by_its_own_name(model_server: Process) -> None:
    async with httpx.AsyncClient(base_url=model_server.url, timeout=110) as client:

        async def converse(n: int) -> tuple[str, str]:
            name, url = NAMES[n], f"/v1/sessions/crowd{n}"
            cold = {"temperature": 0.0, "max_tokens": 24}
            await client.post(f"{url}/messages?wait=true", json={"content": f"My name is {name}.", "settings": cold})
            asked = {"content": "What is my name?", "settings": cold}
            return name, (await client.post(f"{url}/messages?wait=true", json=asked)).json()["reply"]

        answers = await asyncio.gather(*(converse(n) for n in range(len(NAMES))))
        wrong = [(name, reply) for name, reply in answers if name not in reply]
        assert wrong == []
        async with await EventStream.open(model_server.url, "/v1/events?after=0") as stream:
            marks = [event async for event in _marks(stream, "crowd", 100)]
    running: set[str] = set()
    together = 0
    for kind, session in marks:
        if kind == "turn.started":
            assert session not in running, "the turns of one session never overlap"
            running.add(session)
        else:
            running.remove(session)
        together = max(together, len(running))
    assert together > 1, "those of different sessions do"


async def _marks(stream: EventStream, prefix: str, turns: int):  # type: ignore[no-untyped-def]
    """The beginnings and ends of so many turns."""
    ends = 0
    while ends < turns:
        (event,) = await stream.take(1)
        assert event.event != "stale"
        session = json.loads(event.data)["session"]
        if session.startswith(prefix) and event.event in ("turn.started", "turn.finished"):
            ends += event.event == "turn.finished"
            yield event.event, session


async def test_cancel_stops_the_model_and_the_next_turn_runs(model_server: Process, model_gate: Gate) -> None:
    url = "/v1/sessions/stopped"
    async with httpx.AsyncClient(base_url=model_server.url, timeout=60) as client:
        await client.post("/v1/sessions", json={"id": "stopped", "settings": ENDLESS})
        with closed(model_gate):
            await client.post(f"{url}/messages", json={"content": "Count to a thousand."})
            async with await EventStream.open(model_server.url, f"{url}/events?after=0") as stream:
                await stream.until("token")
                await client.post(f"{url}/messages", json={"content": "Hello.", "settings": {"max_tokens": 5}})
                assert (await client.post(f"{url}/cancel")).json() == {"running": 1, "queued": 0}
                cancelled = (await stream.until("turn.finished"))[-1]
                model_gate.open()
                next_turn = (await stream.until("turn.finished"))[-1]
        assert data(cancelled)["finish_reason"] == "cancelled"
        assert data(cancelled)["reply"].endswith("[Cancelled]")
        assert data(next_turn)["finish_reason"] in ("stop", "length")
        steps = model_gate.steps
        assert await tokens_generated(client) == await tokens_generated(client), "the model stands still"
        assert model_gate.steps == steps


async def tokens_generated(client: httpx.AsyncClient) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith("cfs_engine_tokens_generated_total ")).split()[1])


@pytest.mark.timeout(120)
async def test_the_worker_dies_during_ten_streams_and_nothing_else_does(gate: Gate) -> None:
    with serving("--log-format", "json") as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
            await client.post("/v1/sessions/0/messages?wait=true", content="My name is Alice.")
            history = (await client.get("/v1/sessions/0")).json()["history"]
            body = json.dumps({"content": "Tell me a long story.", "settings": {**ENDLESS, "max_tokens": 300}}).encode()
            headers = {"Content-Type": "application/json"}
            gate.close()
            streams = [
                await EventStream.open(process.url, f"/v1/sessions/{n}/messages", headers, body) for n in range(10)
            ]
            await streams[0].until("token")
            (worker,) = psutil.Process(process.process.pid).children()
            worker.send_signal(signal.SIGKILL)
            gate.open()
            rests = [await stream.rest() for stream in streams]
            assert {rest[-1].event for rest in rests} == {"turn.finished"}, "begun again, or begun by the next worker"
            assert "turn.interrupted" in kinds(rests[0])
            for stream in streams:
                stream.close()
            answers = [await client.post(f"/v1/sessions/{n}/messages?wait=30", content="Hello!") for n in range(10)]
            assert [answer.json()["error"] for answer in answers] == [None] * 10
            assert (await client.get("/v1/sessions/0")).json()["history"][:2] == history
            ready = (await client.get("/readyz")).json()
            assert (ready["status"], ready["restarts"]) == ("ready", 1)
            chosen = ready["model"]["engine"]
            assert (chosen["family"], chosen["policy"], chosen["window"]) == ("attention", "ranges", "none")
            told = next(line for line in (await client.get("/metrics")).text.splitlines() if "cfs_engine_info{" in line)
            assert 'family="attention",flash_attention="true"' in told
            assert f'pool_tokens="{chosen["pool_tokens"]}"' in told
            process.signal()
            code, _ = await asyncio.to_thread(process.ended)
            assert code == 0
        assert not psutil.pid_exists(worker.pid)


@pytest.mark.timeout(120)
async def test_a_turn_that_kills_two_workers_fails(gate: Gate) -> None:
    """S5: a prompt that crashes the engine cannot do so for ever. Streams show the first reply as void, not twice."""
    with serving() as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
            body = json.dumps({"content": "Tell me a long story.", "settings": {**ENDLESS, "max_tokens": 600}}).encode()
            headers = {"Content-Type": "application/json"}
            async with await EventStream.open(process.url, "/v1/sessions/a/messages", headers, body) as stream:
                for after in ("turn.started", "turn.interrupted"):
                    gate.close()
                    await stream.until(after)
                    await stream.until("token")
                    (worker,) = psutil.Process(process.process.pid).children()
                    worker.send_signal(signal.SIGKILL)
                gate.open()
                events = await stream.rest()
            assert "turn.interrupted" not in kinds(events), "it begins again once"
            assert events[-1].event == "turn.failed"
            reply = data(events[-1])["reply"]
            assert reply.startswith("[Error: ")
            assert "SIGKILL" in reply
            answer = await client.post("/v1/sessions/a/messages?wait=30", content="Hello!")
            assert answer.json()["error"] is None


@pytest.mark.timeout(120)
async def test_completions_of_a_dead_worker_begin_again_or_end_in_the_form_of_the_protocol(gate: Gate) -> None:
    """A client that has no text of the reply notices nothing. A stream that has some gets an error and no more text."""
    with serving() as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
            asked = {"messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 600}
            asked |= {"temperature": 1.9, "seed": 6}  # of the seeds, one with which it does not end by itself
            gate.close(20)
            whole = asyncio.create_task(client.post("/v1/chat/completions", json=asked))
            async with client.stream("POST", "/v1/chat/completions", json=asked | {"stream": True}) as stream:
                lines = stream.aiter_lines()
                async for line in lines:
                    if '"content":"' in line:
                        break
                (worker,) = psutil.Process(process.process.pid).children()
                worker.send_signal(signal.SIGKILL)
                gate.open()
                rest = [line async for line in lines if line]
            assert '"code": "worker_crashed"' in rest[-1], rest[-3:]
            answer = (await whole).json()
            assert answer["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.timeout(120)
async def test_a_worker_that_hangs_is_replaced_and_one_of_a_suspended_machine_is_not(gate: Gate) -> None:
    """`kill -STOP` is noticed, and shown; a server that stood still itself draws no conclusions.

    That is seen from its clock, which goes on by some seconds from one moment to the next.
    """
    with serving("--engine-hang-seconds", "3", PACE_CLOCK="1") as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:
            (worker,) = psutil.Process(process.process.pid).children()
            worker.suspend()
            for seconds in (Heartbeat().idle, 60.0):  # it is asked for a sign of life, and the machine stands still
                gate.pass_time(seconds)
                for _ in range(3):
                    await client.get("/v1/sessions")  # in which the server looks at its clock
            worker.resume()
            assert (await client.post("/v1/sessions/a/messages?wait=30", content="Hello!")).json()["error"] is None
            assert (await client.get("/readyz")).json()["restarts"] == 0

            gate.close()
            body = json.dumps({"content": "Tell me a long story.", "settings": ENDLESS}).encode()
            headers = {"Content-Type": "application/json"}
            async with await EventStream.open(process.url, "/v1/sessions/b/messages", headers, body) as stream:
                await stream.until("token")
                worker.suspend()
                gate.open()
                ready = await client.get("/readyz")
                assert ready.status_code == 503
                assert "the engine is restarting: the engine's worker process hung" in ready.json()["detail"]
                answer = await client.post("/v1/sessions/c/messages?wait=30", content="Hello!")
                rest = await stream.rest()
            assert "turn.interrupted" in kinds(rest)
            assert rest[-1].event == "turn.finished", "begun again"
            assert answer.json()["error"] is None, "it was replayed"
            assert (await client.get("/readyz")).json()["restarts"] == 1
            assert 'cfs_engine_restarts_total{reason="hang"} 1.0' in (await client.get("/metrics")).text.splitlines()
