"""A real router in front of two workers: each session stays at one of them."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx

from cfs_server.connect.engines import KEY_VARIABLE
from ports import free_port
from tests.server.support import serving
from tests.upstream.openai_stub import Body, OpenAIStub
from tests.upstream.stub import KEY, MODEL, served_aside

ROUTER = Path(sys.executable).with_name("vllm-router")


class RoutedStub(OpenAIStub):
    """A worker behind the router, which adds members that no request has had, such as `skip_special_tokens`."""

    def read(self, body: Any) -> Iterable[str]:
        """Leave them out."""
        return super().read({name: value for name, value in body.items() if name in Body.model_fields})


SESSIONS = 40  # a hash sends all of so many to one of two workers once in 2**39 runs


@contextlib.contextmanager
def routed(*workers: str) -> Iterator[str]:
    """Run vllm-router, which hashes sessions to workers, until the end of the block; the value is its address."""
    port = free_port()
    flags = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()))
    policy = ("--policy", "consistent_hash", "--worker-startup-check-interval", "1")
    process = subprocess.Popen(
        [ROUTER, *flags, *policy, "--worker-urls", *workers], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not healthy(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def healthy(url: str) -> bool:
    """Whether the router answers, and its workers are there; the test's time-out is the limit."""
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_vllm_router_sends_all_turns_of_a_session_to_one_worker() -> None:
    workers = RoutedStub(), RoutedStub()
    with (
        served_aside(workers[0]) as first,
        served_aside(workers[1]) as second,
        routed(*(url.removesuffix("/v1") for url in (first, second))) as url,
        serving("--upstream", url, "--upstream-model", MODEL, "--no-upstream-check", **{KEY_VARIABLE: KEY}) as server,
        httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client,
    ):
        for _ in range(3):
            for number in range(SESSIONS):
                where = f"/v1/sessions/s{number}/messages"
                client.post(where, params={"wait": "true"}, content=b"hello").raise_for_status()
    assert [worker.refused for worker in workers] == [[], []]
    seen = [[head["x-session-id"] for head in worker.heads] for worker in workers]
    assert sum(map(len, seen)) == 3 * SESSIONS
    assert all(len(set(each)) > 0 for each in seen)
    assert not set(seen[0]) & set(seen[1])


def test_our_own_server_is_a_worker_behind_the_router() -> None:
    """The router asks `/health`, and a server in front finds the model through it."""
    with serving("--engine", "scripted") as worker, routed(worker.url) as url, serving("--upstream", url) as server:
        answer = httpx.post(
            f"{server.url}/v1/sessions/a/messages?wait=true", content=b"hello", trust_env=False, timeout=60
        )
        assert answer.json()["reply"] == "hello"
