"""A new session's name must not look like that of another session, however it is created (S1)."""

import unicodedata
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from cfs import AsyncSession, LooksAlike, api
from cfs_server.sessions.index import LookAlikes, difference
from tests.server.restarting import Restarting
from tests.server.support import ServerHarness

NAME = "café notes"
OTHERS = {
    "decomposed": unicodedata.normalize("NFD", NAME),
    "no-break space": NAME.replace(" ", "\N{NO-BREAK SPACE}"),
    "zero-width space": NAME + "\N{ZERO WIDTH SPACE}",
}


async def create(server: ServerHarness, name: str, **more: Any) -> httpx.Response:
    """Create a session by its own request."""
    return await server.client.post("/v1/sessions", json={"id": name}, **more)


def require_refused(answer: httpx.Response, existing: str = NAME) -> None:
    """Check that a request was refused with the name that is there."""
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (409, "urn:cfs:error:looks-alike")
    assert problem["existing"] == existing
    assert repr(existing) in problem["detail"]


@pytest.mark.parametrize("title", OTHERS)
async def test_each_way_to_create_a_session_refuses_the_name(server: ServerHarness, title: str) -> None:
    other = OTHERS[title]
    path = f"/v1/sessions/{quote(other, safe='')}"
    dav = f"/dav/sessions/{quote(other, safe='')}"
    http = server.client
    assert (await create(server, NAME)).status_code == 201
    assert (await create(server, "a")).status_code == 201
    require_refused(await create(server, other))
    require_refused(await http.post(f"{path}/messages", content="hi"))
    require_refused(await http.post(f"{path}/messages", content=""))
    require_refused(await create(server, f"{other}/coder"))
    require_refused(await http.post("/v1/sessions/a/rename", json={"id": other}))
    require_refused(await http.post("/v1/sessions/a/fork", json={"id": other}))
    require_refused(await http.put(dav, content="hi"))
    require_refused(await http.request("MOVE", "/dav/sessions/a", headers={"Destination": dav}))
    require_refused(await http.request("COPY", "/dav/sessions/a", headers={"Destination": dav}))
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    recorded = await http.post("/v1/chat/completions", json=chat, headers={api.SESSION: quote(other)})
    assert (recorded.status_code, NAME in recorded.text) == (409, True)
    with pytest.raises(LooksAlike) as caught:
        async with AsyncSession(other, url=server.url):
            pass
    assert caught.value.extra["existing"] == NAME
    assert sorted(session.id for session in server.store) == ["a", NAME]
    assert (await http.get(path)).status_code == 404


async def test_the_names_that_exist_work(server: ServerHarness) -> None:
    """What is there is used under its exact name, also if it came there before another one was allowed."""
    other = OTHERS["decomposed"]
    assert (await create(server, NAME)).status_code == 201
    assert (await create(server, other, params={"look_alike": "allow"})).status_code == 201
    for name in (NAME, other):
        path = f"/v1/sessions/{quote(name)}"
        assert (await server.client.post(f"{path}/messages", content=name, params={"wait": "true"})).status_code == 200
        assert (await server.client.get(path)).json()["history"][0]["content"] == name
        assert (await create(server, f"{name}/coder")).status_code == 201
        assert (await create(server, name)).json()["type"] == "urn:cfs:error:already-exists"
    require_refused(await create(server, OTHERS["no-break space"]))
    refused = await create(server, OTHERS["no-break space"], params={"look_alike": "yes"})
    assert (refused.status_code, refused.json()["errors"][0]["at"]) == (422, "query.look_alike")
    put = await server.client.put(f"/dav/sessions/{quote(OTHERS['no-break space'])}?look_alike=allow", content="hi")
    assert put.status_code == 201


async def test_a_name_is_free_when_its_look_alike_is_gone(server: ServerHarness) -> None:
    """Deleted, renamed to something else, or renamed to the very name."""
    first, second, third = NAME, *list(OTHERS.values())[:2]
    path = "/v1/sessions/{}"
    assert (await create(server, second)).status_code == 201
    require_refused(await create(server, first), second)
    assert (await server.client.delete(path.format(quote(second)))).status_code == 204
    assert (await create(server, first)).status_code == 201
    assert (await server.client.post(f"{path.format(quote(first))}/rename", json={"id": third})).status_code == 200
    require_refused(await create(server, second), third)
    assert (await server.client.post(f"{path.format(quote(third))}/rename", json={"id": "b"})).status_code == 200
    assert (await create(server, second)).status_code == 201
    server.store.check_integrity()


def test_look_alikes_are_known_after_a_crash(tmp_path: Path) -> None:
    """The index is made again from the sessions of the journal."""
    with ExitStack() as stack:
        server = Restarting(tmp_path / "data", stack)
        server.direct.call(api.create(OTHERS["decomposed"]))
        server.kill()
        server.start()
        with pytest.raises(LooksAlike) as caught:
            server.direct.call(api.create(NAME))
        assert caught.value.extra["existing"] == OTHERS["decomposed"]
        server.direct.call(api.create(NAME, look_alike=True))


def test_a_creation_looks_at_no_more_than_the_names_that_look_alike() -> None:
    """Plain names are not indexed at all; a name finds its look-alikes by two look-ups."""

    class Names(set[str]):
        """Counts the questions for a name."""

        asked = 0

        def __contains__(self, name: object) -> bool:
            self.asked += 1
            return super().__contains__(name)

        def __iter__(self) -> Any:
            raise AssertionError("all names were looked at")

    names = Names(f"session {number}" for number in range(10_000))
    index = LookAlikes(names)
    for number in range(10_000):
        index.add(f"session {number}")
    assert index._folded == {}
    assert list(index.of("session\N{NO-BREAK SPACE}7")) == ["session 7"]
    assert list(index.of("session 7")) == []
    assert names.asked == 1


def test_the_difference_names_the_characters() -> None:
    assert difference("a b", "a\N{NO-BREAK SPACE}b") == "U+0020 SPACE, U+00A0 NO-BREAK SPACE"
    assert difference("a  b", "a b") == "their spaces"
