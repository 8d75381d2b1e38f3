"""Every route fails in the same shape (H5): the table of routes is walked, so a new one is covered when it is added."""

from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute, iter_route_contexts
from structlog.testing import capture_logs

from cfs.errors import TABLE
from cfs.wire import Problem
from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.protocols.errors import protocol_at
from tests.server.support import ServerHarness, running_server

APP = create_app(ServerSettings(), ScriptedEngine())
ROUTES = sorted(
    (method, str(route.path_format))
    for route in iter_route_contexts(APP.routes)
    if isinstance(route.original_route, APIRoute)
    for method in route.methods or ()
)
NAMES = {"turn": "x", "question": "q", "share": "s", "model": "m", "item": "x", "response": "x"}
NEED_A_SESSION = [route for route in ROUTES if "{id}" in route[1] and not route[1].endswith("/messages")]


def problem_in(answer: httpx.Response, path: str = "") -> Problem:
    """Read the answer as a problem, with everything that it must have.

    At the paths of Anthropic's protocol `type` has another meaning: it is always `error`.
    """
    assert answer.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate_json(answer.content)
    assert problem.status == answer.status_code
    if path.startswith("/v1/messages"):
        assert problem.type == "error"
        assert (
            answer.json()["error"]["type"].endswith("_error") or answer.json()["error"]["type"] == "request_too_large"
        )
    else:
        assert problem.type.removeprefix("urn:cfs:error:") in {row.slug for row in TABLE.values()}
    assert problem.detail
    return problem


def test_the_walk_sees_all_routes() -> None:
    assert len(ROUTES) >= 22
    assert len(NEED_A_SESSION) >= 14


async def test_every_route_fails_in_one_shape(server: ServerHarness) -> None:
    for method, path in ROUTES:
        url = path.format(id="a", path="workspaces/a/b", **NAMES)
        for broken in (
            path.format(id="%FF", path="%FF", **NAMES) + "?a=%FF",
            f"{url}?a=%zz",
        ):
            assert problem_in(await server.client.request(method, broken), path).status == 400, (method, path)
        wrong_method = await server.client.request("PROPFIND", url)
        assert problem_in(wrong_method, path).status == 405, path
        assert method in wrong_method.headers["Allow"], path


async def test_every_route_refuses_too_much() -> None:
    with_body = [(method, path) for method, path in ROUTES if method in ("POST", "PUT", "PATCH")]
    assert len(with_body) >= 10
    async with running_server(max_body_bytes=1000, max_file_bytes=1000) as small:
        for method, path in with_body:
            url = path.format(id="a", path="workspaces/a/b", **NAMES)
            answer = await small.client.request(method, url, content=b"x" * 1001)
            assert problem_in(answer, path).status == 413


NOTHING: dict[str, Any] = {}
BODIES: dict[str, dict[str, Any]] = {
    "/transcript": {"content": b"User: x\n", "headers": {"If-Match": "*"}},
    "/rename": {"json": {"id": "b"}},
    "/rewind": {"json": {"to": 0}},
    "/update": {"json": {"claim": "x"}},
    "/finish": {"json": {"claim": "x"}},
    "/questions": {"json": {"claim": "x", "text": "x"}},
    "/questions/{question}": {"json": {"answer": "x"}},
    "/settings": {"json": {}},
    "/items": {"json": {"items": [{"role": "user", "content": "x"}]}},
}


async def test_every_route_of_a_session_says_when_there_is_none(server: ServerHarness) -> None:
    for method, path in NEED_A_SESSION:
        body = next((body for end, body in BODIES.items() if path.endswith(end) and method != "GET"), NOTHING)
        absent = problem_in(await server.client.request(method, path.format(id="none", **NAMES), **body))
        assert absent.status == 404, (method, path)
        wrong = problem_in(await server.client.request(method, path.format(id=".x", **NAMES), **body))
        assert wrong.status == (422 if protocol_at(path) is None else 400), (method, path)
        assert len(server.store) == 0, (method, path)


async def test_a_defect_is_told_without_its_details_and_the_server_goes_on(
    server: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(_: str) -> None:
        raise RuntimeError("secret of the house")

    with capture_logs() as log:
        monkeypatch.setattr(server.store, "get", defect)
        answer = await server.client.get("/v1/sessions/a")
        assert problem_in(answer).status == 500
        assert "secret" not in answer.text
        monkeypatch.undo()
        assert (await server.client.get("/v1/sessions/a")).status_code == 404
    (told,) = [entry for entry in log if entry["event"] == "request.defect"]
    assert (told["exc_info"], told["path"]) == (True, "/v1/sessions/a"), "the log has the trace"


async def test_the_framework_s_pages_with_foreign_scripts_are_off_and_the_document_is_on(server: ServerHarness) -> None:
    assert (await server.client.get("/docs")).status_code == 404
    assert (await server.client.get("/redoc")).status_code == 404
    assert (await server.client.get("/openapi.json")).json()["openapi"].startswith("3.")


async def test_the_index_says_where_to_go(server: ServerHarness) -> None:
    places = (await server.client.get("/")).json()
    assert places["sessions"] == "/v1/sessions"
    assert "/v1/sessions" in (await server.client.get("/", headers={"Accept": "text/plain"})).text


async def test_readiness_names_the_model_and_metrics_count_what_happened() -> None:
    async with running_server() as server:
        ready = (await server.client.get("/readyz")).json()
        assert (ready["status"], ready["model"]["name"]) == ("ready", "scripted")
        await server.say("a", "one two", wait="true")
        while True:
            lines = (await server.client.get("/metrics")).text.splitlines()
            if 'cfs_turns_total{result="stop"} 1.0' in lines:
                break
        for line in (
            'cfs_sessions{state="idle"} 1.0',
            'cfs_tokens_total{kind="completion"} 2.0',
            "cfs_streams_open 0.0",
            'cfs_turn_seconds_count{phase="first_token"} 1.0',
            "cfs_turns_queued 0.0",
            "cfs_engine_ready 1.0",
            "cfs_engine_tokens_generated_total 2.0",
            'cfs_request_seconds_count{method="POST",route="/v1/sessions/{id}/messages",status="200"} 1.0',
        ):
            assert line in lines, line
        await server.engine.stop()
        not_ready = await server.client.get("/readyz")
        assert problem_in(not_ready).status == 503
        assert not_ready.json()["model"]["name"] == "scripted"
        assert not_ready.headers["Retry-After"] == "1"


def test_applications_share_their_routes() -> None:
    """Making them takes a fifth of a second, so a process does it once, when it imports them."""
    other = create_app(ServerSettings(), ScriptedEngine())
    assert [route for route in other.routes if isinstance(route, APIRoute)] == [
        route for route in APP.routes if isinstance(route, APIRoute)
    ]
    assert sum(isinstance(route, APIRoute) for route in APP.routes) > 50
