"""What has become of a session that a client has seen: deleted, renamed and lost are three answers (S2, S14)."""

from pathlib import Path

import httpx
import pytest

from cfs.api import LIFE
from cfs_filesystem import Grant
from cfs_server.sessions.former import FormerNames
from tests.filesystem.support import grant
from tests.server.guests import guests
from tests.server.support import Process, ServerHarness, run_cfs, serving

SCRIPTED = ("--engine", "scripted", "--log-level", "error")


def make(server: Process, *names: str) -> dict[str, str]:
    """Create sessions, and return their lives."""
    lives = {}
    for name in names:
        answer = httpx.post(f"{server.url}/v1/sessions", json={"id": name}, timeout=60)
        lives[name] = answer.raise_for_status().headers[LIFE]
    return lives


def fate(server: Process, name: str, life: str) -> str:
    """Return what has become of a session, and its new name if the answer contains one."""
    answer = httpx.get(f"{server.url}/v1/sessions/{name}", headers={LIFE: life}, timeout=60)
    if answer.status_code == 200:
        return "there"
    problem = answer.json()
    assert answer.status_code == 410
    kind = problem["type"].removeprefix("urn:cfs:error:session-")
    return f"{kind} {problem['renamed_to']}" if "renamed_to" in problem else kind


def part(server: Process) -> None:
    """Rename one session twice, and another one before it is deleted with those below it."""
    with httpx.Client(base_url=f"{server.url}/v1/sessions/", timeout=60) as client:
        for name, new in (("moved", "between"), ("between", "elsewhere"), ("old", "doomed")):
            client.post(f"{name}/rename", json={"id": new}).raise_for_status()
        client.delete("doomed").raise_for_status()


GONE = {
    "moved": "renamed elsewhere",
    "moved/below": "renamed elsewhere/below",
    "old": "deleted",
    "old/below": "deleted",
}


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_server_that_comes_back_knows_what_was_deleted_and_renamed(tmp_path: Path, end: str) -> None:
    data = (*SCRIPTED, "--data-dir", str(tmp_path))
    with serving(*data) as server:
        lives = make(server, "stays", "moved", "moved/below", "old", "old/below")
        part(server)
        assert {name: fate(server, name, lives[name]) for name in GONE} == GONE
        getattr(server.process, end)()
        server.process.wait()
    with serving(*data) as server:
        assert {name: fate(server, name, lives[name]) for name in GONE} == GONE
        assert (fate(server, "stays", lives["stays"]), fate(server, "stays", "00000000")) == ("there", "lost")
        again = make(server, "moved", "old")  # the names are free, and the answer for the earlier lives is the same
        assert {name: fate(server, name, lives[name]) for name in GONE} == GONE
        assert {fate(server, name, life) for name, life in again.items()} == {"there"}
        httpx.post(f"{server.url}/v1/sessions/elsewhere/rename", json={"id": "back"}, timeout=60).raise_for_status()
        assert fate(server, "moved", lives["moved"]) == "renamed back"


def test_a_server_without_its_store_has_lost_all_sessions() -> None:
    memory = (*SCRIPTED, "--store", "memory")
    with serving(*memory) as server:
        lives = make(server, "moved", "moved/below", "old", "old/below")
        part(server)
        assert {name: fate(server, name, lives[name]) for name in GONE} == GONE
    with serving(*memory) as server:
        assert {fate(server, name, life) for name, life in lives.items()} == {"lost"}


def test_a_server_with_an_older_backup_has_lost_what_came_later(tmp_path: Path) -> None:
    data = (*SCRIPTED, "--data-dir", str(tmp_path / "data"))
    backup = tmp_path / "backup.db"
    with serving(*data) as server:
        lives = make(server, "before", "deleted")
        httpx.delete(f"{server.url}/v1/sessions/deleted", timeout=60).raise_for_status()
        assert run_cfs("backup", str(backup), "--url", server.url).returncode == 0
        lives |= make(server, "after")
    assert run_cfs("restore", str(backup), "--store", str(tmp_path / "data/sessions.db"), "--force").returncode == 0
    with serving(*data) as server:
        fates = {name: fate(server, name, life) for name, life in lives.items()}
    assert fates == {"before": "lost", "deleted": "deleted", "after": "lost"}


async def test_a_name_that_the_caller_may_not_know_is_not_told(server: ServerHarness) -> None:
    reader = Grant(prefix="/sessions/shared", ops={"read"})
    async with guests(server, alice=[grant("/")], bob=[reader]) as who:
        await who["alice"].create("shared")
        life = {LIFE: server.store.get("shared").nonce}
        await who["alice"].client.post("/v1/sessions/shared/rename", json={"id": "secret"})
        answer = await who["bob"].client.get("/v1/sessions/shared", headers=life)
    assert (answer.status_code, answer.json()["type"]) == (410, "urn:cfs:error:session-deleted")
    assert "secret" not in answer.text


async def test_only_the_newest_names_are_remembered(server: ServerHarness) -> None:
    server.store.former = FormerNames(server.store.journal, server.store.clock, capacity=2)
    lives = {}
    for name in ("a", "b", "c"):
        await server.create(name)
        lives[name] = server.store.get(name).nonce
        await server.client.delete(f"/v1/sessions/{name}")
    again = FormerNames(server.store.journal, server.store.clock)
    for former in (server.store.former, again):
        assert [former.key_of(name, life) is not None for name, life in lives.items()] == [False, True, True]
