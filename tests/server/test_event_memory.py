"""What the logs of events hold of large messages, in a real server (H7, S11)."""

import json

import httpx
import psutil
import pytest

from tests.server.support import JSON, EventStream, data, serving

MEGABYTE = 1 << 20
ROUNDS = 100
FLAGS = ("--engine", "scripted", "--log-level", "warning", "--all-event-bytes", str(24 * MEGABYTE))
LARGE = json.dumps({"content": "x" * (MEGABYTE), "generate": False}).encode()
PLAIN = {"Content-Type": "text/plain", "If-Match": "*"}


@pytest.mark.parametrize("way", ["delete", "replace"])
async def test_messages_that_are_no_longer_there_fill_no_memory_and_slow_readers_go_on(way: str) -> None:
    with serving(*FLAGS) as process:
        async with httpx.AsyncClient(base_url=process.url, trust_env=False, timeout=60) as client:
            server = psutil.Process(process.process.pid)
            before = server.memory_info().rss
            async with await EventStream.open(process.url, "/v1/events") as asleep:
                for n in range(ROUNDS):
                    session = f"/v1/sessions/s{n % 3}"
                    said = await client.post(f"{session}/messages", content=LARGE, headers=JSON)
                    assert said.status_code == 202
                    if way == "delete":
                        assert (await client.delete(session)).status_code == 204
                    else:
                        assert (await client.put(f"{session}/transcript", content=b"", headers=PLAIN)).is_success
                assert server.memory_info().rss - before < 75 * MEGABYTE
                missed = await asleep.until("stale")
                for n in range(3):
                    await client.post("/v1/sessions/last/messages", json={"content": f"{n}", "generate": False})
                events = await asleep.take(7)
    assert missed[0].event == "session.created"
    assert [data(event)["message"]["content"] for event in events if event.event == "message.added"] == ["0", "1", "2"]
    positions = [json.loads(event.data)["position"] for event in events]
    assert positions == list(range(positions[0], positions[0] + 7))
    assert positions[0] == json.loads(missed[-1].data)["last"] + 1
