"""Locks and dead properties outlive the server, however it ends (RFC 4918, 4 and 6)."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs import api
from cfs.errors import Unavailable
from cfs_server.dav.app import RootTree
from cfs_webdav.app import Mount, WebDavRequest
from cfs_webdav.storage import MountLocks, PersistentDocuments, Properties
from tests.server.restarting import Restarting
from tests.webdav.wire import Dav

COLOUR = "{x:}colour"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Restarting]:
    with ExitStack() as stack:
        yield Restarting(tmp_path, stack)


@asynccontextmanager
async def dav_of(here: Restarting) -> AsyncIterator[Dav]:
    """A caller of the present server."""
    async with httpx.AsyncClient(base_url=here.process.url, timeout=30, trust_env=False) as client:
        yield Dav(client)


def again(here: Restarting) -> None:
    """Kill the server and start the next one."""
    here.kill()
    here.start()


async def test_a_lock_holds_over_restarts_until_it_is_given_back(here: Restarting) -> None:
    paths = ("/sessions/a", "/workspaces/a/note")
    async with dav_of(here) as dav:
        assert (await dav("MKCOL", "/workspaces/a")).status_code == 201
        for path in paths:
            assert (await dav("PUT", path, b"one")).status_code == 201
        tokens = {path: (await dav.lock(path)).headers["lock-token"] for path in paths}
    here.direct.call(api.wait("a", 30))
    again(here)
    async with dav_of(here) as dav:
        for path, token in tokens.items():
            assert (await dav("PUT", path, b"two")).status_code == 423
            assert (await dav.lock(path)).status_code == 423
            assert (await dav("PUT", path, b"two", **{"if": f"({token})"})).status_code == 204
            found = await dav.find(path, "{DAV:}lockdiscovery", depth="0")
            assert "somebody" in found[f"/dav{path}"].values["{DAV:}lockdiscovery"]
            refreshed = await dav("LOCK", path, b"", timeout="Second-600", **{"if": f"({token})"})
            assert refreshed.status_code == 200
            assert (await dav("UNLOCK", path, lock_token=token)).status_code == 204
    again(here)
    async with dav_of(here) as dav:
        for path in paths:
            assert (await dav("PUT", path, b"three")).status_code == 204


async def test_dead_properties_stay_with_their_entries_over_restarts(here: Restarting) -> None:
    async with dav_of(here) as dav:
        await dav("MKCOL", "/workspaces/a")
        for path in ("/workspaces/a/note", "/workspaces/a/gone", "/sessions/a", "/sessions/b"):
            await dav("PUT", path, b"one")
            await dav.set(path, COLOUR, f"r\u00f6t {path}")
        await dav("MOVE", "/workspaces/a/note", destination="/dav/workspaces/a/moved")
        await dav("DELETE", "/workspaces/a/gone")
        await dav.set("/sessions/b", "{x:}other", "1")
        await dav.set("/sessions/b", COLOUR, None)
    again(here)
    async with dav_of(here) as dav:
        for path, colour in {
            "/workspaces/a/moved": "r\u00f6t /workspaces/a/note",
            "/sessions/a": "r\u00f6t /sessions/a",
            "/sessions/b": None,
        }.items():
            found = (await dav.find(path, COLOUR, depth="0"))[f"/dav{path}"]
            assert found.values[COLOUR] == (colour or "")
            assert found.statuses[COLOUR] == (200 if colour else 404)
        await dav("PUT", "/workspaces/a/gone", b"new")
        found = (await dav.find("/workspaces/a/gone", COLOUR, depth="0"))["/dav/workspaces/a/gone"]
        assert found.statuses[COLOUR] == 404
    here.direct.call(api.delete("a"))  # by another interface, which knows no properties
    again(here)
    async with dav_of(here) as dav:
        await dav("PUT", "/sessions/a", b"another")
        assert (await dav.find("/sessions/a", COLOUR, depth="0"))["/dav/sessions/a"].statuses[COLOUR] == 404


def test_an_expired_lock_is_dropped_at_the_start() -> None:
    lock: dict[str, Any] = {
        "principal": "local",
        "type": "write",
        "scope": "exclusive",
        "depth": "0",
        "owner": "<o/>",
        "timeout": 5.0,
        "root": "/dav/sessions/a",
    }
    there = {name: json.dumps(lock | {"token": name, "expire": time.time() + left}) for name, left in EXPIRIES.items()}
    changed: list[tuple[str, str | None]] = []
    locks = MountLocks()
    locks.open()
    locks.load(PersistentDocuments(there, lambda name, value: changed.append((name, value))))
    assert changed == [("old", None)]
    assert locks.get("old") is None
    assert locks.get("new")["owner"] == b"<o/>"
    held = locks.get_lock_list("/dav/sessions/a", include_root=True, include_children=False, token_only=True)
    assert held == ["new"]
    assert locks.delete("new")
    assert changed[1:] == [("new", None)]
    assert locks.get_lock_list("/dav/sessions/a", include_root=True, include_children=False, token_only=True) == []


EXPIRIES = {"old": -1.0, "new": 300.0}


def test_the_kept_properties_are_always_the_present_ones() -> None:
    there: dict[str, str] = {}

    def keep(name: str, value: str | None) -> None:
        if value is None:
            there.pop(name, None)
        else:
            there[name] = value

    properties = Properties()
    properties.load(PersistentDocuments({}, keep))
    properties.write_property("/d/a", "{x:}p", b"<p>1</p>")
    properties.write_property("/d/a", "{x:}q", b"<q/>", dry_run=True)
    properties.copy_all("/d/a", "/d/b", members=True)
    properties.copy_all("/d", "/e", members=True)
    properties.remove_all("/d")
    properties.write_property("/e/b", "{x:}q", b"<q/>")
    properties.remove_property("/e/b", "{x:}p")
    properties.remove_properties("/e/c")
    again = Properties()
    again.load(PersistentDocuments(dict(there), keep))
    assert {url: again.get_properties(url) for url in ("/d/a", "/d/b", "/e/a", "/e/b")} == {
        "/d/a": [],
        "/d/b": [],
        "/e/a": ["{x:}p"],
        "/e/b": ["{x:}q"],
    }
    assert again.get_property("/e/a", "{x:}p") == b"<p>1</p>"
    for url in ("/e/a", "/e/b"):
        again.remove_properties(url)
    assert there == {}


async def unused(*_: Any) -> Any:
    raise AssertionError


def mount() -> Mount:
    return Mount("/dav/files", lambda _status, _message, _cause: ("text/plain", b""))


@pytest.mark.server
async def test_a_request_that_outlasts_the_server_is_refused() -> None:
    closed = mount()
    closed.close()
    with pytest.raises(Unavailable):
        await closed({"method": "MOVE"}, unused, unused, WebDavRequest("a", RootTree(("files",)), BytesIO(), 0))


@pytest.mark.server
async def test_a_request_that_waits_for_a_thread_when_the_server_ends_is_refused() -> None:
    """One that is cancelled with its client is cancelled."""
    crowded, busy = mount(), threading.Event()
    for _ in range(crowded._wsgi.executor._max_workers):
        crowded._wsgi.executor.submit(busy.wait)
    call = WebDavRequest("a", RootTree(("files",)), BytesIO(), 0)
    scope = {"type": "http", "http_version": "1.1", "method": "MOVE", "path": "/dav/files/a", "headers": []}
    try:
        waiting, leaving = [asyncio.create_task(crowded(scope, unused, unused, call)) for _ in range(2)]
        await asyncio.sleep(0)  # both wait for a thread
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        crowded.close()
        with pytest.raises(Unavailable):
            await waiting
    finally:
        busy.set()
