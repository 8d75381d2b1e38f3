"""What one client can do to the others: `/healthz` and another's replies beside hostile and very large requests.

    scripts/bench hardening              # all scenarios
    scripts/bench hardening --only empty_turns_put big_json
    scripts/bench hardening --smoke      # a tenth of everything
    scripts/bench hardening --only long_session --serve=--max-messages=1000000

A scenario is a function that gets the server and a factor for its sizes, and does its worst. Meanwhile `/healthz` is
asked every 5 ms on a connection of its own, and the memory of the server's process is read. The scenarios of `ENGINE`
run with the embedded model, and another owner asks for a reply every now and then; the others run with the scripted
engine. `idle` and `engine_idle` are a server without other users.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

CFS = Path(sys.executable).with_name("cfs")
PAUSE = 0.005
BAR_MS = 50.0
HEADERS_BAR_MB = 10.0
MEGABYTE = 1 << 20
BODY = 8 * MEGABYTE - 4096
"""Nearly the largest body that is taken."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server under test."""

    host: str
    port: int
    pid: int

    def connect(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection((self.host, self.port), timeout=120)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Send a request and read the answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=300)
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, fields)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found


Scenario = Callable[[Target, float], str]
"""Does its worst, and says in a few words what came of it."""


# -- before the caller is known ----------------------------------------------------------------------------------------


def headers_300_mib(target: Target, factor: float) -> str:
    """Three connections with 300 MiB of header fields each."""
    taken = 0
    for _ in range(3):
        with target.connect() as wire, contextlib.suppress(OSError):
            wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
            for _ in range(int(300 * factor)):
                wire.sendall(b"x" * MEGABYTE)
                taken += 1
    return f"{taken} MiB were taken from the wire"


def header_flood(target: Target, factor: float) -> str:
    """Whole heads of 60 KB, and some that are too large, one connection after the other."""
    count = int(600 * factor)
    for number in range(count):
        with target.connect() as wire, contextlib.suppress(OSError):
            size = 60_000 if number % 2 else 200_000
            wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * size + b"\r\n\r\n")
            wire.recv(100)
    return f"{count} heads"


def half_open(target: Target, factor: float) -> str:
    """2,000 connections that send half of a head; all must be closed."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(target.connect()) for _ in range(int(2000 * factor))]
        for wire in wires:
            with contextlib.suppress(OSError):
                wire.sendall(b"GET / HTTP/1.1\r\nHost:")
        began = time.monotonic()
        closed = sum(_ends(wire) for wire in wires)
    return f"{closed} of {len(wires)} closed after {time.monotonic() - began:.1f} s"


def _ends(wire: socket.socket) -> bool:
    wire.settimeout(30)
    try:
        while wire.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


# -- what counts as little and takes much -----------------------------------------------------------------------------


def _empty_turns(factor: float) -> bytes:
    return b"User: \n" * int(660_000 * factor)


def empty_turns_import(target: Target, factor: float) -> str:
    """660,000 empty turns as a new session."""
    body = json.dumps({"id": "empty", "transcript": _empty_turns(factor).decode()}).encode()
    return _answers(target.ask("POST", "/v1/sessions", body, Content_Type="application/json") for _ in range(3))


def empty_turns_put(target: Target, factor: float) -> str:
    """660,000 empty turns in the place of a history."""
    target.ask("POST", "/v1/sessions", b'{"id":"put"}', Content_Type="application/json")
    body = _empty_turns(factor)
    path = "/v1/sessions/put/transcript"
    return _answers(target.ask("PUT", path, body, If_Match="*", Content_Type="text/plain") for _ in range(3))


def empty_turns_webdav(target: Target, factor: float) -> str:
    """660,000 empty turns as a file."""
    return _answers(target.ask("PUT", "/dav/sessions/empties", _empty_turns(factor)) for _ in range(3))


def _messages(count: int) -> str:
    said = [{"role": ("user", "assistant")[n % 2], "content": f"message {n}"} for n in range(count)]
    return json.dumps([*said, {"role": "user", "content": "the last"}])


def most_messages(target: Target, factor: float) -> str:
    """A session of nearly 20,000 messages: made, replaced, read as text and as JSON, copied."""
    turns = int(9_900 * factor)
    text = "User: hello\nAssistant: yes\n" * turns
    plain = {"Content_Type": "text/plain", "If_Match": "*"}
    steps: list[tuple[int, bytes]] = []
    for number in range(3):
        made = json.dumps({"id": f"m{number}", "transcript": text}).encode()
        steps += [
            target.ask("POST", "/v1/sessions", made, Content_Type="application/json"),
            target.ask("PUT", f"/v1/sessions/m{number}/transcript", text.encode(), **plain),
            target.ask("GET", f"/v1/sessions/m{number}", Accept="text/plain"),
            target.ask("GET", f"/v1/sessions/m{number}"),
            target.ask("GET", f"/dav/sessions/m{number}"),
            target.ask("POST", f"/v1/sessions/m{number}/fork", b"{}", Content_Type="application/json"),
        ]
    return _answers(steps)


def recorded_completions(target: Target, factor: float) -> str:
    """Completions of nearly 20,000 messages each, recorded in a session."""
    body = f'{{"messages": {_messages(int(19_000 * factor))}, "max_tokens": 1}}'.encode()
    path = "/v1/chat/completions"
    return _answers(
        target.ask("POST", path, body, Content_Type="application/json", X_CFS_Session="recorded") for _ in range(3)
    )


# -- bodies of 8 MiB --------------------------------------------------------------------------------------------------


def _json_bodies(factor: float) -> dict[str, tuple[str, bytes]]:
    size = int(BODY * factor)
    message = b'{"role":"user","content":""},'
    lists, numbers = b"[],", b"1e999,"
    completions, sessions = "/v1/chat/completions", "/v1/sessions/j/messages"
    return {
        "one text": (sessions, b'{"content":"%s"}' % (b"x" * size)),
        "escapes": (sessions, b'{"content":"%s"}' % (b"\\n" * (size // 2))),
        "commas in a text": (sessions, b'{"content":"%s"}' % (b"," * size)),
        "messages": (completions, b'{"messages":[%s{}]}' % (message * (size // len(message)))),
        "lists": (completions, b'{"messages":[],"x":[%s0]}' % (lists * (size // len(lists)))),
        "numbers": (completions, b'{"messages":[],"x":[%s0]}' % (numbers * (size // len(numbers)))),
        "depth": (completions, b"[" * size),
    }


def big_json(target: Target, factor: float) -> str:
    """Bodies of nearly 8 MiB in JSON: one long text, very many values, much depth."""
    bodies = _json_bodies(factor)
    return _answers(
        target.ask("POST", path, body, Content_Type="application/json")
        for _, (path, body) in itertools.product(range(2), bodies.values())
    )


def big_texts(target: Target, factor: float) -> str:
    """Messages of 4 MB, read again as text and as JSON."""
    steps: list[tuple[int, bytes]] = []
    path = "/v1/sessions/texts"
    for letters in ("x" * 4_000_000, "é漢\n" * 600_000):
        text = letters[: int(len(letters) * factor)]
        body = json.dumps({"content": text, "generate": False}, ensure_ascii=False).encode()
        steps.append(target.ask("POST", f"{path}/messages", body, Content_Type="application/json"))
        steps += [target.ask("GET", path, Accept="text/plain"), target.ask("GET", path)]
    return _answers(steps)


def _answers(found: Iterable[tuple[int, bytes]]) -> str:
    statuses = [status for status, _ in found]
    return ", ".join(f"{statuses.count(status)} x {status}" for status in sorted(set(statuses)))


# -- what keeps the engine busy ---------------------------------------------------------------------------------------

_TEXTS = json.dumps({"texts": ["some words " * 30] * 9_000}).encode()
_SECONDS = 8.0


def long_session(target: Target, factor: float) -> str:
    """A session of 360,000 turns, if the server takes it, and three messages to it."""
    turns = "User: u\nAssistant: a\n" * int(360_000 * factor)
    body = json.dumps({"id": "long", "settings": {"max_tokens": 8}, "transcript": turns}).encode()
    made = target.ask("POST", "/v1/sessions", body, Content_Type="application/json")
    if made[0] != 201:
        return _answers([made])
    return _answers(target.ask("POST", "/v1/sessions/long/messages?wait=true", b"Hello!") for _ in range(3))


def tokens_flood(target: Target, factor: float) -> str:
    """Twenty clients that have 3 MB counted, again and again."""
    until = time.monotonic() + _SECONDS * factor
    answers: list[tuple[int, bytes]] = []

    def flood() -> None:
        while time.monotonic() < until:
            answers.append(target.ask("POST", "/v1/tokens", _TEXTS, Content_Type="application/json"))
            if answers[-1][0] == 429:
                time.sleep(1)

    with ThreadPoolExecutor(20) as clients:
        list(as_completed(clients.submit(flood) for _ in range(20)))
    return _answers(answers)


def tokens_left(target: Target, factor: float) -> str:
    """Clients that have 3 MB counted and leave at once, again and again."""
    until, left = time.monotonic() + _SECONDS * factor, 0
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=0.1)
        with contextlib.suppress(OSError):
            connection.request("POST", "/v1/tokens", _TEXTS, {"Content-Type": "application/json"})
            connection.getresponse().read()
        connection.close()
        left += 1
    return f"{left} requests"


def idle(target: Target, factor: float) -> str:  # noqa: ARG001 - it does nothing to the target
    """No other client."""
    time.sleep(3 * factor)
    return ""


SCENARIOS: dict[str, Scenario] = {
    each.__name__: each
    for each in (
        idle,
        headers_300_mib,
        header_flood,
        half_open,
        empty_turns_import,
        empty_turns_put,
        empty_turns_webdav,
        most_messages,
        recorded_completions,
        big_json,
        big_texts,
    )
}
ENGINE: dict[str, Scenario] = {
    "engine_idle": idle,
    **{each.__name__: each for each in (long_session, tokens_flood, tokens_left)},
}


# -- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """What a scenario did: times of `/healthz` and until another's first token in milliseconds, memory in MB."""

    name: str
    seconds: float
    asked: int
    p50: float
    p99: float
    longest: float
    grown: float
    kept: float
    first_p50: float | None
    first_longest: float | None
    outcome: str

    def __str__(self) -> str:
        first = ("", "") if self.first_p50 is None else (f"{self.first_p50:.1f}", f"{self.first_longest:.0f}")
        return (
            f"| {self.name} | {self.seconds:.1f} | {self.asked} | {self.p50:.1f} | {self.p99:.1f} | {self.longest:.0f}"
            f" | {self.grown:.0f} | {self.kept:.0f} | {first[0]} | {first[1]} | {self.outcome} |"
        )


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[Target]:
    """Run `cfs serve` for a while."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CFS_")}
    environment["CFS_DATA_DIR"] = "temporary"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [CFS, "serve", "--port", "0", "--log-level", "error", *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        try:
            assert process.stdout is not None
            at = urlsplit(process.stdout.readline().removeprefix("listening on ").strip())
            yield Target(at.hostname or "", at.port or 0, process.pid)
        finally:
            process.terminate()
            process.wait(30)


def measure(target: Target, name: str, factor: float) -> Row:
    """Run one scenario in a thread, and ask for `/healthz` beside it until it is over."""
    process = psutil.Process(target.pid)
    connection = http.client.HTTPConnection(target.host, target.port, timeout=120)
    outcome: list[str] = []
    scenario = (SCENARIOS | ENGINE)[name]
    attack = threading.Thread(target=lambda: outcome.append(scenario(target, factor)))
    firsts: list[float] = []
    neighbour = threading.Thread(target=chat, args=(target, attack, firsts))
    times: list[float] = []
    before = peak = process.memory_info().rss
    attack.start()
    if name in ENGINE:
        neighbour.start()
    began = time.monotonic()
    while attack.is_alive() or len(times) < 2:
        asked = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        times.append((time.perf_counter() - asked) * 1000)
        peak = max(peak, process.memory_info().rss)
        time.sleep(PAUSE)
    seconds = time.monotonic() - began
    kept = process.memory_info().rss
    if name in ENGINE:
        neighbour.join()
    cuts = statistics.quantiles(times, n=100)
    return Row(
        name,
        seconds,
        len(times),
        cuts[49],
        cuts[98],
        max(times),
        (peak - before) / MEGABYTE,
        (kept - before) / MEGABYTE,
        statistics.median(firsts) if firsts else None,
        max(firsts, default=None),
        outcome[0] if outcome else "it failed",
    )


def chat(target: Target, attack: threading.Thread, firsts: list[float]) -> None:
    """Ask for replies as another owner while an attack lasts; milliseconds to the first token of each."""
    said = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4, "stream": True, "user": "good"}
    while attack.is_alive() or not firsts:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=120)
        began = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", json.dumps(said), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if b'"content":"' in line and b'"content":""' not in line:
                firsts.append((time.perf_counter() - began) * 1000)
                break
        connection.close()
        time.sleep(0.05)


def main() -> None:
    """Run what was asked for, each scenario against a server of its own."""
    parser = argparse.ArgumentParser(description="What one client can do to the others.")
    scenarios = [*SCENARIOS, *ENGINE]
    parser.add_argument("--only", nargs="+", choices=scenarios, default=scenarios)
    parser.add_argument("--smoke", action="store_true", help="a tenth of everything")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--serve", action="append", default=[], help="one more argument for cfs serve (repeatable)")
    options = parser.parse_args()
    rows = []
    print(f"bars: `/healthz` p99 {BAR_MS:g} ms; memory of the headers {HEADERS_BAR_MB:g} MB\n")
    names = ("s", "asked", "p50 ms", "p99 ms", "longest ms", "MB at its peak", "MB kept", "token p50 ms", "longest ms")
    print(f"| scenario | {' | '.join(names)} | what came of it |\n|---|{'--:|' * len(names)}---|")
    for name in options.only:
        engine = [] if name in ENGINE else ["--engine", "scripted"]
        with serving(*engine, *options.serve) as target:
            target.ask("GET", "/healthz")
            rows.append(measure(target, name, 0.1 if options.smoke else 1.0))
        print(rows[-1], flush=True)
    print(f"\nLoad of the machine ({os.cpu_count()} processors): {os.getloadavg()}")
    if options.json:
        options.json.write_text(json.dumps([{key: getattr(row, key) for key in Row.__slots__} for row in rows]) + "\n")


if __name__ == "__main__":
    main()
