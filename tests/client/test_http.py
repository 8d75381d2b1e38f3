"""The HTTP client over connections that go wrong (C9, S11)."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs import (
    AsyncSession,
    FunctionTool,
    InvalidRequest,
    KeyReused,
    NotFound,
    PreconditionFailed,
    ServerError,
    Session,
    StorageFull,
    Timeout,
    Unauthorized,
    Unavailable,
    Unreachable,
    Unsupported,
    api,
)
from cfs.state.stream import StreamEvent
from cfs.transports.addresses import Attempts
from cfs.transports.async_http import AsyncClient
from cfs.transports.http import Client
from cfs.wire import NewMessage, SettingsPatch
from cfs_server.domain.events import Stale
from ports import free_port
from tests.client.harness import HttpHarness
from tests.client.wires import Relay, http_answer, impostor, relay
from tests.server.support import until


@pytest.fixture
def wire(http_harness: HttpHarness) -> Iterator[Relay]:
    with relay(http_harness.url) as here:
        yield here


@pytest.fixture
def client(wire: Relay) -> Iterator[Client]:
    with Client(wire.url) as here:
        yield here


def numbers(events: list[StreamEvent]) -> list[int]:
    return [event.number for event in events]


def test_what_only_reads_is_sent_again_when_its_connection_is_lost(
    http_harness: HttpHarness, wire: Relay, client: Client
) -> None:
    http_harness.write("a", "hello")
    wire.drop(2)
    assert client.call(api.transcript("a", wait=5)).text == "User: hello\nAssistant: hello\n"
    assert wire.accepted == 3
    wire.drop(3)
    wire.cut()
    with pytest.raises(Unreachable, match="lost during GET"):
        client.call(api.read("a"))


async def test_the_same_holds_for_coroutines(http_harness: HttpHarness, wire: Relay) -> None:
    http_harness.write("a", "hello")
    async with AsyncClient(wire.url) as client:
        wire.drop(2)
        assert (await client.call(api.transcript("a", wait=5))).text == "User: hello\nAssistant: hello\n"
        assert wire.accepted == 3


WRITES: list[api.Call[Any]] = [
    api.create("b"),
    api.append("a", b"x"),
    api.post("a", NewMessage(content="x")),
    api.say("a", NewMessage(content="x"), wait=5),
    api.configure("a", SettingsPatch(temperature=0.5)),
    api.cancel("a"),
    api.fork("a"),
    api.fork("a", "b"),
    api.rename("a", "b"),
    api.delete("a"),
]
"""Each changes the session `a` or makes one."""


def what_is_there(harness: HttpHarness) -> list[tuple[str, str, float]]:
    """Wait until all is idle; return each session with its transcript and a setting."""
    store = harness.server.store
    harness.wait_until(lambda: all(session.idle for session in store))
    named = ((each.id if each.id in ("a", "b") else "new", each.history.text, each) for each in store)
    return sorted((name, text, each.settings.temperature or 0.0) for name, text, each in named)


@pytest.mark.parametrize("call", WRITES, ids=lambda call: f"{call.request.method} {call.request.path}")
def test_a_write_whose_answer_is_lost_is_carried_out_once(
    http_harness: HttpHarness, wire: Relay, client: Client, call: api.Call[Any]
) -> None:
    """The client sends it again with its idempotency key, and gets the answer (C9)."""
    found = []
    for lost in (0, 2):
        http_harness.renew()
        client.call(api.create("a"))
        wire.swallow(lost)
        found.append((type(client.call(call)), what_is_there(http_harness)))
    assert found[0] == found[1]
    assert wire.swallowed == 2


def test_a_stream_whose_beginning_is_lost_belongs_to_one_message(http_harness: HttpHarness, wire: Relay) -> None:
    with Session("a", url=wire.url) as session:
        wire.swallow(2)
        assert list(session.stream("two words")) == ["two", " words"]
        assert session.history == ["User: two words", "Assistant: two words"]
    assert wire.swallowed == 2


def test_a_repeated_call_with_the_callers_key_gets_the_first_reply(http_harness: HttpHarness) -> None:
    with Session("a", url=http_harness.url) as session:
        first = session.send("hello", idempotency_key="repeated")
        assert session.send("hello", idempotency_key="repeated") == first
        assert list(session.stream("hello", idempotency_key="repeated")) == ["hello"]
        copy = session.fork(idempotency_key="f")
        assert session.fork(idempotency_key="f").id == copy.id
        with pytest.raises(KeyReused, match="new key"):
            session.send("something else", idempotency_key="repeated")
        assert session.history == ["User: hello", "Assistant: hello"]


def test_the_rounds_of_a_repeated_call_have_keys_of_their_own(http_harness: HttpHarness) -> None:
    """Each message of the call is stored once, results of tools included."""
    http_harness.script = lambda turns: ["[CALL:look()]" if turns[-1].role == "user" else "nothing there"]
    looks: list[str] = []
    tool = FunctionTool("look", "Looks.", lambda: looks.append("nothing"))
    with Session("a", url=http_harness.url) as session:
        first = session.send("look", tools=[tool], idempotency_key="rounds")
        assert first.text == "nothing there"
        assert session.send("look", tools=[tool], idempotency_key="rounds") == first
        assert len(session.history) == 4
    assert len(looks) == 2, "tools are the program's own, which the server cannot repeat for it"


def test_a_file_takes_no_key(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with Session("a", mount=tmp_path) as session:
        for call in (session.send, session.fork):
            with pytest.raises(Unsupported, match="over HTTP"):
                call("b", idempotency_key="k")
        with pytest.raises(Unsupported, match="over HTTP"):
            list(session.stream("b", idempotency_key="k"))


def test_a_lost_answer_is_asked_for_until_a_server_is_back() -> None:
    """A server that starts refuses connections, then it answers 503."""
    lost, refused = httpx.ReadError("cut"), httpx.ConnectError("refused")
    attempts = Attempts(api.append("a", b"x").request.keyed())
    assert attempts.pause_after(503) is None, "nothing was lost"
    assert attempts.pause(lost) == 0.05
    pauses = [attempts.pause(refused), attempts.pause_after(503), *(attempts.pause(refused) for _ in range(6))]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert attempts.pause(refused) is None
    assert attempts.cause(refused) is lost, "what came of it is not known"
    assert attempts.pause_after(409) is None


def test_a_read_that_waits_is_repeated_where_a_server_stops() -> None:
    """Another one may answer at the same address. The pause is what the server asks for, at most the wait."""
    attempts = Attempts(api.wait("a", 3.0).request)
    assert [attempts.pause_after(503, "1"), attempts.pause_after(503, "5"), attempts.pause_after(503, "1")] == [
        1,
        3,
        None,
    ]
    assert Attempts(api.wait("a", 3.0).request).pause_after(503) is None, "it does not say that another one will"
    for request in (api.read("a").request, api.claim("a", 60, 3).request.keyed()):
        assert Attempts(request).pause_after(503, "1") is None, "it does not wait, or an agent repeats it itself"


def test_what_was_not_lost_is_tried_a_few_times() -> None:
    for request in (api.read("a").request, api.append("a", b"x").request.keyed()):
        attempts = Attempts(request)
        assert [attempts.pause(httpx.ConnectError("refused")) for _ in range(3)] == [0.05, 0.1, None]
    assert Attempts(api.append("a", b"x").request).pause(httpx.ReadError("cut")) is None, "it has no key"
    assert Attempts(api.read("a").request).pause(httpx.ReadTimeout("slow")) is None


def test_without_a_server_it_says_what_to_do() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url) as client:
        calls: list[api.Call[Any]] = [api.read("a"), api.append("a", b"x")]
        for call in calls:
            with pytest.raises(Unreachable, match=f"no server answers at {url} .* `cfs serve`"):
                client.call(call)
        with pytest.raises(Unreachable, match="cfs serve"):
            list(client.events(api.events()))


@pytest.mark.server
async def test_without_a_server_coroutines_say_it_too() -> None:
    session = AsyncSession("a", url="http://127.0.0.1:1")
    with pytest.raises(Unreachable, match="cfs serve"):
        await session.send("hello")
    with pytest.raises(Unreachable, match="cfs serve"):
        async with session:
            pass


def test_a_server_that_says_nothing_is_a_timeout() -> None:
    with impostor() as silent, Client(silent.url, timeout=0.1) as client:
        with pytest.raises(Timeout, match="did not answer GET"):
            client.call(api.read("a"))
        assert len(silent.asked) == 1, "a slow server is not asked twice"


@pytest.mark.parametrize("media", ["application/json", "text/html"])
@pytest.mark.parametrize("body", [b"", b"<h1>It works!</h1>", b"[]", b'{"id": "a"}'])
def test_an_answer_of_something_else_is_told_as_that(body: bytes, media: str) -> None:
    other = impostor(http_answer("200 OK", body, media))
    with other as server, Client(server.url) as client, pytest.raises(ServerError, match="not from CFS"):
        client.call(api.read("a"))


def test_a_stream_of_something_else_is_told_as_that() -> None:
    other = impostor(http_answer("200 OK", b"data: hello\n\n", "text/event-stream"))
    with other as server, Client(server.url) as client, pytest.raises(Unavailable, match="no event of CFS"):
        list(client.events(api.events(), attempts=1))


@pytest.mark.parametrize(
    ("status", "kind"),
    [("401 Unauthorized", Unauthorized), ("404 Not Found", NotFound), ("507 X", StorageFull), ("503 X", Unavailable)],
)
def test_errors_of_anything_in_between_keep_their_meaning(status: str, kind: type[Exception]) -> None:
    with impostor(http_answer(status, b"no, says the proxy", "text/plain")) as other, Client(other.url) as client:
        with pytest.raises(kind, match="no, says the proxy"):
            client.call(api.read("a"))
        with pytest.raises(kind, match="no, says the proxy"):
            list(client.events(api.events("a")))


@pytest.mark.parametrize("url", ["", "localhost", "ftp://localhost", "http://", "/v1"])
def test_an_address_that_is_none_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CFS_URL", raising=False)
    with pytest.raises(InvalidRequest, match="CFS_URL"):
        Client(url)


@pytest.mark.parametrize(("given", "sent"), [("given", b"given"), (None, b"from-the-environment"), ("", None)])
def test_a_token_is_sent_with_every_request(
    given: str | None, sent: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one is none: a program that acts for others does not fall back on its own."""
    monkeypatch.setenv("CFS_TOKEN", "from-the-environment")
    refusal = http_answer("401 Unauthorized", b'{"type": "urn:cfs:error:unauthorized", "detail": "who are you?"}')
    with impostor(refusal) as server, Client(server.url, given) as client:
        for _ in range(2):
            with pytest.raises(Unauthorized, match="who are you"):
                client.call(api.append("a", b"x"))
        with pytest.raises(Unauthorized):
            next(client.events(api.events()))
    if sent is None:
        assert [b"Bearer" in request for request in server.asked] == [False] * 3
    else:
        assert [b"Bearer " + sent in request for request in server.asked] == [True] * 3


def test_the_url_may_have_a_path_in_front_and_a_slash_behind() -> None:
    other = impostor(http_answer("404 Not Found", b"{}"))
    with other as server, Client(server.url + "/cfs/") as client, pytest.raises(NotFound):
        client.call(api.read("ä b/c"))
    assert server.asked[0].startswith(b"GET /cfs/v1/sessions/%C3%A4%20b/c HTTP/1.1\r\n")


def test_a_stream_goes_on_after_lost_connections_without_a_gap(
    http_harness: HttpHarness, wire: Relay, client: Client
) -> None:
    http_harness.hold()
    http_harness.write("a", "one two three")
    seen: list[StreamEvent] = []
    with closing(client.events(api.events("a", after="0"))) as events:
        for event in events:
            seen.append(event)
            if event.type == "token":
                wire.cut()
                wire.drop(1)
            if event.type in ("state.changed", "token"):
                http_harness.step(2)
            if event.type == "turn.finished":
                break
    assert numbers(seen) == list(range(1, len(seen) + 1))
    assert "".join(event.data.get("text", "") for event in seen) == "one two three"
    assert wire.accepted >= 3


def test_a_reply_is_whole_although_its_connection_is_lost_again_and_again(
    http_harness: HttpHarness, wire: Relay
) -> None:
    text = "one two three four"
    http_harness.hold()
    with Session("a", url=wire.url) as session, closing(session.stream(text)) as pieces:
        said = ""
        http_harness.step()
        for piece in pieces:
            said += piece
            wire.cut()
            http_harness.step()
        http_harness.release()
        assert said == text
    assert http_harness.server.store.get("a").history.text == f"User: {text}\nAssistant: {text}\n"


async def test_a_slow_reply_is_waited_for_over_any_number_of_connections(
    http_harness: HttpHarness, wire: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cfs.transports.async_http.QUICK_SECONDS", 0.05)
    http_harness.hold()
    async with AsyncSession("a", url=wire.url) as session:
        sending = asyncio.create_task(session.send("hello"))
        for _ in range(3):
            await until(lambda: http_harness.server.parts.streams.open)
            wire.cut()
            await until(lambda: not http_harness.server.parts.streams.open)
        http_harness.release()
        response = await sending
    assert response.history == ["User: hello", "Assistant: hello"]
    assert (response.usage is not None, response.finish_reason) == (True, "stop")


def test_a_slow_reply_is_found_among_many_events(
    http_harness: HttpHarness, wire: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cfs.transports.http.QUICK_SECONDS", 0.0)
    with Session("a", url=wire.url) as session:
        text = " ".join(map(str, range(500)))
        for _ in range(7):  # more events than are kept: the first one is stale
            assert session.send(text).text == text
        assert isinstance(http_harness.server.store.get("a").log.since(0), Stale)


async def test_a_reply_arrives_although_its_first_connection_is_lost(http_harness: HttpHarness, wire: Relay) -> None:
    http_harness.hold()
    async with AsyncSession("a", url=wire.url) as session:
        sending = asyncio.create_task(session.send("hello"))
        await until(lambda: http_harness.server.store.get("a").running)
        wire.cut()
        await until(lambda: wire.accepted > 1)
        http_harness.release()
        assert (await sending).text == "hello"
        assert await session.history == ["User: hello", "Assistant: hello"]


def test_a_connection_that_cannot_be_made_again_ends_the_stream(
    http_harness: HttpHarness, wire: Relay, client: Client
) -> None:
    http_harness.write("a", "hello")
    with closing(client.events(api.events("a", after="0"), attempts=2)) as events:
        assert next(events).type == "session.created"
        wire.drop(100)
        wire.cut()
        with pytest.raises(Unreachable):
            for _ in events:
                pass
    assert wire.accepted == 3


def test_a_stream_that_lost_events_says_so_and_shows_the_present(http_harness: HttpHarness, client: Client) -> None:
    http_harness.write("a", "hello")
    client.call(api.wait("a", 5))
    with closing(client.events(api.events("a", after="00000000-1"))) as events:
        stale = next(events)
    assert stale.type == "stale"
    assert [message["content"] for message in stale.data["session"]["history"]] == ["hello", "hello"]


def test_a_stream_that_breaks_before_its_first_event_is_stale(
    http_harness: HttpHarness, wire: Relay, client: Client
) -> None:
    http_harness.write("a", "hello")
    client.call(api.wait("a", 5))
    seen: list[StreamEvent] = []
    breaking = threading.Timer(0.2, wire.cut)
    breaking.start()
    with closing(client.events(api.events("a"))) as events:
        seen.append(next(events))
        http_harness.write("a", "more")
        seen.append(next(events))
    breaking.join()
    assert [event.type for event in seen] == ["stale", "message.added"]


def test_the_events_of_a_turn_are_those_of_that_turn_only(http_harness: HttpHarness, client: Client) -> None:
    http_harness.write("a", "other")
    events = list(client.events(api.converse("a", NewMessage(content="mine"))))
    http_harness.write("a", "another")
    assert len({event.turn for event in events}) == 1
    assert events[-1].type == "turn.finished"


async def test_a_stream_that_is_left_closes_its_connection(http_harness: HttpHarness) -> None:
    async with AsyncClient(http_harness.url) as client:
        http_harness.write("a", "hello")
        async with aclosing(client.events(api.events("a", after="0"))) as events:
            await anext(events)
            assert http_harness.server.parts.streams.open == 1
        http_harness.wait_until(lambda: http_harness.server.parts.streams.open == 0)


def test_files_are_written_read_and_listed_by_their_versions(http_harness: HttpHarness) -> None:
    """A write names the version that it replaces; a part of a file comes with the size of the whole."""
    path = "/workspaces/calls/notes/plän 1.md"
    with Client(http_harness.url) as client:
        first = client.call(api.write_file(path, b"Buy milk.", new=True))
        assert (first.new, first.info.path, first.info.size) == (True, path, 9)
        assert client.call(api.read_file(path)) == api.FilePart(b"Buy milk.", 9, first.etag)
        assert client.call(api.read_file(path, 4, 3)) == api.FilePart(b"mil", 9, first.etag)
        with pytest.raises(PreconditionFailed):
            client.call(api.write_file(path, b"Buy bread.", new=True))
        second = client.call(api.write_file(path, b"Buy bread.", etag=first.etag))
        assert not second.new
        assert second.etag != first.etag
        with pytest.raises(PreconditionFailed):
            client.call(api.write_file(path, b"Buy eggs.", etag=first.etag))
        assert client.call(api.file(path)).version == second.info.version
        page = client.call(api.files("/workspaces/calls/"))
        assert [info.path for info in page.files] == [path]
        with pytest.raises(PreconditionFailed):
            client.call(api.delete_file(path, etag=first.etag))
        client.call(api.delete_file(path, etag=second.etag))
        with pytest.raises(NotFound):
            client.call(api.read_file(path))
