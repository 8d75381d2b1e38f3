"""One access decision for all interfaces, which logs each denial with principal, operation, path and outcome (G9)."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from cfs_filesystem import OPERATIONS, Grant, InMemoryFileSystem, Operation
from cfs_server.sessions.authorization import Access, Authorization
from tests.server.guests import Guest, guests
from tests.server.support import running_server

READ: frozenset[Operation] = frozenset({"read_binary", "file", "list"})
READER = [Grant(prefix="/sessions/shared", ops=READ), Grant(prefix="/workspaces/shared", ops=READ)]
MESSAGE = {"content": "hi"}
ASK: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_what_is_not_granted_is_hidden_or_forbidden(operation: Operation) -> None:
    handle = InMemoryFileSystem(["/s/"]).create_handle(
        [Grant(prefix="/s/all", ops=OPERATIONS), Grant(prefix="/s/other", ops=OPERATIONS - {operation})]
    )
    bob = Authorization("bob", handle)
    assert bob.decide(operation, "/s/all/below") is Access.ALLOWED
    assert bob.decide(operation, "/s/other") is Access.FORBIDDEN
    assert bob.decide(operation, "/s/none") is Access.HIDDEN


def request_of(interface: str, session: str, file: str) -> tuple[str, str, dict[str, Any]]:
    """A request to write: its method, URL and body."""
    requests: dict[str, tuple[str, str, dict[str, Any]]] = {
        "sessions": ("POST", f"/v1/sessions/{session}/messages", {"json": MESSAGE}),
        "settings": ("PATCH", f"/v1/sessions/{session}/settings", {"json": {"max_tokens": 5}}),
        "session as a file": ("PUT", f"/v1/files/sessions/{session}", {"content": b"hi"}),
        "files": ("PUT", f"/v1/files/workspaces/{file}", {"content": b"hi"}),
        "delete a file": ("DELETE", f"/v1/files/workspaces/{file}", {}),
        "WebDAV session": ("PUT", f"/dav/sessions/{session}", {"content": b"hi"}),
        "WebDAV file": ("PUT", f"/dav/workspaces/{file}", {"content": b"hi"}),
        "delete by WebDAV": ("DELETE", f"/dav/workspaces/{file}", {}),
        "completions": ("POST", "/v1/chat/completions", {"json": ASK, "headers": {"X-CFS-Session": session}}),
    }
    return requests[interface]


INTERFACES = (
    "sessions",
    "settings",
    "session as a file",
    "files",
    "delete a file",
    "WebDAV session",
    "WebDAV file",
    "delete by WebDAV",
    "completions",
)
OUTCOMES = {"hidden": (404, "not-granted"), "forbidden": (403, "forbidden")}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(("name", "outcome"), [("alone", "hidden"), ("shared", "forbidden")])
async def test_each_interface_denies_alike_and_logs_who_wanted_what(interface: str, name: str, outcome: str) -> None:
    async with running_server() as server, guests(server, alice=[Grant(prefix="/", ops=OPERATIONS)], bob=READER) as who:
        for each in ("alone", "shared"):
            await who["alice"].create(each)
            assert (await who["alice"].client.put(f"/v1/files/workspaces/{each}/f", content=b"x")).status_code == 201
        with capture_logs() as log:
            found = await answer(who["bob"], interface, name)
        assert found == OUTCOMES[outcome]
        denied = [entry for entry in log if entry["event"] == "access.denied"]
        assert len(denied) == 1, log
        (entry,) = denied
        path = "workspaces" if "file" in interface and "session" not in interface else "sessions"
        path = "workspaces" if interface == "delete by WebDAV" else path
        assert (entry["principal"], entry["outcome"]) == ("bob", outcome)
        assert entry["path"].startswith(f"/{path}/{name}")
        sight = {"file"} if "WebDAV" in interface and outcome == "hidden" else set()  # it asks first what may be seen
        assert entry["operation"] in {"write", "delete"} | sight


async def answer(guest: Guest, interface: str, name: str) -> tuple[int, str]:
    """Send a request; return the status, and the type of the problem without the part that all share."""
    method, url, body = request_of(interface, name, f"{name}/f")
    response = await guest.client.request(method, url, **body)
    return response.status_code, response.json()["type"].rpartition("/")[2].rpartition(":")[2]


async def test_a_completion_without_a_session_is_denied_to_who_may_write_to_none() -> None:
    async with running_server() as server, guests(server, bob=READER) as who:
        with capture_logs() as log:
            response = await who["bob"].client.post("/v1/chat/completions", json=ASK)
        assert response.status_code == 403
        (entry,) = [entry for entry in log if entry["event"] == "access.denied"]
        assert dict(entry) | {"principal": "bob", "path": "/sessions/", "outcome": "forbidden"} == dict(entry)


async def test_what_is_allowed_is_not_logged() -> None:
    async with running_server() as server, guests(server, alice=[Grant(prefix="/", ops=OPERATIONS)]) as who:
        with capture_logs() as log:
            for interface in INTERFACES:
                method, url, body = request_of(interface, "own", "own/f")
                status = (await who["alice"].client.request(method, url, **body)).status_code
                assert status < 300 or interface.startswith("delete"), (interface, status)
        assert not [entry for entry in log if entry["event"] == "access.denied"]
