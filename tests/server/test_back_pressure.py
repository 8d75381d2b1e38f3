"""Who is told to come back later, and who is not: 429 goes by the turns that would come before one's own."""

import itertools
from pathlib import Path
from typing import Any

import httpx

from tests.filesystem.support import grant
from tests.pacing.gate import Gate
from tests.server.guests import guests
from tests.server.support import Process, ServerHarness, run_cfs, serving

COMPLETION = {"messages": [{"role": "user", "content": "hello"}]}


async def test_the_wait_is_that_of_the_callers_own_work(server: ServerHarness) -> None:
    """Of sessions, of their sub-sessions, and of completions; another owner need not wait for it."""
    async with guests(server, crowd=[grant("/sessions")], light=[grant("/sessions")]) as who:
        crowd, light = who["crowd"], who["light"]
        owner = crowd.principal.account.owner
        server.engine.waits = {(owner, "interactive"): 1000.0}
        assert (await crowd.say("crowd", "hello")).status_code == 429
        assert (await light.say("light", "hello")).status_code == 202
        assert (await crowd.client.post("/v1/chat/completions", json=COMPLETION)).status_code == 200
        server.engine.waits = {(owner, "agent"): 1000.0}
        assert (await crowd.say("crowd", "hello")).status_code == 202
        assert (await crowd.client.post("/v1/chat/completions", json=COMPLETION)).status_code == 429
        assert (await light.client.post("/v1/chat/completions", json=COMPLETION)).status_code == 200
        assert (await crowd.client.post("/v1/embeddings", json={"input": "hello"})).status_code == 429
        refused = await light.client.post("/v1/embeddings", json={"input": "hello"})
        assert refused.json()["detail"] == "the engine of this server makes no embeddings"


def test_one_whose_turn_is_next_is_let_in_while_a_crowd_is_refused(tmp_path: Path, gate: Gate) -> None:
    """A crowd sends until it is told to wait; at that moment another owner is let in.

    The engine makes one step for each message, so that they are more than it can answer, however quick it is.
    """
    tokens = tmp_path / "tokens.toml"
    secrets = {name: _token(name, tokens) for name in ("crowd", "light")}
    flags = ["--tokens", str(tokens), "--max-wait-seconds", "4", "--log-level", "error"]
    with (
        serving(*flags) as process,
        _client(process, secrets["crowd"]) as crowd,
        _client(process, secrets["light"]) as light,
    ):
        for n in range(3):  # what a turn costs is learnt from turns
            answer = light.post("/v1/sessions/light/messages", params={"wait": "true"}, json=_words(n))
            assert answer.status_code == 200, answer.text
        for n in itertools.count():
            gate.close(after=1)
            refused = crowd.post(f"/v1/sessions/crowd-{n}/messages", json=_words(n))
            if refused.status_code != 202:
                break
        accepted = light.post("/v1/sessions/light/messages", content=b"Hello!")
    assert refused.status_code == 429
    assert "retry-after" in refused.headers
    assert accepted.status_code == 202, accepted.text


def _words(number: int) -> dict[str, Any]:
    """Make a long message that has no beginning in common with others, and a short answer."""
    return {"content": " ".join(f"{number}-{n}" for n in range(100)), "settings": {"max_tokens": 8}}


def _token(name: str, tokens: Path) -> str:
    return run_cfs("token", "create", name, "--grant", "/sessions", "--tokens", str(tokens)).stdout.strip()


def _client(process: Process, secret: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.Client(base_url=process.url, headers=headers, timeout=60, trust_env=False)
