"""Who calls: every request is somebody's, or is refused (G9; RFC 6750, RFC 7617)."""

import asyncio
import base64
import string
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from starlette.routing import Route
from structlog.testing import capture_logs

from cfs.errors import Unauthorized
from cfs_server.access import tokens
from cfs_server.access.auth import Principal
from cfs_server.app import create_app
from cfs_server.base.owned_file import signature
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.host.scripted import ScriptedEngine
from tests.access.support import Gated, basic, bearer, gated, granted, make
from tests.server.slow import STRANGERS, WITH_BODIES, SlowUpload
from tests.server.support import EventStream, running_server, until
from tests.server.test_errors import problem_in
from tests.webdav.wire import METHODS

OPEN = {"/", "/health", "/healthz", "/readyz", "/openapi.json", "/dashboard/{name}"}
CHALLENGES = 'Bearer realm="cfs", Basic realm="cfs", charset="UTF-8"'
CHOSEN = "pä55:wörd:"
"""A secret that somebody chose and hashed by hand; it has what must not be taken apart."""

APP = create_app(ServerSettings(), ScriptedEngine())
ROUTES = sorted(
    {
        (method, str(getattr(route.original_route, "path_format", route.original_route.path)))
        for route in iter_route_contexts(APP.routes)
        if isinstance(route.original_route, Route)
        for method in route.methods or ()
    }
)


@pytest.fixture
async def gate(file: Path) -> AsyncIterator[Gated]:
    """A server with a token for everything, `root`, and one whose secret was chosen by hand."""
    secret = make(file, "root", "/")
    with file.open("a") as out:
        out.write(f'[tokens.chosen]\nhash = "{tokens.digest(CHOSEN)}"\n')
    async with gated(file, {"root": secret}) as gate:
        yield gate


def secret_of(client: httpx.AsyncClient) -> str:
    """The token that a client sends."""
    return client.headers["Authorization"].removeprefix("Bearer ")


async def asked(gate: Gated, authorization: bytes) -> httpx.Response:
    """Send a header as it is: httpx would not send those that are not legal."""
    url = httpx.URL(gate.server.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: ")
    writer.write(authorization + b"\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


def refused(answer: httpx.Response, path: str = "") -> str:
    """Check that a request was refused, in the shape of all errors or its protocol's own, and with what would help."""
    assert problem_in(answer, path).status == 401
    assert answer.headers["WWW-Authenticate"] == CHALLENGES
    return answer.text


# -- what credentials look like ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "Bearer   "])
async def test_a_token_is_taken_as_a_bearer_token(gate: Gated, scheme: str) -> None:
    head = {"Authorization": scheme + secret_of(gate["root"])}
    assert (await gate.server.client.get("/v1/whoami", headers=head)).json()["name"] == "root"


@pytest.mark.parametrize("user", ["", "root", "chosen", "anybody at all", "ü"])
@pytest.mark.parametrize("scheme", ["Basic", "basic", "BASIC"])
async def test_a_token_is_taken_as_the_password_of_any_user(gate: Gated, user: str, scheme: str) -> None:
    head = basic(user, secret_of(gate["root"]))["Authorization"].replace("Basic", scheme)
    answer = await gate.server.client.get("/v1/whoami", headers={"Authorization": head})
    assert answer.json()["name"] == "root"


async def test_a_password_may_hold_colons_and_any_character(gate: Gated) -> None:
    answer = await gate.server.client.get("/v1/whoami", headers=basic("x", CHOSEN))
    assert answer.json()["name"] == "chosen"
    for part in (CHOSEN.split(":")[0], CHOSEN.removesuffix(":"), CHOSEN + ":"):
        refused(await gate.server.client.get("/v1/whoami", headers=basic("x", part)))


def bad_headers(secret: str) -> Iterator[bytes]:
    """Headers that let nobody in; most of them are nearly right."""
    right = secret.encode()
    yield from (b"", b" ", b"Bearer", b"Bearer ", b"Basic", b"Basic ", right, b"Token " + right, b"Digest " + right)
    yield from (b"Bearer" + right, b"Bearer\t" + right, b"Bearer " + right + b" x", b"Bearer x" + right)
    yield from (b"Bearer " + right[:-1], b"Bearer " + right + b"A", b"Bearer " + right.swapcase(), b"Bearer \xff\xfe")
    yield from (b"Bearer " + tokens.digest(secret).encode(), b"Bearer " + tokens.digest(secret)[7:].encode())
    yield from (b"Bearer " + secret.removeprefix("cfs_").encode(), b"Bearer root", b"Bearer null", b'Bearer "' + right)
    for inside in (right, b":", b"root:", b"root:x", right + b":", right + b":x", b"x:\xff" + right, b"\xff:\xff", b""):
        yield b"Basic " + base64.b64encode(inside)
    encoded = base64.b64encode(b"x:" + right)
    yield from (b"Basic " + encoded[:-1], b"Basic " + encoded + b"=", b"Basic *" + encoded, b"Basic " + right)
    yield from (
        b"Basic \xe9",
        b"Basic \xff\xff\xff\xff",
        b"Basic " + base64.b64encode(("x:" + secret).encode("utf-16")),
    )


async def test_nothing_else_lets_anybody_in_and_the_answer_repeats_no_secret(gate: Gated) -> None:
    secret = secret_of(gate["root"])
    for value in bad_headers(secret):
        answer = await asked(gate, value)
        assert secret[4:] not in refused(answer), value


async def test_no_credentials_at_all_are_refused_with_the_same_challenges(gate: Gated) -> None:
    assert "Authorization: Bearer TOKEN" in refused(await gate.server.client.get("/v1/sessions"))


async def test_wrong_credentials_are_refused_even_where_none_are_needed(gate: Gated) -> None:
    refused(await gate.server.client.get("/healthz", headers=bearer("wrong")))


async def test_a_refused_request_changes_nothing(gate: Gated) -> None:
    for head in ({}, bearer("wrong")):
        refused(await gate.server.client.post("/v1/sessions/a/messages", content=b"x", headers=head))
        refused(await gate.server.client.put("/v1/files/workspaces/a/b", content=b"x", headers=head))
    assert (await gate["root"].get("/v1/files")).json()["files"] == []
    assert len(gate.server.store) == 0


# -- what is looked up ------------------------------------------------------------------------------------------------


class Recorded(dict[str, str]):
    """A table that remembers what it was asked for."""

    def __init__(self, items: dict[str, str]) -> None:
        super().__init__(items)
        self.asked: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        """Look up, and remember."""
        self.asked.append(key)
        return super().get(key, default)


async def test_what_is_compared_says_nothing_of_how_much_of_a_token_is_right(gate: Gated) -> None:
    """Tokens are found by their hashes: wrong ones that begin as a right one does are as far from it as any others.

    What can be measured of it is in `bench/access.py`.
    """
    secret, principals = secret_of(gate["root"]), gate.server.parts.principals
    principals._names = table = Recorded(principals._names)
    for length in range(len(secret)):
        other = next(letter for letter in string.ascii_letters if letter != secret[length])
        with pytest.raises(Unauthorized):
            principals.authenticate(f"Bearer {secret[:length]}{other}{secret[length + 1 :]}")
        with pytest.raises(Unauthorized):
            principals.authenticate(f"Bearer {secret[:length]}")
    right = tokens.digest(secret)
    assert principals.authenticate(f"Bearer {secret}") is not None
    assert table.asked.pop() == right
    assert len(set(table.asked)) == len(secret) * 2 - 1, "an empty one is refused before"
    same = [next(n for n, pair in enumerate(zip(right, key, strict=True)) if len(set(pair)) > 1) for key in table.asked]
    assert max(same) < len("sha256:") + 16
    assert all(secret[:8] not in key for key in table.asked)


# -- what is open -----------------------------------------------------------------------------------------------------


def test_the_walk_sees_all_there_is() -> None:
    """Whatever is no plain route (a mount, a web socket) needs a test of its own, as `/dav` has below."""
    assert len(ROUTES) >= 27
    assert {path for _, path in ROUTES} >= OPEN | {"/metrics", "/v1/whoami", "/v1/files/{path}"}
    others = [each.original_route for each in iter_route_contexts(APP.routes)]
    assert [getattr(each, "path", each) for each in others if not isinstance(each, Route)] == ["/dav"]


@pytest.mark.parametrize("method", sorted({method for method, _ in ROUTES}))
async def test_every_route_wants_a_token_but_those_that_say_nothing_of_anybody(gate: Gated, method: str) -> None:
    for path in (path for each, path in ROUTES if each == method):
        await require_token(gate, method, path)


async def require_token(gate: Gated, method: str, path: str) -> None:
    """Require that a route needs a token, unless it is open, and that the token of `root` is one."""
    names = {
        "model": "m",
        "share": "s",
        "question": "q",
        "name": "main.js",
        "item": "i",
        "response": f"resp_{'0' * 65}",
    }
    place = path.format(id="a", turn="0" * 32, path="sessions/a", **names)
    bare = await gate.server.client.request(method, place)
    if path in OPEN:
        assert bare.status_code == 200, path
    else:
        assert bare.status_code == 401, path
        assert bare.headers["WWW-Authenticate"] == CHALLENGES
        assert method == "HEAD" or refused(bare, path)
    wrong = await gate.server.client.request(method, place, headers=bearer("wrong"))
    assert wrong.status_code == 401, path
    right = await gate["root"].request(method, place, timeout=10) if not place.endswith("events") else None
    assert right is None or right.status_code not in (401, 403), path


@pytest.mark.parametrize("method", METHODS)
async def test_webdav_wants_a_token(gate: Gated, method: str) -> None:
    for place in ("", "/", "/sessions/", "/sessions/a", "/sub_sessions/a/b", "/workspaces/a/b", "/nothing"):
        for headers in ({}, bearer("wrong")):
            bare = await gate.server.client.request(method, "/dav" + place, headers=headers)
            assert bare.headers["WWW-Authenticate"] == CHALLENGES
            assert bare.status_code == 401 if method == "HEAD" else refused(bare)


NOWHERE = (
    "/nothing /v1 /v1/ /docs /redoc /v2/sessions /healthz/ /healthz/x /HEALTHZ //healthz /healthz/../v1/sessions"
    " /%2e%2e/metrics /v1/sessions/healthz /v1/healthz /openapi.json/ /*"
)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "PROPFIND"])
async def test_a_path_that_is_not_there_is_no_hint_for_strangers(gate: Gated, method: str) -> None:
    for path, head in product(NOWHERE.split(), ({}, bearer("wrong"))):
        raw = httpx.URL(gate.server.url).copy_with(raw_path=path.encode())
        answer = await gate.server.client.request(method, raw, headers=head)
        assert answer.status_code == 401, path


async def test_what_is_open_names_no_principal_and_no_session(gate: Gated) -> None:
    assert (await gate["root"].post("/v1/sessions", json={"id": "diary"})).status_code == 201
    for path in OPEN:
        text = (await gate.server.client.get(path)).text
        assert "diary" not in text
        assert "root" not in text.replace("roots", "")


async def test_the_figures_are_for_those_who_may_list_everything(file: Path) -> None:
    secrets = {
        "lister": make(file, "lister", "/=list"),
        "both": make(file, "both", "/sessions/=list", "/workspaces/=list"),
        "reader": make(file, "reader", "/=read"),
        "alice": make(file, "alice", "/sessions/alice"),
    }
    async with gated(file, secrets) as gate:
        assert "cfs_sessions" in (await gate["lister"].get("/metrics")).text
        for name in ("both", "reader", "alice"):
            assert problem_in(await gate[name].get("/metrics")).status == 403
        refused(await gate.server.client.get("/metrics"))


# -- tokens come, change and go while the server runs -----------------------------------------------------------------


async def test_a_token_that_is_over_is_refused_from_the_start(file: Path) -> None:
    over = tokens.create(file, "over", [granted("/")], expires=datetime.now(UTC) - timedelta(seconds=1))
    on = tokens.create(file, "on", [granted("/")], expires=datetime.now(UTC) + timedelta(days=1))
    async with gated(file, {"over": over, "on": on}) as gate:
        assert "has expired" in refused(await gate["over"].get("/v1/whoami"))
        assert await gate.status("on") == 200


async def disarmed(principal: Principal) -> None:
    """Wait until a principal may do nothing any more."""
    await until(lambda: not principal.handle.grants)


async def test_a_token_ends_while_the_server_runs_and_so_do_its_streams(file: Path) -> None:
    root = make(file, "root", "/")
    for seconds in (1, 4, 16):  # on a machine that is busy the first may be over before it is used
        ends = datetime.now(UTC) + timedelta(seconds=seconds)
        secret = tokens.create(file, f"brief{seconds}", [granted("/")], expires=ends)
        async with gated(file, {"root": root, "brief": secret}) as gate:
            assert (await gate["root"].post("/v1/sessions", json={"id": "a"})).status_code == 201
            if await gate.status("brief") != 200:
                continue
            async with await EventStream.open(gate.server.url, "/v1/sessions/a/events", bearer(secret)) as stream:
                if stream.status != 200:
                    continue
                await gate.until_status("brief", 401)
                assert datetime.now(UTC) >= ends
                await disarmed(gate.server.parts.principals._principals[f"brief{seconds}"])
                await gate["root"].post("/v1/sessions/a/messages", content=b"late")
                assert "late" not in "".join(event.data for event in await stream.rest())
            return
    pytest.fail("no token lived long enough to be used")


async def test_a_token_is_taken_away_and_another_added_while_the_server_runs(file: Path) -> None:
    secrets = {"alice": make(file, "alice", "/"), "bob": make(file, "bob", "/")}
    async with gated(file, secrets) as gate:
        assert (await gate["alice"].post("/v1/sessions", json={"id": "a"})).status_code == 201
        await asyncio.to_thread(tokens.revoke, file, "alice")
        await gate.until_status("alice", 401)
        assert "has been revoked" in refused(await gate["alice"].get("/v1/sessions/a"))
        assert (await gate["bob"].get("/v1/sessions/a")).status_code == 200, "what she made stays"
        gate.admit("carol", await asyncio.to_thread(make, file, "carol", "/"))
        await gate.until_status("carol", 200)
        assert await gate.status("bob") == 200


async def test_streams_end_with_the_token_although_nothing_happens_in_them(file: Path) -> None:
    secrets = {"alice": make(file, "alice", "/"), "bob": make(file, "bob", "/")}
    async with gated(file, secrets) as gate:
        assert (await gate["bob"].post("/v1/sessions", json={"id": "a"})).status_code == 201
        paths = ("/v1/events", "/v1/sessions/a/events")
        hers = [await EventStream.open(gate.server.url, path, bearer(secrets["alice"])) for path in paths]
        async with await EventStream.open(gate.server.url, "/v1/events", bearer(secrets["bob"])) as his:
            await asyncio.to_thread(tokens.revoke, file, "alice")
            assert [await stream.rest() for stream in hers] == [[], []]
            await until(lambda: gate.server.parts.streams.open == 1)
            assert (await gate["bob"].delete("/v1/sessions/a")).status_code == 204
            assert (await his.take(1))[0].event == "session.deleted"
        for stream in hers:
            stream.close()


async def test_what_a_token_may_do_changes_in_the_middle_of_what_it_does(file: Path) -> None:
    secret = make(file, "alice", "/sessions/alice=list,file,read,write")
    async with gated(file, {"alice": secret}) as gate:
        alice = gate["alice"]
        assert (await alice.post("/v1/sessions", json={"id": "alice"})).status_code == 201
        async with await EventStream.open(gate.server.url, "/v1/sessions/alice/events", bearer(secret)) as stream:
            await gate.edit('"write"', '"delete"')
            while (answer := await alice.post("/v1/sessions/alice/messages", content=b"x")).status_code != 403:
                assert answer.status_code == 202
                await asyncio.sleep(0.05)
            who = (await alice.get("/v1/whoami")).json()
            assert (who["usage"]["sessions"], who["usage"]["streams"]) == (1, 1), "it is the same principal"
            assert (await alice.delete("/v1/sessions/alice")).status_code == 204
            assert (await stream.rest())[-1].event == "session.deleted"


def text_of(file: Path) -> str:
    return file.read_text()


@pytest.mark.parametrize("how", ["no TOML", "deleted", "secret for a hash"])
async def test_a_file_that_breaks_while_the_server_runs_changes_nothing_and_is_logged(file: Path, how: str) -> None:
    secret = make(file, "alice", "/")
    other = file.with_name("other.toml")
    bob = make(other, "bob", "/")
    repaired = "".join(map(text_of, (file, other)))
    broken = {"no TOML": "[tokens", "secret for a hash": f'[tokens.alice]\nhash = "{secret}"'}

    def breaks() -> None:
        if how == "deleted":
            file.unlink()
        else:
            file.write_text(broken[how])

    with capture_logs() as log:
        async with gated(file, {"alice": secret}) as gate:
            await asyncio.to_thread(breaks)
            await until(lambda: any(entry["event"] == "tokens.unreadable" for entry in log))
            assert await gate.status("alice") == 200
            seen = await asyncio.to_thread(signature, file)
            assert gate.server.parts.principals._seen == seen, "it is read again when it changes, not every second"
            await asyncio.to_thread(file.write_text, repaired)
            gate.admit("bob", bob)
            await gate.until_status("bob", 200)
            assert await gate.status("alice") == 200
    told = [entry for entry in log if entry["event"].startswith("tokens.")]
    assert [(entry["event"], entry["log_level"]) for entry in told] == [
        ("tokens.unreadable", "error"),
        ("tokens.changed", "info"),
    ]
    assert told[0]["reason"].startswith(f"{file}: ")
    assert secret not in str(log)


async def test_without_tokens_everybody_is_local_and_may_do_everything() -> None:
    async with running_server() as server:
        for head in ({}, bearer("any"), basic("a", "b"), {"Authorization": "nonsense"}):
            answer = await server.client.get("/v1/whoami", headers=head)
            assert answer.json()["name"] == "local"
        assert (await server.client.get("/metrics")).status_code == 200


async def test_strangers_with_slow_bodies_are_refused_before_their_bodies_and_stop_nobody(gate: Gated) -> None:
    def refused() -> None:
        with ExitStack() as stack:
            for method, path in WITH_BODIES:
                for credentials in STRANGERS:
                    upload = stack.enter_context(SlowUpload(gate.server.url, method, path, credentials))
                    assert upload.status() == 401, (method, path, credentials)

    uploads = asyncio.ensure_future(asyncio.to_thread(refused))
    created = [await gate["root"].post("/v1/sessions", json={"id": f"beside{number}"}) for number in range(9)]
    assert {answer.status_code for answer in created} == {201}
    await uploads
