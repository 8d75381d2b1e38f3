"""What the SDK costs: the time that `Session.send` takes beyond the turn itself.

Run by `scripts/bench sdk [--smoke] [--json FILE]`. The server is a process of its own with the scripted engine, whose
turns take next to no time, so what is measured is the way there and back. Each run asks three ways in turn: a bare
socket that waits for the finished reply (what HTTP costs), `Session.send` over HTTP, and `Session.send` through a mount
(both bring the history); then `AsyncSession.send`. The bars are on what `Session.send` takes beyond the turn, which the
server's own events time.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cfs import AsyncSession, Session, api
from cfs.transports.http import Client
from fuse import mounted
from rest import serving, verdict

BAR_MS = 2.0
MOUNT_BAR_MS = 5.0
WARM_UP = 20
MESSAGE = "hello"


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of interleaved runs in milliseconds; `turns` is what the turns themselves took."""

    runs: int
    turns: float
    bare: float
    send: float
    mount_send: float
    async_send: float

    @property
    def added(self) -> float:
        """What `Session.send` takes beyond its turn over HTTP."""
        return self.send - self.turns

    @property
    def mount_added(self) -> float:
        """What it takes beyond its turn through a mount."""
        return self.mount_send - self.turns


class Bare:
    """One open connection and nothing else."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 80))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, session: str) -> float:
        """Send a message, wait for the finished reply; returns the milliseconds."""
        head = f"POST /v1/sessions/{session}/messages?wait=true HTTP/1.1\r\nHost: localhost\r\n"
        began = time.perf_counter()
        self._socket.sendall(f"{head}Content-Length: {len(MESSAGE)}\r\n\r\n{MESSAGE}".encode())
        seen = b""
        while not seen.endswith(b"}}"):  # the usage is the last member
            seen += self._socket.recv(1 << 16)
        return (time.perf_counter() - began) * 1000

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def turn_of(client: Client, session: str) -> float:
    """Read from the server's events how long the last turn took, in milliseconds."""
    times: dict[str, float] = {}
    with closing(client.events(api.events(session, after="0"))) as events:
        for event in events:
            times[event.type] = event.time
            if event.type == "turn.finished":
                break
    return (times["turn.finished"] - times["message.added"]) * 1000


def send(conversation: Session) -> float:
    """Time one `Session.send`."""
    began = time.perf_counter()
    conversation.send(MESSAGE)
    return (time.perf_counter() - began) * 1000


async def async_sends(url: str, runs: int) -> list[float]:
    """Time `AsyncSession.send`, each in a session of its own over one connection."""
    found = []
    for number in range(runs):
        async with AsyncSession(f"async{number}", url=url) as conversation:
            began = time.perf_counter()
            await conversation.send(MESSAGE)
            found.append((time.perf_counter() - began) * 1000)
    return found


def measure(runs: int) -> Cost:
    """Ask the ways in turn, each time in a new session."""
    turns: list[float] = []
    bare: list[float] = []
    sent: list[float] = []
    mount_sent: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        serving("--engine", "scripted") as (url, _),
        mounted(Path(folder) / "cfs", "-m", "cfs_fuse", "--url", url) as mount,
        Client(url) as client,
        closing(Bare(url)) as wire,
    ):
        for number in range(runs + WARM_UP):
            bare.append(wire.ask(f"bare{number}"))
            with Session(f"sdk{number}", url=url) as conversation:  # entering opens the connection
                sent.append(send(conversation))
            with Session(f"mount{number}", mount=mount) as conversation:
                mount_sent.append(send(conversation))
            turns.append(turn_of(client, f"sdk{number}"))
        async_sent = asyncio.run(async_sends(url, runs + WARM_UP))
    middle = [statistics.median(times[WARM_UP:]) for times in (turns, bare, sent, mount_sent, async_sent)]
    return Cost(runs, *middle)


def show(cost: Cost) -> None:
    """Print the table."""
    print(f"\nA message and its reply, medians of {cost.runs} runs; a turn takes {cost.turns:.2f} ms\n")
    rows = (
        ("one bare request", cost.bare, None),
        ("`Session.send` over HTTP", cost.send, BAR_MS),
        ("`Session.send` through a mount", cost.mount_send, MOUNT_BAR_MS),
        ("`AsyncSession.send` over HTTP", cost.async_send, None),
    )
    print("| what | ms | beyond the turn | bar | within |\n|---|---|---|---|---|")
    for what, took, bar in rows:
        added = took - cost.turns
        judged = "| | |" if bar is None else f"| {bar:g} | {verdict(added <= bar)} |"
        print(f"| {what} | {took:.2f} | {added:.2f} {judged}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What the SDK costs.")
    parser.add_argument("--smoke", action="store_true", help="a second, to see that it runs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    load = os.getloadavg()
    found = measure(20 if options.smoke else 500)
    show(found)
    print(f"\nLoad of the machine ({os.cpu_count()} processors): {load} to {os.getloadavg()}")
    if options.json:
        options.json.write_text(
            json.dumps(asdict(found) | {"added": found.added, "mount_added": found.mount_added}, indent=2) + "\n"
        )
