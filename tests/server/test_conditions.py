"""ETags, conditional reads and guarded writes (H3)."""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.server.support import TEXT, ServerHarness

CHANGES: dict[str, Callable[[ServerHarness], Awaitable[object]]] = {
    "message": lambda server: server.say("a", "more", wait="true"),
    "settings": lambda server: server.client.patch("/v1/sessions/a/settings", json={"seed": 1}),
    "edit": lambda server: server.client.put(
        "/v1/sessions/a/transcript", content="Tool: z\n", headers={"If-Match": "*"}
    ),
    "child": lambda server: server.client.post("/v1/sessions", json={"id": "a/child"}),
    "running": lambda server: _hold_and_say(server),
}


async def _hold_and_say(server: ServerHarness) -> None:
    server.engine.hold()
    await server.say("a", "more")


async def etags(server: ServerHarness) -> tuple[str, str]:
    """The ETags of the JSON and of the text."""
    return (
        (await server.client.get("/v1/sessions/a")).headers["ETag"],
        (await server.client.get("/v1/sessions/a", headers=TEXT)).headers["ETag"],
    )


@pytest.mark.parametrize("change", CHANGES)
async def test_the_etag_of_the_json_changes_with_everything_that_it_shows(server: ServerHarness, change: str) -> None:
    await server.say("a", "x", wait="true")
    json_before, text_before = await etags(server)
    shown = (await server.client.get("/v1/sessions/a")).json()
    await CHANGES[change](server)
    json_after, text_after = await etags(server)
    assert (await server.client.get("/v1/sessions/a")).json() != shown
    assert json_after != json_before
    assert (text_after != text_before) == (change in ("message", "edit", "running"))


async def test_every_token_changes_the_json_and_not_the_text(server: ServerHarness) -> None:
    server.engine.hold()
    await server.say("a", "one two three")
    seen = [await etags(server)]
    for count in (1, 2):
        server.engine.step()
        await server.until("a", "token", count)
        seen.append(await etags(server))
    assert len({view for view, _ in seen}) == 3
    assert len({text for _, text in seen}) == 1


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/sessions/a", {}),
        ("/v1/sessions/a", TEXT),
        ("/v1/sessions/a/settings", {}),
        ("/v1/sessions/a/sub_sessions", {}),
        ("/v1/sessions", {}),
    ],
)
async def test_a_reader_that_has_the_present_version_gets_no_second_copy(
    server: ServerHarness, path: str, headers: dict[str, str]
) -> None:
    await server.say("a", "x", wait="true")
    first = await server.client.get(path, headers=headers)
    etag = first.headers["ETag"]
    assert etag.startswith('"')
    for condition in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = await server.client.get(path, headers=headers | {"If-None-Match": condition})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", etag)
    assert (await server.client.get(path, headers=headers | {"If-None-Match": '"other"'})).status_code == 200
    head = await server.client.head(path, headers=headers)
    assert (head.headers["ETag"], head.headers["content-length"]) == (etag, str(len(first.content)))
    await server.say("a", "more", wait="true")
    assert (await server.client.get(path, headers=headers | {"If-None-Match": etag})).status_code == 200


GUARDED: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "settings": ("PATCH", "/v1/sessions/a/settings", {"json": {"seed": 2}}, 200),
    "delete": ("DELETE", "/v1/sessions/a", {}, 204),
    "message": ("POST", "/v1/sessions/a/messages", {"content": b"hello"}, 202),
    "transcript": ("PUT", "/v1/sessions/a/transcript", {"content": b"Assistant: y\n"}, 200),
}


@pytest.mark.parametrize(("write", "condition"), list(itertools.product(GUARDED, ["json", "text", "list", "star"])))
async def test_a_write_goes_through_when_it_names_a_present_version(
    server: ServerHarness, write: str, condition: str
) -> None:
    await server.say("a", "x", wait="true")
    view, text = await etags(server)
    value = {"json": view, "text": text, "list": f'"x", {text}', "star": "*"}[condition]
    method, path, body, status = GUARDED[write]
    answer = await server.client.request(method, path, headers={"If-Match": value}, **body)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(("write", "condition"), list(itertools.product(GUARDED, ["old", "weak", "foreign"])))
async def test_a_write_that_names_another_version_changes_nothing(
    server: ServerHarness, write: str, condition: str
) -> None:
    await server.say("a", "x", wait="true")
    old = (await etags(server))[1]
    await server.say("a", "more", wait="true")
    last = server.store.get("a").log.last
    value = {"old": old, "weak": f"W/{(await etags(server))[1]}", "foreign": '"x-1"'}[condition]
    method, path, body, _ = GUARDED[write]
    answer = await server.client.request(method, path, headers={"If-Match": value}, **body)
    assert (answer.status_code, answer.json()["type"]) == (412, "urn:cfs:error:precondition-failed")
    assert server.store.get("a").log.last == last


@pytest.mark.parametrize("value", ["", "abc", '"open', '"a" "b"'])
async def test_a_condition_that_names_no_version_at_all_matches_none(server: ServerHarness, value: str) -> None:
    await server.create("a")
    answer = await server.client.delete("/v1/sessions/a", headers={"If-Match": value})
    assert (answer.status_code, answer.json()["type"]) == (412, "urn:cfs:error:precondition-failed")
    assert len(server.store) == 1


async def test_replacing_the_history_needs_a_condition(server: ServerHarness) -> None:
    await server.create("a")
    answer = await server.client.put("/v1/sessions/a/transcript", content="User: y\n")
    assert (answer.status_code, answer.json()["type"]) == (428, "urn:cfs:error:precondition-required")
    assert server.store.get("a").etag in answer.json()["detail"]


async def test_no_version_matches_where_there_is_no_session(server: ServerHarness) -> None:
    answer = await server.client.post("/v1/sessions/a/messages", content=b"x", headers={"If-Match": "*"})
    assert answer.status_code == 412
    assert len(server.store) == 0


async def test_a_session_made_again_has_other_etags(server: ServerHarness) -> None:
    await server.create("a")
    before = await etags(server)
    await server.client.delete("/v1/sessions/a")
    await server.create("a")
    assert set(before).isdisjoint(await etags(server))
