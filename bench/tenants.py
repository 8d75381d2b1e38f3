"""What one tenant's excess costs the others: how long the server and another tenant's first token take meanwhile.

Run by `scripts/bench tenants [--smoke] [--json FILE]`. The server is a process of its own with the embedded model and
two tenants. While one of them does its worst, `/healthz` is asked every 10 ms, and the other one says a word every now
and then. A row is a scenario.
"""

import argparse
import asyncio
import contextlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

BAR_MS = 50.0
EXCHANGE = "User: u\nAssistant: a\n"


@dataclass(frozen=True)
class Row:
    """What was seen during one scenario; milliseconds."""

    scenario: str
    seconds: float
    healthz_p50: float
    healthz_p99: float
    healthz_max: float
    first_token_p50: float
    first_token_max: float
    notes: str


@dataclass(frozen=True)
class Bench:
    """A server, and a client for each of its tenants."""

    bad: httpx.AsyncClient
    good: httpx.AsyncClient
    smoke: bool


Scenario = Callable[[Bench], Awaitable[str]]


@asynccontextmanager
async def bench(smoke: bool) -> AsyncIterator[Bench]:
    """Run `cfs serve`."""
    program = str(Path(sys.executable).with_name("cfs"))
    command = [program, "serve", "--port", "0", "--log-level", "error", *FLAGS]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().removeprefix("listening on ").strip()
        async with (
            httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as bad,
            httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as good,
        ):
            yield Bench(bad, good, smoke)
    finally:
        process.terminate()
        await process.wait()


FLAGS: list[str] = []


async def quiet(b: Bench) -> str:
    """Nothing happens."""
    await asyncio.sleep(1 if b.smoke else 5)
    return ""


def long_session(turns: int) -> Scenario:
    """A turn of a session with a very long history, which was made before."""

    async def scenario(b: Bench) -> str:
        answers = []
        for _ in range(1 if b.smoke else 3):
            began = time.monotonic()
            answer = await b.bad.post(f"/v1/sessions/long-{turns}/messages", params={"wait": "true"}, content=b"Hello!")
            answers.append(f"{answer.status_code} after {time.monotonic() - began:.2f} s")
        return f"its turns: {', '.join(answers)}"

    return scenario


async def tokens_flood(b: Bench) -> str:
    """Twenty requests at a time that count 3 MB each."""
    body = json.dumps({"texts": ["some words " * 30] * 9_000}).encode()
    until = time.monotonic() + (1 if b.smoke else 8)
    statuses: list[int] = []

    async def ask() -> None:
        while time.monotonic() < until:
            answer = await b.bad.post("/v1/tokens", content=body, headers={"Content-Type": "application/json"})
            statuses.append(answer.status_code)
            if answer.status_code == 429:
                await asyncio.sleep(float(answer.headers["Retry-After"]))

    await asyncio.gather(*(ask() for _ in range(20)))
    return ", ".join(f"{statuses.count(status)} of {status}" for status in sorted(set(statuses)))


async def tokens_left(b: Bench) -> str:
    """Clients that ask and leave at once, again and again."""
    body = json.dumps({"texts": ["some words " * 30] * 9_000}).encode()
    until, left = time.monotonic() + (1 if b.smoke else 8), 0
    while time.monotonic() < until:
        with contextlib.suppress(httpx.TimeoutException):
            await b.bad.post("/v1/tokens", content=body, headers={"Content-Type": "application/json"}, timeout=0.1)
        left += 1
    return f"{left} requests"


async def measure(b: Bench, name: str, scenario: Scenario) -> Row:
    """Run a scenario, and watch what it costs others."""
    over = asyncio.Event()
    healths: list[float] = []
    firsts: list[float] = []

    async def healthz() -> None:
        while not over.is_set():
            began = time.perf_counter()
            (await b.good.get("/healthz")).raise_for_status()
            healths.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.01)

    async def neighbour() -> None:
        while not over.is_set():
            body = {
                "messages": [{"role": "user", "content": "Hello!"}],
                "max_tokens": 4,
                "stream": True,
                "user": "good",
            }
            began = time.perf_counter()
            async with b.good.stream("POST", "/v1/chat/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    if '"content":"' in line and '"content":""' not in line:
                        firsts.append((time.perf_counter() - began) * 1000)
                        break
            await asyncio.sleep(0.05)

    watchers = [asyncio.create_task(healthz()), asyncio.create_task(neighbour())]
    await asyncio.sleep(0.3)
    began = time.monotonic()
    notes = await scenario(b)
    seconds = time.monotonic() - began
    over.set()
    await asyncio.gather(*watchers)
    return Row(
        name,
        round(seconds, 2),
        round(statistics.median(healths), 1),
        round(_p99(healths), 1),
        round(max(healths), 1),
        round(statistics.median(firsts), 1),
        round(max(firsts), 1),
        notes,
    )


def _p99(values: list[float]) -> float:
    return sorted(values)[max(0, math.ceil(len(values) * 0.99) - 1)]


async def main() -> None:
    """Run all scenarios and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--smoke", action="store_true", help="small and short: does it run?")
    parser.add_argument("--turns", type=int, default=360_000, help="of the long session")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--serve", action="append", default=[], help="more arguments for cfs serve")
    arguments = parser.parse_args()
    FLAGS.extend(arguments.serve)
    turns = 2_000 if arguments.smoke else arguments.turns
    rows: list[Row] = []
    async with bench(arguments.smoke) as b:
        body = {"id": f"long-{turns}", "settings": {"max_tokens": 8}, "transcript": EXCHANGE * turns}
        made = await b.bad.post("/v1/sessions", json=body)
        scenarios: dict[str, Scenario] = {"nothing": quiet}
        if made.status_code == 201:
            scenarios[f"a turn of a session of {turns:,} turns"] = long_session(turns)
        else:
            print(f"a session of {turns:,} turns: {made.status_code} {made.json()['detail']}", file=sys.stderr)
        scenarios |= {"floods of /v1/tokens": tokens_flood, "clients of /v1/tokens that leave": tokens_left}
        for name, scenario in scenarios.items():
            rows.append(await measure(b, name, scenario))
            row = rows[-1]
            print(
                f"| {row.scenario} | {row.healthz_p50} | {row.healthz_p99} | {row.healthz_max}"
                f" | {row.first_token_p50} | {row.first_token_max} | {row.notes} |",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    asyncio.run(main())
