"""Which sessions a request is about: from its head, or from its body."""

import json
import re

import pytest
from fastapi.routing import iter_route_contexts

from cfs_server.app import create_app
from cfs_server.cluster.targets import ALL, ANYWHERE, BODY, NEW, RequestTarget, TargetKind, target_in_body, target_of
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.host.scripted import ScriptedEngine

NO_SESSION = {
    *("/", "/dashboard/{name}", "/dav", "/dav/{path}", "/openapi.json"),
    *("/health", "/healthz", "/metrics", "/readyz", "/v1/backup", "/v1/imports", "/v1/whoami"),
    *("/v1/connections", "/v1/connection-search", "/v1/connections/{model}"),
    *("/v1/embeddings", "/v1/models", "/v1/models/{model}", "/v1/render", "/v1/tokens", "/v1/messages/count_tokens"),
    *("/api/create", "/api/delete", "/api/embed", "/api/embeddings", "/api/ps", "/api/pull", "/api/push"),
    *("/api/show", "/api/tags", "/api/version"),
}
"""Routes that are about no session."""
NAMED_BY_HEADER = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/api/generate"}
NAMED_BY_PATH = {
    "/v1/files/{path}": "/v1/files/workspaces/a/b",
    "/v1/versions/{path}": "/v1/versions/workspaces/a",
    "/v1/past/{path}": "/v1/past/workspaces/a/b/@1",
    "/v1/responses/{response}": "/v1/responses/resp_{key}",
}
"""Routes whose paths contain a session in another form, and an example of it."""
KEY = "0003" + "a" * 28


def about(root: str, new: str = "", *, below: bool = False) -> RequestTarget:
    return RequestTarget(TargetKind.SESSION, root, new=new, below=below)


def routes() -> list[tuple[str, str]]:
    """Each method and path of the application."""
    app = create_app(ServerSettings(engine="scripted"), ScriptedEngine())
    found: list[tuple[str, str]] = []
    for context in iter_route_contexts(app.routes):
        path = str(getattr(context, "path_format", None) or getattr(context, "path", ""))
        found += [(method, path) for method in sorted(getattr(context, "methods", None) or ("GET",))]
    return found


@pytest.mark.parametrize(("method", "path"), routes())
def test_each_route_is_answered_where_its_session_is(method: str, path: str) -> None:
    """A route that is about sessions, and that nobody has thought of here, would be answered without any."""
    for general, example in NAMED_BY_PATH.items():
        path = path.replace(general, example.format(key=KEY + "b" * 33)) if path.startswith(general) else path
    concrete = re.sub(r"\{[^}]*\}", "x", path)
    headers = {b"x-cfs-session": b"a"} if path in NAMED_BY_HEADER else {}
    kind = target_of(method, concrete.encode(), b"", headers).kind
    assert (kind is TargetKind.ANYWHERE) == (path in NO_SESSION), kind


@pytest.mark.parametrize(
    ("method", "path", "headers", "target"),
    [
        ("GET", "/v1/sessions", {}, ALL),
        ("POST", "/v1/sessions", {}, BODY),
        ("GET", "/v1/sessions/a", {}, about("a")),
        ("POST", "/v1/sessions/a/b/messages", {}, about("a")),
        ("GET", "/v1/sessions/%E4%BD%A0%E5%A5%BD/events", {}, about("你好")),
        ("GET", "/v1/sessions/events", {}, about("events")),
        ("POST", "/v1/sessions/a/rename", {}, RequestTarget(TargetKind.BODY, "a")),
        ("POST", "/v1/sessions/a/b/fork", {}, RequestTarget(TargetKind.BODY, "a")),
        ("GET", "/v1/sessions/%ff", {}, ANYWHERE),
        ("GET", "/v1/events", {}, ALL),
        ("GET", "/v1/search?q=x", {}, ALL),
        ("GET", "/v1/files", {}, ALL),
        ("GET", "/v1/files/sessions/a", {}, about("a")),
        ("PUT", "/v1/files/workspaces/a/b.txt", {}, about("a")),
        ("GET", "/v1/past/sessions/a%252Fb/@1", {}, about("a")),
        ("GET", "/v1/past/workspaces/a/b.txt/@1", {}, about("a")),
        ("GET", "/v1/past/workspaces", {}, ANYWHERE),
        ("POST", "/v1/chat/completions", {}, ANYWHERE),
        ("POST", "/v1/chat/completions", {"X-CFS-Session": "a/b"}, about("a")),
        ("POST", "/api/chat", {"X-CFS-Session": "%E4%BD%A0"}, about("你")),
        ("POST", "/v1/messages", {"X-CFS-Session": "%ff"}, ANYWHERE),
        ("POST", "/v1/responses", {}, BODY),
        ("POST", "/v1/responses", {"X-CFS-Session": "a"}, about("a")),
        ("GET", f"/v1/responses/resp_{KEY}{'b' * 32}5", {}, RequestTarget(TargetKind.SLOT, key=KEY)),
        ("GET", "/v1/responses/other", {}, ANYWHERE),
        ("POST", "/v1/conversations", {}, NEW),
        ("GET", "/v1/conversations/a/items", {}, about("a")),
        ("POST", "/v1/shares", {}, BODY),
        ("GET", "/v1/shares?session=a%2Fb", {}, about("a")),
        ("DELETE", "/v1/shares/0123", {}, RequestTarget(TargetKind.EACH)),
        ("GET", "/dav/sessions/a", {}, about("a")),
        ("PROPFIND", "/dav/sessions/", {}, ALL),
        ("PROPFIND", "/dav/sub_sessions", {}, ALL),
        ("PROPFIND", "/dav/questions/", {}, ALL),
        ("GET", "/dav/questions/a/0123", {}, about("a")),
        ("PUT", "/dav/questions/a%252Fb/0123", {}, about("a")),
        ("PUT", "/dav/questions/100%2525%252Fb/0123", {}, about("100%")),
        ("PROPFIND", "/dav/sessions/.versions/sessions", {}, ALL),
        ("GET", "/dav/sessions/.versions/sessions/a%252Fb/@1", {}, about("a")),
        ("GET", "/dav/sessions/.versions/workspaces/a/@1", {}, about("a")),
        ("GET", "/dav/workspaces/a/.versions/@1", {}, about("a")),
        ("LOCK", "/dav/sessions/", {}, ANYWHERE),
        ("MOVE", "/dav/sessions/a", {"Destination": "http://host/dav/sessions/b%20c"}, about("a", "b c")),
        ("COPY", "/dav/sub_sessions/a/x", {"Destination": "/dav/sub_sessions/b/y"}, about("a", "b", below=True)),
        ("MOVE", "/dav/workspaces/a/x", {"Destination": "/dav/workspaces/b/y"}, about("a")),
        ("PUT", "/dav/workspaces/a/x", {}, about("a")),
        ("GET", "/", {}, ANYWHERE),
        ("GET", "/v1/models", {}, ANYWHERE),
        ("GET", "/cluster/names", {}, ANYWHERE),
    ],
)
def test_the_head_of_a_request(method: str, path: str, headers: dict[str, str], target: RequestTarget) -> None:
    raw, _, query = path.encode().partition(b"?")
    given = {name.lower().encode(): value.encode() for name, value in headers.items()}
    assert target_of(method, raw, query, given) == target


@pytest.mark.parametrize(
    ("path", "body", "target"),
    [
        ("/v1/sessions", {"id": "a/b"}, about("a")),
        ("/v1/sessions", {}, NEW),
        ("/v1/sessions", {"id": 5}, NEW),
        ("/v1/sessions", ["a"], NEW),
        ("/v1/sessions/a/rename", {"id": "b/c"}, about("a", "b", below=True)),
        ("/v1/sessions/a/fork", {}, about("a")),
        ("/v1/shares", {"session": "a/b"}, about("a")),
        ("/v1/responses", {"input": "hi"}, NEW),
        ("/v1/responses", {"input": [5, {"id": None}, {"id": "msg_of_the_client"}]}, NEW),
        (
            "/v1/responses",
            {"input": [{"id": f"rs_{'b' * 32}_1_0"}, {"id": f"msg_{KEY}_1_0"}, {"role": "user"}]},
            RequestTarget(TargetKind.SLOT, key=KEY),
        ),
        ("/v1/responses", {"conversation": "a"}, about("a")),
        ("/v1/responses", {"conversation": {"id": "a/b"}}, about("a")),
        ("/v1/responses", {"previous_response_id": f"resp_{KEY}{'b' * 32}5"}, RequestTarget(TargetKind.SLOT, key=KEY)),
    ],
)
def test_the_body_of_a_request(path: str, body: object, target: RequestTarget) -> None:
    head = target_of("POST", path.encode(), b"", {})
    assert head.kind is TargetKind.BODY
    assert target_in_body(path.encode(), json.dumps(body).encode(), head) == target


def test_a_body_that_is_no_json_is_about_a_new_session() -> None:
    """Any application refuses it, in its own words."""
    for body in (b"", b"{", b"\xff", b"null"):
        assert target_in_body(b"/v1/sessions", body, BODY) == NEW
