"""A daily limit holds over replicas and protocols, and over the end of all of them (H10)."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import httpx

from cfs_server.journal.postgres_database import prepare
from tests.access.support import make
from tests.cluster.support import SLOTS, replicas
from tests.costs.support import priced_models
from tests.models.support import KEY_VARIABLE
from tests.postgres import running_postgres
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import KEY

HELLO = [{"role": "user", "content": "hello"}]


def test_a_daily_limit_holds_over_replicas_protocols_and_restarts(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    admin, alice = make(tokens, "admin", "/"), make(tokens, "alice", "/sessions/", daily_cost=0.01)
    headers = {"Authorization": f"Bearer {alice}"}
    with ExitStack() as stack:
        server = stack.enter_context(running_postgres())
        url = server.url(server.new_database())
        prepare(url, SLOTS)
        file = stack.enter_context(priced_models(tmp_path, OpenAIStub()))
        client = stack.enter_context(httpx.Client(headers=headers, timeout=60, trust_env=False))
        flags = ("--tokens", str(tokens), "--models", str(file))

        def spent(address: str) -> float:
            return float(client.get(f"{address}/v1/whoami").json()["usage"]["daily_cost"])

        def refusals(address: str) -> None:
            chat = client.post(f"{address}/v1/chat/completions", json={"model": "paid", "messages": HELLO})
            claude = client.post(f"{address}/v1/messages", json={"model": "paid", "max_tokens": 9, "messages": HELLO})
            named = [client.post(f"{address}/v1/sessions/n{n}/messages", content=b"hi") for n in range(4)]
            answers = [chat, claude, *named]
            assert [answer.status_code for answer in answers] == [429] * 6, [answer.text for answer in answers]
            assert all("the daily limit" in answer.text for answer in answers)

        with replicas(2, url, *flags, token=admin, **{KEY_VARIABLE: KEY}) as found:
            first, second = found.urls
            answer = client.post(f"{first}/v1/chat/completions", json={"model": "paid", "messages": HELLO})
            assert answer.status_code == 200, answer.text
            cost = spent(first)
            assert cost > 0.01
            while spent(second) < cost:
                pass  # it learns it with its next look at the database
            refusals(first)
            refusals(second)
            rows = [client.get(f"{address}/v1/costs").json()["costs"] for address in found.urls]
            assert rows[0] == rows[1]
            assert [(row["principal"], row["session"], row["cost"]) for row in rows[0]] == [("alice", "", cost)]
            for process in found.processes:
                process.signal(signal.SIGKILL)
        with replicas(2, url, *flags, token=admin, **{KEY_VARIABLE: KEY}) as found:
            for address in found.urls:
                while spent(address) < cost:
                    pass
                refusals(address)
                assert json.dumps(spent(address)) == json.dumps(cost)
