"""How much of a prompt a worker behind vllm-router has in its cache, with and without session affinity.

    scripts/bench affinity [--sessions N] [--turns N] [--lines N] [--model NAME_OR_FILE]

Two workers, a router of the package vllm-router, and a server in front of it, all real processes. Each session begins
with a text of its own, and each turn adds a question; all sessions take their first turns, then their second ones, and
so on. Cached: tokens from the second turn on that needed no computation, of all tokens of those prompts. First token:
seconds from the queue of the front server to the first word, from the second turn on.
"""

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from ports import free_port

PROGRAMS = Path(sys.executable).parent
CASES = (
    ("consistent_hash", "none"),
    ("consistent_hash", "x-session-id"),
    ("round_robin", "none"),
    ("cache_aware", "none"),
)
_COMPUTED = "cfs_engine_prompt_tokens_evaluated_total "
_WORDS = [
    "river",
    "stone",
    "paper",
    "garden",
    "window",
    "letter",
    "market",
    "harbour",
    "winter",
    "candle",
    "bridge",
    "forest",
    "engine",
    "village",
    "music",
]


@dataclass(frozen=True, slots=True)
class Result:
    """One case: tokens of the prompts from the second turn on, and seconds to the first token of each.

    `loads` are the prompt tokens that each worker computed.
    """

    prompt: int
    cached: int
    seconds: tuple[float, ...]
    loads: tuple[int, ...]


@contextlib.contextmanager
def started(*command: str, ready: str = "") -> Iterator[str]:
    """Run a program until the end of the block. Yield its first line; with `ready`, wait until that URL answers."""
    environment = os.environ | {"CFS_DATA_DIR": "temporary"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert process.stdout is not None
    try:
        line = "" if ready else process.stdout.readline().removeprefix("listening on ").strip()
        while ready and not _answers(ready):
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended: {process.stdout.read()[-2000:]}")
            time.sleep(0.1)
        yield line
    finally:
        process.terminate()
        process.communicate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@contextlib.contextmanager
def router(policy: str, workers: Sequence[str]) -> Iterator[str]:
    """Run vllm-router in front of servers; yield its address."""
    port, metrics_port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ["--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--worker-urls", *workers]
    more = ["--prometheus-port", str(metrics_port), "--worker-startup-check-interval", "1", "--log-level", "error"]
    command = (str(PROGRAMS / "vllm-router"), *flags, *more)
    with started(*command, ready=f"{url}/v1/models"):
        yield url


def run(policy: str, affinity: str, workers: Sequence[str], args: argparse.Namespace) -> Result:
    """Run the sessions of one case. Its texts are its own, so that nothing is cached from another case."""
    rng = random.Random(f"{policy} {affinity}")
    before = [_computed(url) for url in workers]
    with (
        router(policy, workers) as url,
        started(
            str(PROGRAMS / "cfs"), "serve", "--port", "0", "--upstream", url, "--upstream-affinity", affinity
        ) as at,
        httpx.Client(base_url=at, timeout=600, trust_env=False) as client,
        ThreadPoolExecutor(args.sessions) as pool,
    ):
        usages = []
        texts = [
            "\n".join(" ".join(rng.choices(_WORDS, k=12)) for _ in range(args.lines)) for _ in range(args.sessions)
        ]
        for turn in range(args.turns):

            def ask(number: int, turn: int = turn) -> dict[str, float]:
                said = texts[number] if turn == 0 else f"Question {turn}: which word comes next?"
                body = {"content": said, "settings": {"max_tokens": 8, "temperature": 0}}
                answer = client.post(f"/v1/sessions/s{number}/messages?wait=true", json=body)
                answer.raise_for_status()
                return dict(answer.json()["usage"])

            found = list(pool.map(ask, range(args.sessions)))
            usages += found if turn else []
    loads = tuple(_computed(url) - old for url, old in zip(workers, before, strict=True))
    return Result(
        int(sum(usage["prompt_tokens"] for usage in usages)),
        int(sum(usage["cached_tokens"] for usage in usages)),
        tuple(usage["first_token_seconds"] for usage in usages),
        loads,
    )


def _computed(url: str) -> int:
    """Return how many tokens of prompts a worker has computed."""
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith(_COMPUTED))))


def main() -> None:
    """Run all cases in front of the same two workers, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--lines", type=int, default=24, help="lines of the text with which a session begins")
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    worker = (str(PROGRAMS / "cfs"), "serve", "--port", "0", "--model", args.model)
    print(f"{args.sessions} sessions, {args.turns} turns, {args.model}")
    print("| policy | affinity | cached | first token, median and slowest (s) | computed by each worker |")
    print("|---|---|--:|--:|--:|")
    with started(*worker) as first, started(*worker) as second:
        for policy, affinity in CASES:
            result = run(policy, affinity, (first, second), args)
            middle, worst = statistics.median(result.seconds), max(result.seconds)
            loads = " + ".join(map(str, result.loads))
            share = 100 * result.cached / result.prompt
            print(f"| {policy} | {affinity} | {share:.0f} % | {middle:.2f}, {worst:.2f} | {loads} |", flush=True)


if __name__ == "__main__":
    main()
