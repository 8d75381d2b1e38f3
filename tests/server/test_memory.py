"""A server whose messages do not fit its memory has them all the same, on all interfaces (H7)."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.server.support import EVENTS, JSON, TEXT, Process, serving

MEBIBYTE = 1 << 20
PIECE = "the quick brown fox jumps over the lazy dog, and what it says to it is 犬 " * 1_300
"""About 100 KB."""


def transcript(name: str) -> str:
    """The transcript of a session with four long messages."""
    return "".join(f"{role}: {name} {n} {PIECE}\n" for n, role in enumerate(["User", "Assistant"] * 2))


def serve(folder: Path, memory: str) -> tuple[str, ...]:
    """The flags of a server that keeps few events in memory."""
    return (
        *("--engine", "scripted", "--store", str(folder / "sessions.db"), "--memory", memory),
        *("--all-event-bytes", str(MEBIBYTE), "--session-event-bytes", str(MEBIBYTE)),
    )


def make(client: httpx.Client, name: str, text: str) -> None:
    """Make a session with a history."""
    answer = client.post("/v1/sessions", json={"id": name, "transcript": text})
    assert answer.status_code == 201, answer.text


def in_memory(client: httpx.Client) -> int:
    """The bytes of messages in the server's memory, as it says itself."""
    found = re.search(r"^cfs_transcript_memory_bytes (\S+)", client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def client_of(server: Process) -> httpx.Client:
    """A client without proxies."""
    return httpx.Client(base_url=server.url, timeout=60, trust_env=False)


def test_many_long_sessions_fit_a_small_memory(tmp_path: Path) -> None:
    """60 MB of text with a budget of 4 MiB: the server's process does not grow by half of it, all transcripts are
    right, also for many readers at once, and after a kill."""
    names = [f"s{number}" for number in range(150)]
    flags = serve(tmp_path, "4MiB")
    with serving(*flags) as server, client_of(server) as client:
        for name in names[:20]:
            make(client, name, transcript(name))
        before = psutil.Process(server.process.pid).memory_info().rss
        for name in names[20:]:
            make(client, name, transcript(name))
        with ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda name: client.get(f"/v1/sessions/{name}", headers=TEXT).text, names))
        assert texts == [transcript(name) for name in names]
        grown = psutil.Process(server.process.pid).memory_info().rss - before
        assert in_memory(client) <= 4 * MEBIBYTE
        assert grown < len(names) * len(PIECE) * 4 / 2, f"{grown / 1e6:.0f} MB"
        server.process.kill()
    with serving(*flags) as server, client_of(server) as client:
        assert in_memory(client) <= 4 * MEBIBYTE
        for name in names[::7]:
            assert client.get(f"/v1/sessions/{name}", headers=TEXT).text == transcript(name)


def test_a_reader_that_knows_the_version_causes_no_read(tmp_path: Path) -> None:
    """After a start nothing is in memory: a 304, HEAD, a listing and settings need no messages, the transcript does."""
    flags = serve(tmp_path, "1GiB")
    with serving(*flags) as server, client_of(server) as client:
        make(client, "a", BASE)
        etags = {path: client.get(path).headers["etag"] for path in ("/v1/sessions/a", "/dav/sessions/a")}
        etags["text"] = client.get("/v1/sessions/a", headers=TEXT).headers["etag"]
        server.signal()
        assert server.ended()[0] == 0
    with serving(*flags) as server, client_of(server) as client:
        for path in ("/v1/sessions/a", "/dav/sessions/a"):
            assert client.get(path, headers={"If-None-Match": etags[path]}).status_code == 304
        assert client.get("/v1/sessions/a", headers=TEXT | {"If-None-Match": etags["text"]}).status_code == 304
        assert client.head("/dav/sessions/a").headers["content-length"] == str(len(BASE))
        assert client.get("/v1/sessions").json()["sessions"][0]["messages"] == 2
        assert client.get("/v1/sessions/a/settings").status_code == 200
        assert in_memory(client) == 0
        assert client.get("/dav/sessions/a").text == BASE
        assert in_memory(client) > 0


BASE = "User: one\nAssistant: two\n"
SAID = "User: more\nAssistant: more\n"


def by_rest(client: httpx.Client) -> str:
    """Send a message, and wait for the reply with the transcript."""
    answer = client.post("/v1/sessions/a/messages", content="more", params={"wait": "true", "transcript": "true"})
    return str(answer.json()["transcript"])


def by_edit(client: httpx.Client) -> str:
    """Replace the transcript."""
    etag = client.get("/v1/sessions/a", headers=TEXT).headers["etag"]
    text = BASE + SAID
    client.put("/v1/sessions/a/transcript", content=text, headers={"If-Match": etag, "Content-Type": "text/plain"})
    return client.get("/v1/sessions/a", headers=TEXT).text


def by_files(client: httpx.Client) -> str:
    """Write and read the file of the files API."""
    assert client.put("/v1/files/sessions/a", content=b"more").status_code in (200, 201, 204)
    client.get("/v1/sessions/a/wait", params={"timeout": 30})
    return client.get("/v1/files/sessions/a").text


def by_dav(client: httpx.Client) -> str:
    """Append by PUT, as an editor saves."""
    etag = client.get("/dav/sessions/a").headers["etag"]
    client.put("/dav/sessions/a", content=f"{BASE}more\n".encode(), headers={"If-Match": etag})
    return client.get("/dav/sessions/a").text


def by_copy(client: httpx.Client) -> str:
    """Copy over WebDAV, and go on in the copy."""
    client.request("COPY", "/dav/sessions/a", headers={"Destination": "/dav/sessions/b"})
    client.put("/dav/sessions/b", content=b"more")
    return client.get("/dav/sessions/b").text


def by_fork(client: httpx.Client) -> str:
    """Fork at a message, and go on in the copy."""
    client.post("/v1/sessions/a/fork", json={"id": "b", "at": 2})
    client.post("/v1/sessions/b/messages", content="more", params={"wait": "true"})
    found = client.get("/v1/sessions/b").json()["history"]
    return "".join(f"{message['role'].capitalize()}: {message['content']}\n" for message in found)


def by_completion(client: httpx.Client) -> str:
    """Bring the conversation, as a program for OpenAI does."""
    messages = [("user", "one"), ("assistant", "two"), ("user", "more")]
    body = {"messages": [{"role": role, "content": content} for role, content in messages]}
    answer = client.post("/v1/chat/completions", json=body, headers={"X-CFS-Session": "a"})
    assert answer.status_code == 200, answer.text
    return client.get("/v1/sessions/a", headers=TEXT).text


def by_agent(client: httpx.Client) -> str:
    """Let an agent answer."""
    client.patch("/v1/sessions/a/settings", json={"driver": "agent"})
    client.post("/v1/sessions/a/messages", content="more")
    claimed = client.post("/v1/sessions/a/claim", json={"wait": 10}).json()
    end = {"claim": claimed["claim"], "reply": "more"}
    assert client.post(f"/v1/sessions/a/turns/{claimed['turn']}/finish", json=end).status_code == 200
    return client.get("/v1/sessions/a", headers=TEXT).text


def by_stale_events(client: httpx.Client) -> str:
    """Read the state from the event that says that others were missed."""
    client.post("/v1/sessions/a/messages", content="more", params={"wait": "true"})
    with client.stream("GET", "/v1/sessions/a/events", params={"after": "deadbeef-1"}, headers=EVENTS) as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data:"))
    found = httpx.Response(200, content=line.removeprefix("data:"), headers=JSON).json()["session"]["history"]
    return "".join(f"{message['role'].capitalize()}: {message['content']}\n" for message in found)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server that keeps no message of an idle session in memory."""
    with serving(*serve(tmp_path_factory.mktemp("store"), "0")) as server:
        yield server


@pytest.mark.parametrize(
    "way",
    [by_rest, by_edit, by_files, by_dav, by_copy, by_fork, by_completion, by_agent, by_stale_events],
    ids=lambda way: way.__name__,
)
def test_every_interface_reads_what_is_not_in_memory(forgetful: Process, way: Callable[[httpx.Client], str]) -> None:
    with client_of(forgetful) as client:
        make(client, "a", BASE)
        while in_memory(client) > 0:
            pass
        assert way(client) == BASE + SAID
        for name in ("a", "b"):
            client.delete(f"/v1/sessions/{name}")
