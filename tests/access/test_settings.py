"""What a right forbids, no setting does: each setting needs its right on every interface (S9, G9)."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import httpx
import pytest

from cfs.wire import Settings, SettingsPatch, TurnSettings
from cfs_filesystem import Grant, Operation
from cfs_server.domain.rights import SETTINGS, Right
from tests.filesystem.support import grant
from tests.server.guests import guests
from tests.server.support import ServerHarness

VALUES: Mapping[str, Any] = {
    "max_tokens": 9,
    "temperature": 0.1,
    "top_p": 0.2,
    "top_k": 3,
    "min_p": 0.4,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.6,
    "repeat_penalty": 1.1,
    "repeat_last_n": 32,
    "logit_bias": {"7": -100.0},
    "min_tokens": 2,
    "seed": 5,
    "stop": ["x"],
    "system": "Be brief.",
    "prompt_style": "chat",
    "driver": "agent",
    "paused": True,
    "reproducible": True,
    "overflow": "error",
    "keep": "1m",
    "title": "A title",
    "model": "scripted",
    "budget": "$0.50",
}
"""A value for each setting that is not its default."""
RIGHTS: tuple[frozenset[Operation], ...] = (
    frozenset({"write"}),
    frozenset({"write", "read_binary"}),
    frozenset({"write", "delete"}),
    frozenset({"write", "read_binary", "delete"}),
)
"""All that decides about settings, for who may write."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody with some rights for the session `s` and all below it."""

    client: httpx.AsyncClient
    operations: frozenset[Operation]
    is_share: bool

    def may_set(self, name: str) -> bool:
        """Return whether the table gives it the right to a setting."""
        right = SETTINGS[name]
        return set(right.operations) <= self.operations and (right.for_shares or not self.is_share)


@asynccontextmanager
async def callers(server: ServerHarness) -> AsyncIterator[list[Caller]]:
    """Let in a caller with each set of rights, and the bearer of a share that may write."""
    server.store.create("s")
    grants = {f"guest{number}": [Grant(prefix="/sessions/s", ops=rights)] for number, rights in enumerate(RIGHTS)}
    async with guests(server, owner=[grant("/")], **grants) as who:
        made = await who["owner"].client.post("/v1/shares", json={"session": "s", "access": "write"})
        headers = {"Authorization": f"Bearer {made.json()['token']}"}
        async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False, headers=headers) as bearer:
            found = [Caller(who[f"guest{number}"].client, rights, False) for number, rights in enumerate(RIGHTS)]
            yield [*found, Caller(bearer, frozenset({"write", "read_binary"}), True)]


async def patched(client: httpx.AsyncClient, session: str, name: str) -> int:
    """Set by REST, as the mount and the SDK do."""
    return (await client.patch(f"/v1/sessions/{session}/settings", json={name: VALUES[name]})).status_code


async def posted(client: httpx.AsyncClient, session: str, name: str) -> int:
    """Set for one turn. No other settings are taken there."""
    message = {"content": "x", "generate": False, "settings": {name: VALUES[name]}}
    return (await client.post(f"/v1/sessions/{session}/messages", json=message)).status_code


async def set_as_property(client: httpx.AsyncClient, session: str, name: str) -> int:
    """Set by WebDAV."""
    given = VALUES[name]
    value = escape(given if isinstance(given, str) else json.dumps(given))
    body = (
        f'<propertyupdate xmlns="DAV:" xmlns:c="cfs:"><set><prop><c:{name}>{value}</c:{name}></prop></set>'
        "</propertyupdate>"
    )
    answer = await client.request("PROPPATCH", f"/dav/sessions/{session}", content=body.encode())
    if answer.status_code != 207:
        return answer.status_code
    return 200 if "200 OK" in answer.text else 403 if "403 Forbidden" in answer.text else 400


def test_each_setting_names_the_right_that_it_needs() -> None:
    assert set(SETTINGS) == set(VALUES) == set(Settings.model_fields) == set(SettingsPatch.model_fields)
    turn = {SETTINGS[name] for name in TurnSettings.model_fields}
    assert turn == {Right.WRITE}, "what applies to one turn only holds up and deletes nothing"
    assert SETTINGS["keep"] is Right.DELETE


@pytest.mark.parametrize("change", [patched, set_as_property])
async def test_a_setting_is_changed_by_who_has_its_right(server: ServerHarness, change: Any) -> None:
    async with callers(server) as who:
        session = server.store.get("s")
        for caller in who:
            for name in SETTINGS:
                session.change_settings(SettingsPatch(**dict.fromkeys(SETTINGS)))
                status = await change(caller.client, "s", name)
                changed = session.settings != Settings()
                expected = caller.may_set(name)
                assert (status in (200, 204), status == 403, changed) == (expected, not expected, expected), (
                    name,
                    caller,
                )
        session.change_settings(SettingsPatch(**dict.fromkeys(SETTINGS)))


async def test_a_reset_needs_the_same_right(server: ServerHarness) -> None:
    """Of a session that is kept for ever, `null` would do what a short time does."""
    async with callers(server) as who:
        session = server.store.get("s")
        for caller in who:
            session.change_settings(SettingsPatch(keep="forever"))
            answer = await caller.client.patch("/v1/sessions/s/settings", json={"keep": None, "seed": 1})
            assert (answer.status_code == 403) == (session.settings.keep == "forever") == (not caller.may_set("keep"))
            if answer.status_code == 403:
                assert "'keep'" in answer.json()["detail"]
                assert session.settings.seed is None, "none of the change is carried out"
            session.change_settings(SettingsPatch(seed=None))


async def test_a_session_is_created_with_the_settings_that_its_maker_may_change(server: ServerHarness) -> None:
    async with callers(server) as who:
        for number, caller in enumerate(who):
            for name in SETTINGS:
                session = f"s/{name}{number}"
                new = {"id": session, "settings": {name: VALUES[name]}}
                answer = await caller.client.post("/v1/sessions", json=new)
                assert answer.status_code == (201 if caller.may_set(name) else 403), (name, caller)
                assert (server.store.find(session) is not None) == caller.may_set(name)


async def test_one_turn_takes_the_settings_of_turns_only(server: ServerHarness) -> None:
    async with callers(server) as who:
        for caller in who:
            for name in SETTINGS:
                status = await posted(caller.client, "s", name)
                assert status == (202 if name in TurnSettings.model_fields else 422), (name, caller)
        assert server.store.get("s").settings == Settings()


PROTOCOLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}], "stream": False},
    "/api/generate": {"prompt": "x", "stream": False},
}


async def test_no_protocol_changes_the_settings_of_the_session_that_records_it(server: ServerHarness) -> None:
    """Members that are called like settings are ignored or refused, wherever they stand."""
    names = {name: VALUES[name] for name in SETTINGS if name not in TurnSettings.model_fields}
    async with callers(server) as who:
        caller = who[-2]
        for number, (path, body) in enumerate(PROTOCOLS.items()):
            session = f"s/p{number}"
            more = {**names, "settings": names, "options": names, "metadata": {}}
            headers = {"X-CFS-Session": session} | {f"X-CFS-{name}": str(value) for name, value in names.items()}
            plain = await caller.client.post(path, json=body, headers=headers)
            answer = await caller.client.post(path, json=body | more, headers=headers)
            assert (plain.status_code, answer.status_code in (200, 400)) == (200, True), (path, answer.text)
            assert server.store.get(session).settings == Settings(), path


async def test_a_share_neither_locks_nor_answers(server: ServerHarness) -> None:
    """What holds up others could be renewed for ever by who holds the link."""
    lock = b'<lockinfo xmlns="DAV:"><lockscope><exclusive/></lockscope><locktype><write/></locktype></lockinfo>'
    async with callers(server) as who:
        bearer, writer = who[-1].client, who[1].client
        for path in ("/dav/sessions/s", "/dav/sessions/s.tmp", "/dav/sub_sessions/s/a", "/dav/sessions/other"):
            refused = await bearer.request("LOCK", path, content=lock)
            assert refused.status_code == 403, path
        taken = await writer.request("LOCK", "/dav/sessions/s", content=lock)
        assert taken.status_code == 200
        token = taken.headers["Lock-Token"]
        renewed = await bearer.request("LOCK", "/dav/sessions/s", headers={"If": f"({token})", "Timeout": "Infinite"})
        assert renewed.status_code == 403
        assert (await writer.request("UNLOCK", "/dav/sessions/s", headers={"Lock-Token": token})).status_code == 204
        server.store.get("s").change_settings(SettingsPatch(driver="agent"))
        await writer.post("/v1/sessions/s/messages", content=b"x")
        assert (await bearer.post("/v1/sessions/s/claim", json={"lease": 3600})).status_code == 403
        held = (await writer.post("/v1/sessions/s/claim", json={})).json()
        turn, claim = f"/v1/sessions/s/turns/{held['turn']}", held["claim"]
        asked = await writer.post("/v1/sessions/s/questions", json={"claim": claim, "text": "make"})
        calls: list[tuple[str, dict[str, object]]] = [
            (f"{turn}/update", {"claim": claim, "lease": 3600}),
            (f"{turn}/finish", {"claim": claim, "reply": "x"}),
            ("/v1/sessions/s/questions", {"claim": claim, "text": "make"}),
            (f"/v1/sessions/s/questions/{asked.json()['id']}", {"answer": "allow"}),
        ]
        for path, body in calls:
            answer = await bearer.post(path, json=body)
            assert (answer.status_code, "shared link" in answer.text) == (403, True), path
        assert (await writer.post(f"{turn}/finish", json={"claim": claim, "reply": "x"})).status_code == 200
