"""Shares: what a link opens, what it does not, and when it ends (G9)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import httpx
import pytest

from cfs_filesystem import Grant
from cfs_server.access.shares import MOST_OF_ONE, Share, Shares
from tests.filesystem.support import grant
from tests.server.guests import Guest, guests
from tests.server.support import EventStream, ServerHarness, until

HIDDEN = "medlars"


@asynccontextmanager
async def house(server: ServerHarness, *grants: Grant) -> AsyncIterator[Guest]:
    """Alice has two sessions, one of which she shares; each has a sub-session and a file in its workspace."""
    async with guests(server, alice=list(grants or [grant("/")])) as who:
        alice = who["alice"]
        for name in ("shown", "hidden"):
            server.store.create(name, None, f"User: {HIDDEN if name == 'hidden' else 'hello'}\nAssistant: yes\n")
            server.store.create(f"{name}/child", None, "Tool: x\n")
        yield alice


async def share(who: Guest, access: str = "read", **more: object) -> dict[str, str]:
    answer = await who.client.post("/v1/shares", json={"session": "shown", "access": access, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, str] = answer.json()
    return found


def bearer(server: ServerHarness, token: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False, headers=headers)


async def test_a_share_shows_its_session_and_nothing_else(server: ServerHarness) -> None:
    async with house(server) as alice:
        await alice.client.put("/v1/files/workspaces/shown/a.txt", content=b"x")
        made = await share(alice)
        assert made["path"] == f"/#share={made['token']}"
        async with bearer(server, made["token"]) as guest:
            for path in (
                "/v1/sessions/shown",
                "/v1/sessions/shown/child",
                "/v1/files/sessions/shown",
                "/dav/sessions/shown",
            ):
                assert (await guest.get(path)).status_code == 200, path
            listing = await guest.get("/v1/sessions")
            assert [each["id"] for each in listing.json()["sessions"]] == ["shown"]
            hidden = (
                "/v1/sessions/hidden", "/v1/sessions/hidden/child", "/v1/sessions/hidden/events",
                "/v1/sessions/hidden/sub_sessions", "/v1/sessions/hidden/settings", "/v1/files/sessions/hidden",
                "/v1/files/workspaces/shown/a.txt", "/v1/files/workspaces/hidden/a.txt", "/dav/sessions/hidden",
                "/dav/workspaces/shown/a.txt", "/dav/sub_sessions/hidden", "/v1/sessions/shown2",
            )  # fmt: skip
            for path in hidden:
                assert (await guest.get(path)).status_code == 404, path
            for path in ("/metrics", "/v1/backup"):
                assert (await guest.get(path)).status_code == 403, path
            for path in (
                "/v1/sessions",
                "/v1/files",
                "/v1/search?q=e",
                f"/v1/search?q={HIDDEN}",
                "/v1/whoami",
                "/dav/sessions/",
            ):
                method = "PROPFIND" if path.startswith("/dav") else "GET"
                answer = await guest.request(method, path)
                assert answer.status_code in (200, 207), path
                assert "hidden" not in answer.text, path
                assert HIDDEN not in answer.text.replace(f"q={HIDDEN}", ""), path
            async with await EventStream.open(
                server.url, "/v1/events?after=0", {"Authorization": f"Bearer {made['token']}"}
            ) as stream:
                await alice.say("hidden", HIDDEN, wait="true")
                await alice.say("shown", "end", wait="true")
                events = await stream.until("turn.finished")
            assert all("hidden" not in event.data and HIDDEN not in event.data for event in events)


WRITES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/sessions/shown/messages", {"content": "x"}),
    ("PATCH", "/v1/sessions/shown/settings", {"json": {"seed": 1}}),
    ("POST", "/v1/sessions/shown/cancel", {}),
    ("POST", "/v1/sessions/shown/claim", {}),
    ("POST", "/v1/sessions", {"json": {"id": "shown/new"}}),
    ("POST", "/v1/sessions/shown/fork", {"json": {"id": "shown/copy"}}),
    ("PUT", "/v1/files/sessions/shown", {"content": "x"}),
    ("PUT", "/dav/sessions/shown", {"content": "x"}),
    ("DELETE", "/v1/sessions/shown", {}),
    ("POST", "/v1/sessions/shown/rename", {"json": {"id": "shown/b"}}),
    ("PUT", "/v1/sessions/shown/transcript", {"content": "Tool: y\n", "headers": {"If-Match": "*"}}),
    ("POST", "/v1/chat/completions", {"json": {"messages": [{"role": "user", "content": "x"}]}}),
]


@pytest.mark.parametrize("access", ["read", "write"])
async def test_a_share_writes_only_if_it_may(server: ServerHarness, access: str) -> None:
    async with house(server) as alice, bearer(server, (await share(alice, access))["token"]) as guest:
        answers = [(path, await guest.request(method, path, **more)) for method, path, more in WRITES]
        refused = [path for path, answer in answers if answer.status_code == 403]
        every = [path for _, path, _ in WRITES]
        assert refused == ([every[3], *every[8:11]] if access == "write" else every)
        for path in ("/v1/sessions/hidden/messages", "/v1/sessions/new/messages"):
            assert (await guest.post(path, content=b"x")).status_code == 404
        assert (await guest.post("/v1/sessions/shown/fork", json={})).status_code == 404
        assert (await guest.post("/v1/sessions", json={})).status_code == 404
        counted = server.parts.principals.named("alice").account.sessions
        assert counted == (2 if access == "write" else 0), "what the bearer makes counts for the owner"


async def test_a_share_cannot_be_shared_or_revoked_by_its_bearer(server: ServerHarness) -> None:
    async with house(server) as alice:
        made = await share(alice, "write")
        async with bearer(server, made["token"]) as guest:
            for session, status in (("shown", 403), ("shown/child", 403), ("hidden", 404)):
                answer = await guest.post("/v1/shares", json={"session": session})
                assert answer.status_code == status
            assert (await guest.get("/v1/shares", params={"session": "shown"})).json() == {"shares": []}
            assert (await guest.delete(f"/v1/shares/{made['id']}")).status_code == 404
            assert (await guest.get("/v1/sessions/shown")).status_code == 200


async def test_an_owner_shares_only_what_it_may_do(server: ServerHarness) -> None:
    """Also later: rights that the owner loses, the share loses at once."""
    reading = grant("/sessions/shown", "list", "file", "read")
    async with house(server, reading) as alice:
        refused = await alice.client.post("/v1/shares", json={"session": "shown", "access": "write"})
        assert refused.status_code == 403
        assert (await alice.client.post("/v1/shares", json={"session": "hidden"})).status_code == 404
        made = await share(alice)
        async with bearer(server, made["token"]) as guest:
            assert (await guest.get("/v1/sessions/shown")).status_code == 200
            alice.may(grant("/sessions/shown", "list"))
            assert (await guest.get("/v1/sessions/shown")).status_code == 403
            alice.may()
            assert (await guest.get("/v1/sessions/shown")).status_code == 404
            alice.may(reading)
            assert (await guest.get("/v1/sessions/shown")).status_code == 200


async def test_a_share_ends_when_it_is_revoked(server: ServerHarness) -> None:
    async with house(server) as alice:
        made, other = await share(alice), await share(alice, "write", expires=3600)
        shown = (await alice.client.get("/v1/shares", params={"session": "shown"})).json()["shares"]
        assert [(each["id"], each["access"]) for each in shown] == [(made["id"], "read"), (other["id"], "write")]
        assert shown[0]["expires"] is None
        assert 3590 < shown[1]["expires"] - shown[1]["created_at"] <= 3601
        assert made["token"] not in str(shown)
        credentials = {"Authorization": f"Bearer {made['token']}"}
        async with await EventStream.open(server.url, "/v1/sessions/shown/events", credentials) as stream:
            for status in (204, 404):
                assert (await alice.client.delete(f"/v1/shares/{made['id']}")).status_code == status
            assert await stream.next() is None
        async with bearer(server, made["token"]) as guest, bearer(server, other["token"]) as second:
            assert (await guest.get("/v1/sessions/shown")).status_code == 401
            assert (await second.get("/v1/sessions/shown")).status_code == 200


async def test_a_share_ends_when_its_time_is_over(server: ServerHarness) -> None:
    async with house(server) as alice:
        made = await share(alice, expires=0.01)
        shares = server.parts.shares
        await until(lambda: shares.bearer(shares._shares[made["id"]].hash) is None)
        async with bearer(server, made["token"]) as guest:
            assert (await guest.get("/v1/sessions/shown")).status_code == 401
        await until(lambda: not shares._shares)
        assert server.store.journal is not None
        assert server.store.journal.kept("shares") == {}
        for wrong in (0, -1, 1e9, "1"):
            answer = await alice.client.post("/v1/shares", json={"session": "shown", "expires": wrong})
            assert answer.status_code == 422


@pytest.mark.parametrize("how", ["delete", "rename"])
async def test_a_share_does_not_pass_to_another_session_of_its_name(server: ServerHarness, how: str) -> None:
    async with house(server) as alice:
        made = await share(alice)
        if how == "delete":
            await alice.client.delete("/v1/sessions/shown")
        else:
            await alice.client.post("/v1/sessions/shown/rename", json={"id": "elsewhere"})
        await alice.create("shown", f"Tool: {HIDDEN}\n")
        async with bearer(server, made["token"]) as guest:
            for name in ("shown", "elsewhere"):
                assert (await guest.get(f"/v1/sessions/{name}")).status_code == 401


async def test_shares_outlive_a_restart(server: ServerHarness) -> None:
    """Not their secrets: the store has hashes only."""
    async with house(server) as alice:
        made, gone = await share(alice), await share(alice)
        journal = server.store.journal
        assert journal is not None
        assert made["token"] not in str(journal.kept("shares"))
        await alice.client.delete(f"/v1/shares/{gone['id']}")
        Shares(server.parts.principals, server.store, journal)
        async with bearer(server, made["token"]) as guest, bearer(server, gone["token"]) as other:
            assert (await guest.get("/v1/sessions/shown")).status_code == 200
            assert (await other.get("/v1/sessions/shown")).status_code == 401


async def test_a_repeated_request_makes_one_share(server: ServerHarness) -> None:
    async with house(server) as alice:
        answers = [
            await alice.client.post("/v1/shares", json={"session": "shown"}, headers={"Idempotency-Key": "k"})
            for _ in range(2)
        ]
        assert answers[0].json() == answers[1].json()
        assert len(server.parts.shares._shares) == 1
        path = f"/v1/shares/{answers[0].json()['id']}"
        for _ in range(2):
            assert (await alice.client.delete(path, headers={"Idempotency-Key": "d"})).status_code == 204


async def test_shares_are_limited(server: ServerHarness) -> None:
    async with house(server) as alice:
        for _ in range(MOST_OF_ONE):
            server.parts.shares.create(alice.principal, server.store.get("shown"), "read", None)
        assert (await alice.client.post("/v1/shares", json={"session": "shown"})).status_code == 507


class Unwalked(dict[str, Share]):
    """Shares by their ids, which no code may go through."""

    def values(self) -> NoReturn:
        raise AssertionError("all shares are gone through")


async def test_many_shares_of_others_cost_nothing(server: ServerHarness) -> None:
    """A share is made, listed, used, revoked, and ended with its session, without a look at those of others."""
    shares = server.parts.shares
    async with house(server) as alice:
        for _ in range(100):
            shares.create(alice.principal, server.store.get("hidden"), "read", None)
        shares._shares = Unwalked(shares._shares)
        made, revoked = await share(alice), await share(alice)
        listed = (await alice.client.get("/v1/shares?session=shown")).json()["shares"]
        assert [each["id"] for each in listed] == [made["id"], revoked["id"]]
        assert (await alice.client.delete(f"/v1/shares/{revoked['id']}")).status_code == 204
        async with bearer(server, made["token"]) as guest, bearer(server, revoked["token"]) as late:
            assert (await guest.get("/v1/sessions/shown")).status_code == 200
            assert (await late.get("/v1/sessions/shown")).status_code == 401
            await alice.client.delete("/v1/sessions/shown")
            assert (await guest.get("/v1/sessions/shown")).status_code == 401
        assert len(shares._shares) == shares._of_owner[alice.principal.name] == 100
        shares._shares = dict(shares._shares)


async def test_without_tokens_a_share_is_a_plain_link(server: ServerHarness) -> None:
    await server.create("a b")
    answer = await server.client.post("/v1/shares", json={"session": "a b", "access": "write"})
    assert answer.json() == {"id": None, "token": None, "path": "/#conversation/a%20b"}
    assert (await server.client.post("/v1/shares", json={"session": "none"})).status_code == 404
