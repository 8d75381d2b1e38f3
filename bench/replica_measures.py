"""What replicas cost and how soon one takes over from another: `scripts/bench replicas --measure`.

All replicas, their database and the load generator share the machine, so accepts a second say nothing about machines of
their own. CPU seconds of the replicas for each accept do.
"""

import asyncio
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from cfs_server.domain.placement import slot_of
from replica_set import SLOTS, ReplicaProcess, ReplicaSet, replica_set

_CLIENTS = 8
_LOAD_SECONDS = 2.0
_FREEZE_SECONDS = 8.0
_TOKENS = 20
"""Turns of which the first token is timed, by each way in each round."""


@dataclass
class Measures:
    """Seconds, or accepts and CPU seconds, of each round by what was measured."""

    after_kill: list[float] = field(default_factory=list)
    after_freeze: list[float] = field(default_factory=list)
    accepts: dict[int, list[float]] = field(default_factory=dict)
    """Accepts a second, by the number of replicas."""
    cpu: dict[str, list[float]] = field(default_factory=dict)
    """CPU milliseconds of all replicas for one accept, by the way that it took."""
    first_token: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds until the first token, by the way that the request took."""


def _names(replicas: ReplicaSet, owner: ReplicaProcess, count: int, begin: str) -> list[str]:
    """Return names of sessions that a replica owns."""
    owners = replicas.owners()
    found: list[str] = []
    number = 0
    while len(found) < count:
        name = f"{begin}{number}"
        if owners[slot_of(name, SLOTS)] == owner.url:
            found.append(name)
        number += 1
    return found


async def measure(folder: Path, rounds: int) -> Measures:
    """Measure everything, in turns, so that what else the machine does meets all of it alike."""
    found = Measures()
    sizes = [stack_folder(folder, count) for count in (1, 2, 3)]
    async with replica_set(sizes[0], 1) as one, replica_set(sizes[1], 2) as two, replica_set(sizes[2], 3) as three:
        for number in range(rounds):
            for replicas in (one, two, three):
                count = len(replicas.replicas)
                found.accepts.setdefault(count, []).append((await _accepts(replicas, f"n{number}-"))[0])
            await _ways(two, found, f"w{number}-")
            await _take_over(three, found, f"t{number}-")
    return found


def stack_folder(folder: Path, count: int) -> Path:
    """Make a folder for a set of replicas."""
    made = folder / f"{count}"
    made.mkdir()
    return made


def _cpu(processes: Sequence[ReplicaProcess]) -> float:
    times = [psutil.Process(each.pid).cpu_times() for each in processes]
    return sum(each.user + each.system for each in times)


async def _accepts(
    replicas: ReplicaSet, begin: str, way: Callable[[str, dict[int, Any]], str] | None = None
) -> tuple[float, float]:
    """Write notes for a while; return accepts a second, and CPU milliseconds of the replicas for each."""
    owners = await asyncio.to_thread(replicas.owners)
    urls = [each.url for each in replicas.replicas]
    done = 0
    end = time.monotonic() + _LOAD_SECONDS

    async def client(number: int) -> None:
        nonlocal done
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            at = 0
            while time.monotonic() < end:
                name, at = f"{begin}{number}-{at % 6}", at + 1
                url = way(name, owners) if way else urls[at % len(urls)]
                body = {"content": "a note of about the usual length of a message", "generate": False}
                answer = await http.post(f"{url}/v1/sessions/{name}/messages", json=body)
                answer.raise_for_status()
                done += 1

    began, cpu = time.monotonic(), _cpu(replicas.replicas)
    await asyncio.gather(*(client(number) for number in range(_CLIENTS)))
    return done / (time.monotonic() - began), 1000 * (_cpu(replicas.replicas) - cpu) / done


async def _ways(replicas: ReplicaSet, found: Measures, begin: str) -> None:
    """Measure the same at the owner of each session, and through the other replica."""
    urls = [each.url for each in replicas.replicas]
    ways: dict[str, Callable[[str, dict[int, Any]], str]] = {
        "local": lambda name, owners: str(owners[slot_of(name, SLOTS)]),
        "relayed": lambda name, owners: next(url for url in urls if url != owners[slot_of(name, SLOTS)]),
    }
    for way, choose in ways.items():
        found.cpu.setdefault(way, []).append((await _accepts(replicas, f"{begin}{way}-", choose))[1])
    owners = await asyncio.to_thread(replicas.owners)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        for number in range(_TOKENS):
            for way, choose in ways.items():
                name = f"{begin}token-{number % 4}"
                found.first_token.setdefault(way, []).append(await _first_token(http, choose(name, owners), name))


async def _first_token(http: httpx.AsyncClient, url: str, name: str) -> float:
    began, first = time.perf_counter(), 0.0
    headers = {"Accept": "text/event-stream"}
    path = f"{url}/v1/sessions/{name}/messages"
    async with http.stream("POST", path, content=b"one two three", headers=headers) as response:
        async for line in response.aiter_lines():
            if line == "event: token" and not first:
                first = 1000 * (time.perf_counter() - began)
    return first


async def _take_over(replicas: ReplicaSet, found: Measures, begin: str) -> None:
    """Measure from the moment at which an owner is killed, or frozen, to the first write that another one accepts."""
    for fault, times in ((signal.SIGKILL, found.after_kill), (signal.SIGSTOP, found.after_freeze)):
        victim, other = replicas.replicas[:2]
        (name,) = await asyncio.to_thread(_names, replicas, victim, 1, f"{begin}{fault}-")
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            path = f"{other.url}/v1/sessions/{name}/messages"
            body = {"content": "x", "generate": False}
            (await http.post(path, json=body)).raise_for_status()
            began = time.monotonic()
            victim.signal(fault)
            (await http.post(path, json=body, headers={"Idempotency-Key": name})).raise_for_status()
            times.append(time.monotonic() - began)
        if fault == signal.SIGKILL:
            await replicas.kill(victim, 0)
        else:
            victim.signal(signal.SIGCONT)
        await replicas.settle()


def measures_table(found: Measures) -> str:
    """Write the table of the documentation: medians, and the range."""
    rows = [
        ("take-over after `kill -9`, until the next write is accepted", _spread(found.after_kill, "s")),
        ("take-over after `SIGSTOP`", _spread(found.after_freeze, "s")),
        *((f"accepts a second, replicas: {count}", _spread(each, "")) for count, each in found.accepts.items()),
        *((f"CPU for one accept, {way}", _spread(each, "ms")) for way, each in found.cpu.items()),
        *((f"first token, {way}", _spread(each, "ms")) for way, each in found.first_token.items()),
    ]
    return "\n".join(
        ["| | median | range | times |", "|---|--:|--:|--:|", *(f"| {name} | {text} |" for name, text in rows)]
    )


def _spread(values: Sequence[float], unit: str) -> str:
    digits = 0 if max(values) >= 100 else 2
    low, middle, high = (f"{each:,.{digits}f}" for each in (min(values), statistics.median(values), max(values)))
    return f"{middle} {unit} | {low}-{high} | {len(values)}"
