"""What a turn has cost is said alike in its reply, its events and the metrics, and it is what was computed (H4, H6)."""

from collections import Counter
from typing import Any

import httpx

from cfs.contract.sse import SSEDecoder
from tests.server.support import Process, data

MESSAGES = "/v1/sessions/usage/messages"
GREEDY = {"temperature": 0, "max_tokens": 12}


def counters(client: httpx.Client) -> Counter[str]:
    """Read all metrics; what has not been counted yet is 0."""
    lines = client.get("/metrics").text.splitlines()
    rows = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return Counter({name: float(value) for name, value in rows})


def usages_in_events(client: httpx.Client, count: int) -> list[dict[str, Any]]:
    """Read the session's events up to the end of so many turns."""
    decoder, found = SSEDecoder(), []
    with client.stream("GET", "/v1/sessions/usage/events", params={"after": 0}) as answer:
        for chunk in answer.iter_bytes():
            found += [data(event)["usage"] for event in decoder.feed(chunk) if event.event == "turn.finished"]
            if len(found) == count:
                break
    return found


def test_usage_is_the_same_everywhere_and_adds_up(model_server: Process) -> None:
    """Two turns of one session, through the real worker: the second needs only what is new."""
    with httpx.Client(base_url=model_server.url, timeout=60) as client:
        before = counters(client)
        bodies = [{"content": said, "settings": GREEDY} for said in ("My name is Alice.", "What is my name?")]
        usages = [client.post(MESSAGES, json=body, params={"wait": "true"}).json()["usage"] for body in bodies]
        assert usages_in_events(client, 2) == usages
        listed = client.get("/v1/sessions/usage").json()["tokens"]
        assert listed == sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)
        prompts = sum(usage["prompt_tokens"] for usage in usages)
        while (grown := counters(client) - before)['cfs_tokens_total{kind="prompt"}'] < prompts:
            pass  # the metrics read the same events
    assert usages[1]["cached_tokens"] >= usages[0]["prompt_tokens"]
    for usage in usages:
        assert 0 <= usage["queue_seconds"] <= usage["first_token_seconds"] <= usage["total_seconds"]
        assert usage["tokens_per_second"] > 0
    for kind in ("prompt", "cached", "completion"):
        assert grown[f'cfs_tokens_total{{kind="{kind}"}}'] == sum(usage[f"{kind}_tokens"] for usage in usages)
    new = sum(usage["prompt_tokens"] - usage["cached_tokens"] for usage in usages)
    assert grown["cfs_engine_prompt_tokens_evaluated_total"] == new
    assert grown["cfs_engine_recomputed_tokens_total"] == 0
