"""What a connection may cost before its request is there: raw sockets against `cfs serve` (H7)."""

import contextlib
import itertools
import resource
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from cfs_server.base.limits import ConnectionLimits
from cfs_server.config.settings import ConfigurationError, ServerSettings, load
from cfs_server.http.connections import Connections
from tests.pacing.gate import Gate
from tests.server.support import Process, serving

MEGABYTE = 1 << 20
SECONDS = 10
"""The time for a head, and the longest pause in a body, of the server whose clock the tests set."""
FLAGS = ("--engine", "scripted", "--log-level", "warning", "--ping", "0.5")
ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/sessions/a/messages HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    """One server for all tests in which no time passes."""
    with serving(*FLAGS) as process:
        yield process


@dataclass(frozen=True, slots=True)
class Waiting:
    """A server whose clock is set forward instead of waiting for it."""

    server: Process
    gate: Gate

    def passes(self, seconds: float) -> None:
        """Let time pass after the server has seen all that was sent before, and let it see what time it is."""
        assert alive(self.server)
        self.gate.pass_time(seconds)
        for _ in range(2):
            assert alive(self.server)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    """One server for all tests in which time passes."""
    gate = Gate(tmp_path_factory.mktemp("pace") / "gate")
    flags = ("--head-seconds", str(SECONDS), "--stall-seconds", str(SECONDS))
    with serving(*FLAGS, *flags, **gate.environment, PACE_CLOCK="1") as process:
        yield Waiting(process, gate)


def connect(server: Process) -> socket.socket:
    at = urlsplit(server.url)
    return socket.create_connection((at.hostname, at.port), timeout=30)


def send(wire: socket.socket, *pieces: bytes) -> int:
    """Send for as long as the other side takes it; return how many pieces it took."""
    for taken, piece in enumerate(pieces):
        try:
            wire.sendall(piece)
        except OSError:
            return taken
    return len(pieces)


def rest(wire: socket.socket) -> bytes:
    """Read to the end."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := wire.recv(1 << 16):
            found += piece
    return found


def one(wire: socket.socket) -> bytes:
    """Read one answer, which has a length."""
    found = b""
    while (end := found.find(b"\r\n\r\n")) < 0:
        found += wire.recv(1 << 16)
    size = int(found.lower().partition(b"content-length: ")[2].split()[0])
    while len(found) < end + 4 + size:
        found += wire.recv(1 << 16)
    return found


def answer(server: Process, *pieces: bytes) -> bytes:
    """Send something on a connection of its own; return all that comes until the server closes it."""
    with connect(server) as wire:
        send(wire, *pieces)
        return rest(wire)


def status(reply: bytes) -> int:
    return int(reply.split(maxsplit=2)[1])


def alive(server: Process) -> bool:
    return httpx.get(f"{server.url}/healthz", trust_env=False, timeout=30).status_code == 200


def test_300_mib_of_headers_are_refused_and_held_by_nobody(server: Process) -> None:
    process = psutil.Process(server.process.pid)
    assert alive(server)
    before = process.memory_info().rss
    for _ in range(3):
        with connect(server) as wire:
            wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
            assert send(wire, *itertools.repeat(b"x" * MEGABYTE, 300)) < 300
            reply = rest(wire)
            assert reply.startswith(b"HTTP/1.1 431 ")
            assert b"65536 bytes" in reply
        assert process.memory_info().rss - before < 10 * MEGABYTE
    assert alive(server)


TOO_LONG = {
    "one field": b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    "the name of a field": b"GET / HTTP/1.1\r\n" + b"x" * 70_000,
    "all fields together": b"GET / HTTP/1.1\r\nX: " + b"x" * 1000 + b"\r\n" + (b"Y: " + b"y" * 1000 + b"\r\n") * 99,
    "the target": b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "the target, without an end": b"GET /" + b"x" * 70_000,
    "empty lines before it": b"\r\n" * 40_000,
    "very many fields": b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 129 + b"\r\n",
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_head_over_the_limit_is_431(server: Process, name: str) -> None:
    reply = answer(server, TOO_LONG[name])
    assert (status(reply), b"application/problem+json" in reply) == (431, True), reply[:300]
    assert b"connection: close" in reply


def test_a_head_within_the_limit_is_taken(server: Process) -> None:
    reply = answer(server, ASK[:-2] + b"X: " + b"x" * 65_000 + b"\r\nConnection: close\r\n\r\n")
    assert status(reply) == 200
    reply = answer(server, ASK[:-2] + b"X: x\r\n" * 126 + b"Connection: close\r\n\r\n")
    assert status(reply) == 200


INVALID = {
    "bytes": b"\x00\xff\xfe\r\n\r\n",
    "the beginning of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "another protocol": b"EHLO example.org\r\n",
    "bytes in a name": b"GET / HTTP/1.1\r\n\xff\x00: x\r\n\r\n",
    "NUL in a field": b"GET / HTTP/1.1\r\nX: \x00\r\n\r\n",
    "a proxy's method": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a length and chunks": POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a length that is none": POST + b"Content-Length: -1\r\n\r\n",
    "a chunk's length that is none": CHUNKED + b"xyz\r\n",
    "a WebSocket": ASK[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
}


@pytest.mark.parametrize("name", INVALID)
def test_what_is_no_request_is_400(server: Process, name: str) -> None:
    reply = answer(server, INVALID[name])
    assert (status(reply), reply.count(b"connection: close")) == (400, 1), reply
    assert b"urn:cfs:error:invalid-request" in reply


@pytest.mark.parametrize("kind", ["extension", "trailer", "trailers"])
def test_what_surrounds_chunks_is_bounded(server: Process, kind: str) -> None:
    """Nothing of it is kept, and nothing of it counts as getting on."""
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    begin, more = {
        "extension": (b"1;x=", b"x" * MEGABYTE),
        "trailer": (b"1\r\nx\r\n0\r\nX: ", b"x" * MEGABYTE),
        "trailers": (b"1\r\nx\r\n0\r\n", b"X: y\r\n" * 100_000),
    }[kind]
    with connect(server) as wire:
        wire.sendall(CHUNKED + begin)
        assert send(wire, *itertools.repeat(more, 100)) < 100
        assert status(rest(wire)) in (400, 431)
    assert process.memory_info().rss - before < 10 * MEGABYTE


def test_an_offer_of_another_protocol_is_declined(server: Process) -> None:
    for options in (b"Upgrade, HTTP2-Settings, close", b"close,upgrade"):
        assert status(answer(server, ASK[:-2] + b"Connection: %s\r\nUpgrade: h2c\r\n\r\n" % options)) == 200


def test_a_transfer_coding_that_is_not_known_is_501(server: Process) -> None:
    """Its bytes would be taken for the text (RFC 9112, 6.1)."""
    reply = answer(server, POST + b"Connection: close\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
    assert status(reply) == 501, reply


JDK = (  # as java.net.http.HttpClient of JDK 17 sends with the first request of each connection, also with a body
    b"POST /v1/chat/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\n%s\r\nHost: localhost\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
    b"User-Agent: Java-http-client/17.0.15\r\nContent-Type: application/json\r\n\r\n%s"
)


@pytest.mark.parametrize("cut", [None, 1, 40, 150, 330])
@pytest.mark.parametrize("coding", ["length", "chunked"])
def test_an_offer_with_a_body_is_declined_and_the_body_read(server: Process, coding: str, cut: int | None) -> None:
    """However it is cut, with others behind it on the connection, which stays open."""
    sent = [b'{"model": "", "messages": [{"role": "user", "content": "turn %d"}]}' % turn for turn in range(3)]
    if coding == "length":
        requests = [JDK % (b"Content-Length: %d" % len(body), body) for body in sent]
    else:
        chunks = [b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (5, body[:5], len(body) - 5, body[5:]) for body in sent]
        requests = [JDK % (b"Transfer-Encoding: chunked", body) for body in chunks]
    data = b"".join([*requests, ASK[:-2] + b"Connection: close\r\n\r\n"])
    with connect(server) as wire:
        for at in range(0, len(data), cut or len(data)):
            wire.sendall(data[at : at + (cut or len(data))])
        replies = rest(wire)
    assert replies.count(b"HTTP/1.1 200 ") == 4, replies
    assert [replies.find(b"turn %d" % turn) > 0 for turn in range(3)] == [True] * 3


@pytest.mark.parametrize("target", [b"http://localhost/healthz", b"HTTP://localhost:80/healthz?x=1", b"/healthz"])
def test_what_http_lets_a_server_ignore_is_ignored(server: Process, target: bytes) -> None:
    """A target as for a proxy (RFC 9112, 3.2.2), expectations, codings, trailers and settings that are not known."""
    ignored = b"Expect: more\r\nTE: trailers, gzip\r\nTrailer: X\r\nHTTP2-Settings: AA\r\nPriority: u=1\r\nX: \r\n"
    for head in (b"Host: localhost\r\n" + ignored, b"Host: localhost\r\nUpgrade: h2c\r\n"):
        reply = answer(server, b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (target, head))
        assert status(reply) == 200, reply


def test_http_1_0_is_answered_once(server: Process) -> None:
    assert answer(server, b"GET /healthz HTTP/1.0\r\n\r\n").count(b"alive") == 1


def test_who_says_nothing_is_cut_off_without_a_word(waiting: Waiting) -> None:
    with connect(waiting.server) as wire:
        waiting.passes(SECONDS)
        assert rest(wire) == b""


def test_a_head_that_comes_by_and_by_is_408(waiting: Waiting) -> None:
    with connect(waiting.server) as wire:
        for byte in ASK:
            if send(wire, bytes([byte])) == 0:
                break
            waiting.passes(SECONDS / 10)
        assert status(rest(wire)) == 408


def test_the_next_request_has_its_time_too(waiting: Waiting) -> None:
    with connect(waiting.server) as wire:
        wire.sendall(ASK)
        assert b"alive" in one(wire)
        wire.sendall(ASK[:10])
        waiting.passes(SECONDS)
        assert status(rest(wire)) == 408


def test_a_body_that_stalls_is_408_and_nothing_of_it_is_stored(waiting: Waiting) -> None:
    with connect(waiting.server) as wire:
        wire.sendall(POST + b"Content-Length: 10\r\n\r\nhello")
        waiting.passes(SECONDS)
        reply = rest(wire)
    assert (status(reply), b"urn:cfs:error:timeout" in reply) == (408, True)
    answer = httpx.get(f"{waiting.server.url}/v1/sessions/a", trust_env=False, timeout=60)
    assert answer.status_code == 404


def test_a_body_that_comes_slowly_goes_on(waiting: Waiting) -> None:
    with connect(waiting.server) as wire:
        wire.sendall(b"PUT /v1/files/workspaces/w/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
        for _ in range(10):
            waiting.passes(SECONDS / 2)
            wire.sendall(b"x")
        assert status(one(wire)) == 201


def test_a_body_that_is_sent_after_the_answer_is_not_waited_for(waiting: Waiting) -> None:
    with connect(waiting.server) as wire:
        wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        reply = one(wire)
        for _ in range(1000):
            if send(wire, b"x") == 0:
                break
            waiting.passes(SECONDS / 10)
        else:
            raise AssertionError("all of it was taken")
        assert (reply + rest(wire)).count(b"HTTP/1.1 ") == 1


def test_a_stream_and_an_idle_connection_are_left_alone(waiting: Waiting) -> None:
    with connect(waiting.server) as idle, connect(waiting.server) as stream:
        idle.sendall(ASK)
        assert b"alive" in one(idle)
        stream.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        waiting.passes(2 * SECONDS + 1)
        seen = b""
        while b"ping" not in seen:
            piece = stream.recv(1 << 16)
            assert piece, seen
            seen += piece
        idle.sendall(ASK)
        assert b"alive" in one(idle)


def test_2000_half_open_connections_are_closed(gate: Gate) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        with serving(*FLAGS, PACE_CLOCK="1") as server, contextlib.ExitStack() as stack:
            wires = [stack.enter_context(connect(server)) for _ in range(2000)]
            for wire in wires[::2]:
                send(wire, ASK[:20])
            Waiting(server, gate).passes(ServerSettings().head_seconds)
            assert {reply.split(b"\r\n")[0] for reply in map(rest, wires)} <= {
                b"",
                b"HTTP/1.1 408 Request Timeout",
                b"HTTP/1.1 429 Too Many Requests",
            }
            assert alive(server)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_address_may_have_so_many_unfinished_requests() -> None:
    with serving(*FLAGS, "--max-unfinished", "5") as server, contextlib.ExitStack() as stack:
        early = [stack.enter_context(connect(server)) for _ in range(5)]
        for wire in early:
            wire.sendall(ASK[:-2])
        crowd = [stack.enter_context(connect(server)) for _ in range(20)]
        for wire in crowd:
            send(wire, ASK[:-2])
        replies = [rest(wire) for wire in crowd]
        assert {status(reply) for reply in replies} == {429}
        assert all(b"retry-after: 1\r\n" in reply for reply in replies)
        assert alive(server)  # a request that comes whole is never one too many
        for wire in early:
            wire.sendall(b"\r\n")
            assert status(one(wire)) == 200


def test_a_burst_of_whole_requests_is_no_crowd() -> None:
    with serving(*FLAGS, "--max-unfinished", "5") as server, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(connect(server)) for _ in range(100)]
        for wire in wires:
            wire.sendall(ASK)
        assert {status(one(wire)) for wire in wires} == {200}


def test_whom_a_connection_counts_for() -> None:
    connections = Connections(ConnectionLimits())
    of = connections.address_of
    assert of(("192.0.2.1", 1)) == of(("192.0.2.1", 2)) == of(("::ffff:192.0.2.1", 1)) != of(("192.0.2.2", 1))
    assert of(("2001:db8::1", 1)) == of(("2001:db8::ffff:1", 1)) != of(("2001:db8:0:1::1", 1))
    assert of(("fe80::1%eth0", 1)) == of(("fe80::1", 1))
    trusting = Connections(ServerSettings(trusted_proxies="10.0.0.0/8, ::1").connection_limits)
    assert trusting.address_of(("10.1.2.3", 1)) == trusting.address_of(("::1", 1)) == ""
    assert trusting.address_of(("11.1.2.3", 1)) == "11.1.2.3"
    assert not trusting.crowded("")
    with pytest.raises(ConfigurationError, match="trusted_proxies"):
        load({"trusted_proxies": "the-proxy"})


def test_requests_in_a_row_are_answered_in_order_and_only_so_many_are_taken(server: Process) -> None:
    asks = [b"GET /v1/sessions/n%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % n for n in range(5000)]
    reply = answer(server, b"".join([*asks[:19], ASK[:-2] + b"Connection: close\r\n\r\n"]))
    numbers = [reply.index(b"'n%d'" % n) for n in range(19)]
    assert numbers == sorted(numbers)
    assert b'{"status":"alive"' in reply.rpartition(b"\r\n\r\n")[2]
    reply = answer(server, b"".join(asks))
    assert 32 < reply.count(b" 404 Not Found") < 5000
    assert alive(server)


def test_what_follows_a_request_and_is_none_does_not_spoil_its_answer(server: Process) -> None:
    reply = answer(server, ASK, b"\xff\xff\xff\xff\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 200 ")


def test_a_client_that_asks_first_is_told_to_go_on(server: Process) -> None:
    with connect(server) as wire:
        wire.sendall(POST.replace(b"/a/", b"/asks/") + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert wire.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.sendall(b"hello")
        assert status(one(wire)) == 202


def test_half_open_connections_do_not_hold_up_the_end() -> None:
    with serving(*FLAGS) as server, connect(server), connect(server) as partial:
        partial.sendall(ASK[:20])
        assert alive(server)
        server.signal(signal.SIGTERM)
        assert server.ended()[0] == 0
