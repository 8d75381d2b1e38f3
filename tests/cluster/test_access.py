"""Tokens, their limits and shares hold on all replicas together."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import httpx
import pytest

from cfs_server.domain.placement import slot_of
from cfs_server.journal.postgres_database import prepare
from tests.cluster.support import SLOTS, Replicas, replicas
from tests.postgres import running_postgres
from tests.server.fields import HOSTILE, ONE_VALUE, TARGETS, ask
from tests.server.slow import STRANGERS, WITH_BODIES, SlowUpload, first_answered
from tests.server.support import run_cfs

_numbers = count(1)
_UNFINISHED = 30


class Guarded:
    """Two replicas that want a token, and the tokens."""

    def __init__(self, found: Replicas, file: Path) -> None:
        self.replicas = found
        self._file = file

    def token(self, *flags: str) -> str:
        """Make a token, and wait until all slots know it. They look at the file once a second."""
        name = f"t{next(_numbers)}"
        made = run_cfs("token", "create", name, "--tokens", str(self._file), *flags)
        assert made.returncode == 0, made.stderr
        token = _token_in(made.stdout)
        one_of_each = {slot_of(f"n{number}", SLOTS): f"n{number}" for number in range(50)}
        assert len(one_of_each) == SLOTS
        for url in self.replicas.urls:
            for path in ("/v1/whoami", *(f"/v1/sessions/{name}" for name in one_of_each.values())):
                while self.call(url, token, "GET", path).status_code == 401:
                    time.sleep(0.02)
        return token

    def owner_of(self, name: str) -> str | None:
        """Return the address of the replica that has the slot of a name."""
        return self.replicas.owners()[slot_of(name, SLOTS)]

    def call(self, url: str, token: str | None, method: str, path: str, body: object = None) -> httpx.Response:
        """Send a request with a token."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.request(method, url + path, json=body, headers=headers, timeout=60, trust_env=False)


def _token_in(said: str) -> str:
    return next(word for word in said.split() if word.startswith("cfs_"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    first = run_cfs("token", "create", "first", "--grant", "/", "--tokens", str(file))
    assert first.returncode == 0, first.stderr
    with running_postgres() as server:
        url = server.url(server.new_database())
        prepare(url, SLOTS)
        flags = ("--tokens", str(file), "--max-unfinished", str(_UNFINISHED))
        with replicas(2, url, *flags, token=_token_in(first.stdout)) as found:
            yield Guarded(found, file)


def test_without_a_token_no_replica_says_anything(guarded: Guarded) -> None:
    for url in guarded.replicas.urls:
        for path in ("/v1/sessions", "/v1/sessions/a", "/v1/events", "/v1/search?q=x", "/v1/files", "/metrics"):
            assert guarded.call(url, None, "GET", path).status_code == 401, path
        assert guarded.call(url, "wrong", "GET", "/v1/sessions").status_code == 401


def test_no_value_of_a_field_is_a_defect(guarded: Guarded, request: pytest.FixtureRequest) -> None:
    """Nor of those that replicas add for each other: bytes that are not ASCII are refused like any others."""
    owner = f"Authorization: Bearer {guarded.token('--grant', '/')}".encode()
    every = 1 if request.config.getoption("--slow") else 3
    for first, url in enumerate(guarded.replicas.urls):  # the replicas get different ones
        for method, path, body in TARGETS:
            for name in ONE_VALUE:
                fields = [field for field in (owner, b"Host: localhost") if not field.lower().startswith(name + b":")]
                for value in HOSTILE[first % every :: every]:
                    status = ask(url, method, path, *fields, name + b": " + value, body=body, host=False)
                    assert status < 500 or (status, name) == (502, b"destination"), (method, path, name, value)


def test_router_and_application_read_the_same(guarded: Guarded) -> None:
    """A field with two values would lead a request to one slot, and be answered by another one."""
    mine = f"Authorization: Bearer {guarded.token('--grant', '/sessions/mine')}".encode()
    owner = f"Authorization: Bearer {guarded.token('--grant', '/')}".encode()
    for url in guarded.replicas.urls:
        for fields in ((mine, owner), (owner, mine)):
            assert ask(url, "GET", "/v1/sessions", *fields) == 400
        for name in ONE_VALUE:
            for values in ((b"a", b"b"), (b"b", b"a")):
                assert ask(url, "GET", "/v1/sessions", owner, *(name + b": " + value for value in values)) == 400


def test_strangers_with_slow_bodies_stop_nobody(guarded: Guarded) -> None:
    """They are refused before a byte of their body is there, and what they announce takes no room."""
    token = guarded.token("--grant", "/sessions/")
    with ExitStack() as stack:
        for url in guarded.replicas.urls:
            for method, path in WITH_BODIES:
                for credentials in STRANGERS:
                    with SlowUpload(url, method, path, credentials) as upload:
                        assert upload.status() == 401, (method, path, credentials)
            for _ in range(_UNFINISHED // 2):
                upload = stack.enter_context(SlowUpload(url, "POST", "/v1/sessions", STRANGERS[1]))
                assert upload.status() == 401
        for number, url in enumerate(guarded.replicas.urls * 2):
            made = guarded.call(url, token, "POST", "/v1/sessions", {"id": f"beside-strangers-{number}"})
            assert made.status_code == 201, made.text


def test_a_replica_is_no_crowd_to_another_one(guarded: Guarded) -> None:
    """More slow bodies than one address may send come from two addresses, and go on to the other replica.

    That one looks for crowds by and by: it has looked when it refuses those who come to it themselves, and last.
    """
    credentials = f"Bearer {guarded.token('--grant', '/sessions/')}"
    url, owner = guarded.replicas.urls
    name = next(name for name in map("crowd-{}".format, count()) if guarded.owner_of(name) == owner)
    path = f"/v1/sessions/{name}/messages"
    with ExitStack() as stack:
        for address in ("127.0.0.1", "127.0.0.2"):
            for _ in range(_UNFINISHED * 2 // 3):
                last = stack.enter_context(SlowUpload(url, "POST", path, credentials, address, announced=100))
        crowd = [
            stack.enter_context(SlowUpload(owner, "POST", path, credentials, "127.0.0.3"))
            for _ in range(_UNFINISHED + 5)
        ]
        assert first_answered(crowd).status() == 429
        last.send(100 - len(SlowUpload.BEGINNING))
        assert last.status() == 400, "it was read to its end, and is no JSON"


def test_slow_bodies_of_one_caller_stop_no_other(guarded: Guarded) -> None:
    """Bytes count as they come, and those of one caller up to a limit: three bodies of 7 MiB are above it."""
    slow, quick = (guarded.token("--grant", "/sessions/") for _ in range(2))
    url = guarded.replicas.urls[0]
    with ExitStack() as stack:
        uploads = [stack.enter_context(SlowUpload(url, "POST", "/v1/sessions", f"Bearer {slow}")) for _ in range(24)]
        made = guarded.call(url, slow, "POST", "/v1/sessions", {"id": "beside-announced"})
        assert made.status_code == 201, "what is only announced takes no room"
        for upload in uploads[:3]:
            upload.send(7 << 20)
        assert first_answered(uploads).status() == 429
        assert guarded.call(url, quick, "POST", "/v1/sessions", {"id": "beside-slow"}).status_code == 201


def test_the_bearer_of_a_share_creates_on_each_replica(guarded: Guarded) -> None:
    """Only one slot knows the token, but each replica lets it in: at once, and no longer than it is valid."""
    owner = guarded.token("--grant", "/")
    for name in ("open-a", "open-b", "open-c"):
        assert guarded.call(guarded.replicas.urls[0], owner, "POST", "/v1/sessions", {"id": name}).status_code == 201
        made = guarded.call(guarded.replicas.urls[0], owner, "POST", "/v1/shares", {"session": name, "access": "write"})
        token = made.json()["token"]
        for number, url in enumerate(guarded.replicas.urls):
            created = guarded.call(url, token, "POST", "/v1/sessions", {"id": f"{name}/new{number}"})
            assert created.status_code == 201, created.text
            assert guarded.call(url, token, "POST", "/v1/sessions", {"id": f"other{number}"}).status_code in (401, 404)
        guarded.call(guarded.replicas.urls[1], owner, "DELETE", f"/v1/shares/{made.json()['id']}")
        for url in guarded.replicas.urls:
            assert guarded.call(url, token, "POST", "/v1/sessions", {"id": f"{name}/late"}).status_code == 401


def test_each_caller_sees_its_own_sessions_on_all_replicas(guarded: Guarded) -> None:
    one, two = (
        guarded.token(*(flag for at in range(6) for flag in ("--grant", f"/sessions/{name}-{at}")))
        for name in ("one", "two")
    )
    for at, url in enumerate(guarded.replicas.urls * 3):
        for token, prefix in ((one, "one"), (two, "two")):
            made = guarded.call(url, token, "POST", "/v1/sessions", {"id": f"{prefix}-{at}"})
            assert made.status_code == 201, made.text
    for url in guarded.replicas.urls:
        listed = guarded.call(url, one, "GET", "/v1/sessions").json()["sessions"]
        assert [each["id"] for each in listed] == [f"one-{at}" for at in range(6)]
        for at in range(6):
            assert guarded.call(url, two, "GET", f"/v1/sessions/one-{at}").status_code == 404


def test_a_caller_without_rights_learns_no_names(guarded: Guarded) -> None:
    """A rename and a copy are answered alike, whether the name is free, taken, or in another slot."""
    owner = guarded.token("--grant", "/")
    other = guarded.token("--grant", "/sessions/mine")
    taken = [f"taken-{number}" for number in range(6)]
    for name in taken:
        assert guarded.call(guarded.replicas.urls[0], owner, "POST", "/v1/sessions", {"id": name}).status_code == 201
    assert guarded.call(guarded.replicas.urls[0], other, "POST", "/v1/sessions", {"id": "mine"}).status_code == 201
    for token in (other, "wrong", None):
        answers = {
            (path, answer.status_code, answer.json()["type"])
            for path in ("rename", "fork")
            for name in (*taken, *(f"free-{number}" for number in range(6)))
            for url in guarded.replicas.urls
            for answer in (guarded.call(url, token, "POST", f"/v1/sessions/mine/{path}", {"id": name}),)
        }
        assert len(answers) == 2, answers
    for name in taken:
        assert guarded.call(guarded.replicas.urls[1], owner, "GET", f"/v1/sessions/{name}").status_code == 200


def test_a_caller_with_rights_below_a_name_may_move_a_session_there(guarded: Guarded) -> None:
    above = next(name for name in map("to-{}".format, range(99)) if slot_of(name, SLOTS) == slot_of("from", SLOTS))
    owner = guarded.token("--grant", "/")
    token = guarded.token("--grant", "/sessions/from", "--grant", f"/sessions/{above}/below")
    url, other = guarded.replicas.urls
    assert guarded.call(url, owner, "POST", "/v1/sessions", {"id": above}).status_code == 201
    assert guarded.call(url, token, "POST", "/v1/sessions", {"id": "from"}).status_code == 201
    moved = guarded.call(other, token, "POST", "/v1/sessions/from/rename", {"id": f"{above}/below"})
    assert moved.status_code == 200, moved.text
    assert guarded.call(url, token, "GET", f"/v1/sessions/{above}/below").status_code == 200


def test_the_number_of_sessions_of_a_token_is_limited_on_all_replicas_together(guarded: Guarded) -> None:
    token = guarded.token("--grant", "/sessions/", "--sessions", "5")
    first, second = guarded.replicas.urls
    names = [f"limited-{number}" for number in range(12)]
    statuses = [guarded.call(first, token, "POST", "/v1/sessions", {"id": name}).status_code for name in names]
    while 507 not in (
        later := [
            guarded.call(second, token, "POST", "/v1/sessions", {"id": f"more-{at}"}).status_code for at in range(6)
        ]
    ):
        pass  # what the other replica has is known within a second; the test's time-out is the limit
    assert statuses[:5] == [201] * 5
    usages = {guarded.call(url, token, "GET", "/v1/whoami").json()["usage"]["sessions"] for url in (first, second)}
    assert usages <= {5, 6, 7, 8, 9, 10}, "each replica counts the sessions of both"
    assert {*statuses, *later} <= {201, 409, 507}


def test_the_bearer_of_a_share_is_known_on_each_replica(guarded: Guarded) -> None:
    owner = guarded.token("--grant", "/")
    for name in ("shared-a", "shared-b", "shared-c"):
        for url in guarded.replicas.urls:
            guarded.call(url, owner, "POST", f"/v1/sessions/{name}/messages?wait=true", {"content": "hello"})
        made = guarded.call(guarded.replicas.urls[0], owner, "POST", "/v1/shares", {"session": name, "access": "read"})
        assert made.status_code == 201, made.text
        token = made.json()["token"]
        for url in guarded.replicas.urls:
            assert guarded.call(url, token, "GET", f"/v1/sessions/{name}").status_code == 200
            grants = guarded.call(url, token, "GET", "/v1/whoami").json()["grants"]
            assert [grant["prefix"] for grant in grants] == [f"/sessions/{name}"]
            rendered = guarded.call(url, token, "POST", "/v1/render", {"items": [{"text": "*x*", "language": "md"}]})
            assert rendered.json()["items"] == [{"html": "<p><em>x</em></p>\n"}]
            listed = guarded.call(url, token, "GET", "/v1/sessions").json()["sessions"]
            assert [each["id"] for each in listed] == [name]
            found = guarded.call(url, token, "GET", "/v1/search?q=hello").json()["results"]
            assert {each["session"] for each in found} == {name}
            with httpx.stream(
                "GET",
                f"{url}/v1/events?after=0",
                headers={"Authorization": f"Bearer {token}"},
                timeout=60,
                trust_env=False,
            ) as stream:
                assert stream.status_code == 200, stream.read()
                first = next(line for line in stream.iter_lines() if line.startswith("data: "))
            assert f'"session":"{name}"' in first
        gone = guarded.call(guarded.replicas.urls[1], owner, "DELETE", f"/v1/shares/{made.json()['id']}")
        assert gone.status_code == 204, gone.text
        for url in guarded.replicas.urls:
            assert guarded.call(url, token, "GET", f"/v1/sessions/{name}").status_code == 401
