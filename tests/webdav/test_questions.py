"""Questions of agents over WebDAV: listed, read and answered, by those who may (A5, W3)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from cfs import api
from cfs.transports.http import Client
from cfs_filesystem import OPERATIONS, Grant, Operation
from tests.client.test_cli_questions import held as held_turn
from tests.fuse.support import Stage, names, until
from tests.server.guests import Guest, guests
from tests.server.support import ServerHarness, running_server
from tests.server.test_questions import ask, held
from tests.webdav.davmount import mounting, reason_to_skip
from tests.webdav.wire import METHODS, Dav

ROOT = "/questions/"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ServerHarness]:
    """A server without tokens."""
    async with running_server() as server:
        yield server


async def asked(server: ServerHarness, text: str = "make test") -> str:
    """Ask in the session `a`, and return the id of the question."""
    return await ask(server.client, await held(server.client), text)


async def test_a_question_is_listed_read_and_answered(server: ServerHarness) -> None:
    dav = Dav(server.client)
    assert (await dav.names(ROOT), (await dav("GET", ROOT)).text) == ([], "")
    question = await asked(server, "make\u202e\ntest")
    path = f"{ROOT}a/{question}"
    assert await dav.names(ROOT) == ["a/"]
    assert await dav.names(f"{ROOT}a/") == [question]
    assert (await dav("GET", ROOT)).text == "a/\n"
    assert (await dav("GET", f"{ROOT}a")).text == f"{question}\n"
    read = await dav("GET", path)
    assert read.text == (
        "a asks: may it run this command?\n  | make<U+202E>\n  | test\nAnswer with one word: allow, always, deny\n"
    )
    assert (read.headers["etag"], read.headers["content-type"]) == (f'"{question}"', "text/plain; charset=utf-8")
    (entry,) = (await dav.find(path, "{DAV:}getcontentlength", "{DAV:}getetag", depth="0")).values()
    assert entry.values == {"{DAV:}getcontentlength": str(len(read.content)), "{DAV:}getetag": f'"{question}"'}
    for wrong, status in ((b"perhaps", 422), (b"", 422), (b"\xff", 415), (b"allow" + b" " * 5_000, 422)):
        assert (await dav("PUT", path, wrong)).status_code == status
    assert (await dav("PUT", path, b"allow", if_match='"other"')).status_code == 412
    assert (await dav("PUT", path, b"allow\n")).status_code == 204
    assert server.store.get("a").questions[question].answer == "allow"
    assert (await dav.names(ROOT), await dav.names(f"{ROOT}a/")) == ([], [])
    late = await dav("PUT", path, b"deny")
    assert (late.status_code, late.json()["answer"]) == (409, "allow")
    assert (await dav("GET", path)).status_code == 404
    assert (await dav("PUT", f"{ROOT}a/{'0' * 32}", b"deny")).status_code == 404


async def test_a_sub_session_has_one_name_in_its_collection(server: ServerHarness) -> None:
    """In a URL its percent sign is escaped."""
    await server.client.post("/v1/sessions", json={"id": "a"})
    await server.client.post("/v1/sessions", json={"id": "a/b", "settings": {"driver": "agent"}})
    await server.client.post("/v1/sessions/a/b/messages", content=b"go")
    claim = (await server.client.post("/v1/sessions/a/b/claim", json={})).json()["claim"]
    new = {"claim": claim, "text": 'write_file {"path": "x"}', "kind": "write"}
    question = (await server.client.post("/v1/sessions/a/b/questions", json=new)).json()["id"]
    dav = Dav(server.client)
    assert await dav.names(ROOT) == ["a%252Fb/"]
    assert await dav.names(f"{ROOT}a%252Fb/") == [question]
    text = (
        'a/b asks: may it change this file?\n  | write_file {"path": "x"}\nAnswer with one word: allow, always, deny\n'
    )
    assert (await dav("GET", f"{ROOT}a%252Fb/{question}")).text == text
    assert (await dav("GET", f"{ROOT}a/b/{question}")).status_code == 404
    assert (await dav("PUT", f"{ROOT}a%252Fb/{question}", b"deny")).status_code == 204
    assert server.store.get("a/b").questions[question].answer == "deny"


async def test_nothing_else_changes_anything(server: ServerHarness) -> None:
    dav = Dav(server.client)
    question = await asked(server)
    before = server.store.get("a").log.last
    for method in METHODS:
        for path in (
            ROOT,
            f"{ROOT}a",
            f"{ROOT}new",
            f"{ROOT}a/new",
            f"{ROOT}a/{question}",
            f"{ROOT}.x",
            f"{ROOT}a/b/c",
        ):
            if method == "PUT" and path.endswith(question):
                continue
            body = b"allow" if method == "PUT" else b""
            answer = await dav(method, path, body, depth="0", destination="/dav/sessions/x")
            assert answer.status_code != 500, (method, path, answer.status_code)
    assert server.store.get("a").log.last == before
    assert (await dav("PUT", f"{ROOT}a", b"allow")).status_code == 403
    assert (await dav("DELETE", f"{ROOT}a/{question}")).status_code == 403
    assert (await dav("MKCOL", f"{ROOT}a/{'1' * 32}")).status_code in (403, 404)


async def test_of_many_answers_one_counts(server: ServerHarness) -> None:
    path = f"{ROOT}a/{await asked(server)}"
    dav = Dav(server.client)
    given = [b"allow", b"deny"] * 4
    answers = await asyncio.gather(*(dav("PUT", path, word) for word in given))
    (won,) = [word for word, answer in zip(given, answers, strict=True) if answer.status_code == 204]
    assert {answer.status_code for answer in answers} == {204, 409}
    assert server.store.get("a").questions[path[-32:]].answer == won.decode()


def grants(*operations: Operation) -> Sequence[Grant]:
    return [Grant(prefix="/sessions/a", ops=frozenset(operations))] if operations else []


async def test_rights_decide_what_is_seen_and_answered() -> None:
    """Without rights there is nothing; with some, no more than REST allows; the asker does not answer."""
    async with (
        running_server() as server,
        guests(
            server,
            agent=[Grant(prefix="/", ops=OPERATIONS)],
            person=[Grant(prefix="/", ops=OPERATIONS)],
            reader=grants("read_binary", "list", "file"),
            writer=grants("write"),
            stranger=[Grant(prefix="/sessions/mine", ops=OPERATIONS)],
        ) as known,
    ):
        dav = {name: Dav(guest.client) for name, guest in known.items()}
        question = await ask(known["agent"].client, await held(known["agent"].client))
        path = f"{ROOT}a/{question}"
        assert [await dav[name].names(ROOT) for name in ("person", "reader", "writer", "stranger")] == [
            ["a/"], ["a/"], [], [],
        ]  # fmt: skip
        for name, seen, answered in (
            ("reader", 200, 403), ("writer", 403, None), ("stranger", 404, 404), ("agent", 200, 403),
        ):  # fmt: skip
            assert (await dav[name]("GET", path)).status_code == seen, name
            if answered is not None:
                assert (await dav[name]("PUT", path, b"allow")).status_code == answered, name
        absent = await dav["stranger"]("GET", f"{ROOT}absent/{question}")
        assert absent.json()["detail"].replace("absent", "a") == (await dav["stranger"]("GET", path)).json()["detail"]
        assert server.store.get("a").questions[question].answer is None
        assert (await dav["person"]("PUT", path, b"deny")).status_code == 204
        assert server.store.get("a").questions[question].by == "person"


async def test_who_may_not_answer_is_refused_before_a_body_is_read() -> None:
    async with (
        running_server() as server,
        guests(server, agent=[Grant(prefix="/", ops=OPERATIONS)], reader=grants("read_binary")) as known,
    ):
        question = await ask(known["agent"].client, await held(known["agent"].client))
        for guest, name, status in (("reader", question, 403), ("agent", question, 403), ("agent", "0" * 32, 404)):
            assert await early(server, known[guest], f"/dav{ROOT}a/{name}") == status


async def early(server: ServerHarness, guest: Guest, path: str) -> int:
    """Return the status of a PUT most of whose body never comes."""
    url = httpx.URL(server.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        token = guest.credentials["Authorization"]
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: 100000\r\n\r\n"
        writer.write(head.encode() + b"al")
        async with asyncio.timeout(30):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


def test_davfs2_sends_an_answer(stage: Stage, tmp_path: Path) -> None:
    """It shows a refused answer as taken, and puts it into lost+found (docs/webdav.md)."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Client(stage.url) as client:
        question = client.call(api.ask("davfs", held_turn(client, "davfs").claim, "make"))
        with mounting(f"{stage.url}/dav/questions/", tmp_path / "m") as mount:
            assert "may it run this command" in mount.shell(f"cat $M/davfs/{question.id}").stdout
            done = mount.shell(f"echo deny > $M/davfs/{question.id}")
            assert (done.returncode, done.stderr) == (0, "")
            until(lambda: client.call(api.question("davfs", question.id)).answer == "deny")
            assert names(mount / "lost+found") == []
