"""Three replicas behave as one server: each takes every request, for every session (P2)."""

import asyncio
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import httpx
import pytest

from cfs import Session
from cfs.api import LIFE
from cfs_server.domain.placement import slot_of
from tests.cluster.support import SLOTS, Replicas, names, say, text_of
from tests.server.support import EventStream, data, kinds

_numbers = count(1)


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"r{next(_numbers)}"


def get(url: str, path: str, **headers: str) -> httpx.Response:
    return httpx.get(url + path, headers=headers, timeout=60, trust_env=False)


def post(url: str, path: str, body: object = None) -> httpx.Response:
    return httpx.post(url + path, json=body or {}, timeout=60, trust_env=False)


def test_each_replica_owns_a_part_of_the_slots(three: Replicas) -> None:
    owners = list(three.owners().values())
    assert len(owners) == SLOTS
    assert {owners.count(url) for url in three.urls} == {2}


def test_each_replica_reads_what_any_other_has_written(three: Replicas, name: str) -> None:
    for number in range(9):  # so many that they have different owners
        session, writer = f"{name}-{number}", three.urls[number % 3]
        assert say(writer, session, f"hello {number}")["reply"] == f"hello {number}"
        for reader in three.urls:
            assert text_of(reader, session) == f"User: hello {number}\nAssistant: hello {number}\n"
    owners = {three.owner_of(f"{name}-{number}").url for number in range(9)}
    assert len(owners) > 1


async def test_a_stream_of_one_session_is_relayed_event_by_event(three: Replicas, name: str) -> None:
    say(three.urls[0], name, "first")
    streams = [await EventStream.open(url, f"/v1/sessions/{name}/events?after=0") for url in three.urls]
    try:
        seen = [await stream.until("turn.finished") for stream in streams]
        assert seen[0] == seen[1] == seen[2]
        await asyncio.to_thread(say, three.urls[1], name, "second")
        more = [await stream.until("turn.finished") for stream in streams]
        assert kinds(more[0]) == kinds(more[1]) == kinds(more[2])
    finally:
        for stream in streams:
            stream.close()


async def test_a_message_is_answered_as_a_stream_by_each_replica(three: Replicas, name: str) -> None:
    for url in three.urls:
        async with await EventStream.open(url, f"/v1/sessions/{name}/messages", body=b"hello") as stream:
            assert data((await stream.rest())[-1])["reply"] == "hello"


def test_listings_contain_the_sessions_of_all_replicas_in_order(three: Replicas, name: str) -> None:
    made = sorted(f"{name}-{number}" for number in range(12))
    for number, session in enumerate(made):
        say(three.urls[number % 3], session, "hello")
    for url in three.urls:
        found = names(url)
        assert found == sorted(found)
        assert [each for each in found if each.startswith(f"{name}-")] == made
        page = get(url, f"/v1/sessions?prefix={name}-&limit=5").json()
        assert [each["id"] for each in page["sessions"]] == made[:5]
        assert page["next"] == made[4]


def test_a_listing_is_sent_once_to_a_client_that_has_it(three: Replicas, name: str) -> None:
    say(three.urls[0], name, "hello")
    first = get(three.urls[0], f"/v1/sessions?prefix={name}")
    for url in three.urls:
        again = get(url, f"/v1/sessions?prefix={name}", **{"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
    say(three.urls[1], name, "more")
    changed = get(three.urls[2], f"/v1/sessions?prefix={name}", **{"If-None-Match": first.headers["ETag"]})
    assert changed.status_code == 200


def test_a_search_finds_messages_of_all_replicas(three: Replicas, name: str) -> None:
    for number in range(9):
        say(three.urls[number % 3], f"{name}-{number}", f"needle{name} {number}")
    for url in three.urls:
        found = get(url, f"/v1/search?q=needle{name}&limit=30").json()["results"]
        assert {each["session"] for each in found} == {f"{name}-{number}" for number in range(9)}
        assert [each["time"] for each in found] == sorted((each["time"] for each in found), reverse=True)


def test_webdav_shows_all_sessions_and_writes_to_each(three: Replicas, name: str) -> None:
    for number in range(6):
        url = f"{three.urls[number % 3]}/dav/sessions/{name}-{number}"
        assert httpx.put(url, content=b"hello\n", timeout=60, trust_env=False).status_code in (200, 201, 204)
    for url in three.urls:
        listed = httpx.request("PROPFIND", f"{url}/dav/sessions/", headers={"Depth": "1"}, timeout=60, trust_env=False)
        assert listed.status_code == 207
        for number in range(6):
            assert listed.text.count(f"/dav/sessions/{name}-{number}<") == 1
            read = get(url, f"/dav/sessions/{name}-{number}")
            assert read.text == "User: hello\nAssistant: hello\n"


def test_webdav_shows_the_questions_of_all_replicas_and_takes_answers_at_each(three: Replicas, name: str) -> None:
    asked = {}
    for number in range(6):
        url, session = three.urls[number % 3], f"{name}-{number}"
        assert post(url, "/v1/sessions", {"id": session, "settings": {"driver": "agent"}}).status_code == 201
        assert post(url, f"/v1/sessions/{session}/messages", {"content": "go"}).status_code < 300
        claim = post(url, f"/v1/sessions/{session}/claim", {}).json()["claim"]
        new = {"claim": claim, "text": "make"}
        asked[session] = post(url, f"/v1/sessions/{session}/questions", new).json()["id"]
    for url in three.urls:
        listed = get(url, "/dav/questions").text.splitlines()
        assert [entry for entry in listed if entry.startswith(f"{name}-")] == [f"{session}/" for session in asked]
        found = httpx.request("PROPFIND", f"{url}/dav/questions/", headers={"Depth": "1"}, timeout=60, trust_env=False)
        assert all(found.text.count(f"/dav/questions/{session}/<") == 1 for session in asked)
    for number, (session, question) in enumerate(asked.items()):
        path = f"/dav/questions/{session}/{question}"
        assert "run this command" in get(three.urls[number % 3], path).text
        answers = [
            httpx.put(f"{url}{path}", content=b"deny", timeout=60, trust_env=False).status_code for url in three.urls
        ]
        assert answers == [204, 409, 409]


def test_a_renamed_session_is_found_by_its_new_name_only(three: Replicas, name: str) -> None:
    for number in range(6):  # some of these names have their home in the same slot, most in another one
        old, new = f"{name}-old-{number}", f"{name}-new-{number}"
        say(three.urls[0], old, "hello")
        assert post(three.urls[1], f"/v1/sessions/{old}/rename", {"id": new}).status_code == 200
        for url in three.urls:
            assert text_of(url, new) == "User: hello\nAssistant: hello\n"
            assert get(url, f"/v1/sessions/{old}").status_code == 404
        say(three.urls[2], new, "again")
        assert text_of(three.urls[0], new).count("Assistant") == 2
        say(three.urls[0], old, "another session of the old name")
        assert [each for each in names(three.urls[1]) if each.endswith(f"-{number}") and name in each] == [new, old]


def test_a_name_can_be_used_again_after_its_session_was_moved_away_or_deleted(three: Replicas, name: str) -> None:
    first, second, shared = f"{name}-a", f"{name}-b", f"{name}-shared"
    for session in (first, second):
        say(three.urls[0], session, session)
        assert post(three.urls[1], f"/v1/sessions/{session}/rename", {"id": shared}).status_code == 200
        assert text_of(three.urls[2], shared).startswith(f"User: {session}\n")
        assert httpx.delete(f"{three.urls[0]}/v1/sessions/{shared}", timeout=60, trust_env=False).status_code == 204
        assert get(three.urls[1], f"/v1/sessions/{shared}").status_code == 404
    say(three.urls[1], shared, "new")
    for url in three.urls:
        assert text_of(url, shared).startswith("User: new\n")
    assert names(three.urls[0]).count(shared) == 1


def test_each_replica_says_what_has_become_of_a_session(three: Replicas, name: str) -> None:
    """The name stays with the slot that had the session, so the answer is the same wherever the new name belongs."""

    def fates(lives: dict[str, str]) -> set[str]:
        answers = [
            get(url, f"/v1/sessions/{session}", **{LIFE: life}) for session, life in lives.items() for url in three.urls
        ]
        return {answer.json()["type"].removeprefix("urn:cfs:error:") for answer in answers}

    for number, url in enumerate(three.urls):
        root, moved = f"{name}-{number}", f"{name}-moved-{number}"
        created = {session: post(url, "/v1/sessions", {"id": session}) for session in (root, f"{root}/child")}
        lives = {session: answer.headers[LIFE] for session, answer in created.items()}
        assert post(url, f"/v1/sessions/{root}/rename", {"id": moved}).status_code == 200
        assert fates(lives) == {"session-renamed"}
        assert httpx.delete(f"{url}/v1/sessions/{moved}", timeout=60, trust_env=False).status_code == 204
        assert fates(lives) == {"session-deleted"}
        assert fates({root: "00000000"}) == {"session-lost"}


def test_of_many_renames_to_one_name_exactly_one_succeeds(three: Replicas, name: str) -> None:
    sources = [f"{name}-{number}" for number in range(9)]
    for session in sources:
        say(three.urls[0], session, "hello")
    with ThreadPoolExecutor(9) as threads:
        asked = [
            threads.submit(post, three.urls[at % 3], f"/v1/sessions/{session}/rename", {"id": f"{name}-won"})
            for at, session in enumerate(sources)
        ]
        statuses = sorted(each.result().status_code for each in asked)
    assert statuses == [200] + [409] * 8
    assert names(three.urls[0]).count(f"{name}-won") == 1


def test_a_sub_session_stays_in_its_slot(three: Replicas, name: str) -> None:
    """It can be renamed within its family, and be moved below a session of its slot, but not below any other."""
    say(three.urls[0], f"{name}-a/child", "hello")
    moved = post(three.urls[1], f"/v1/sessions/{name}-a/child/rename", {"id": f"{name}-a/other"})
    assert moved.status_code == 200, moved.text
    others = [f"{name}-{number}" for number in range(12)]
    for session in others:
        say(three.urls[0], session, "hello")
    elsewhere = next(each for each in others if slot_of(each, SLOTS) != slot_of(f"{name}-a", SLOTS))
    refused = post(three.urls[2], f"/v1/sessions/{name}-a/other/rename", {"id": f"{elsewhere}/child"})
    assert refused.status_code == 409
    assert refused.json()["type"] == "urn:cfs:error:conflict"
    assert text_of(three.urls[0], f"{name}-a/other") == "User: hello\nAssistant: hello\n"


def test_a_copy_has_the_name_that_was_asked_for_or_a_free_one(three: Replicas, name: str) -> None:
    say(three.urls[0], name, "hello")
    for number in range(6):
        copied = post(three.urls[number % 3], f"/v1/sessions/{name}/fork", {"id": f"{name}-copy-{number}"})
        assert copied.status_code == 201, copied.text
        assert text_of(three.urls[2], f"{name}-copy-{number}") == text_of(three.urls[0], name)
    free = [post(url, f"/v1/sessions/{name}/fork").json()["id"] for url in three.urls]
    assert len(set(free)) == 3
    for session in free:
        assert text_of(three.urls[0], session) == text_of(three.urls[0], name)


def test_sessions_without_a_name_get_names_that_are_unique(three: Replicas) -> None:
    made = [post(three.urls[number % 3], "/v1/sessions").json()["id"] for number in range(30)]
    assert len(set(made)) == 30
    assert set(made) <= set(names(three.urls[0]))


def test_a_stored_response_is_found_by_each_replica(three: Replicas) -> None:
    made = post(three.urls[0], "/v1/responses", {"model": "scripted", "input": "hello"}).json()
    for url in three.urls:
        assert get(url, f"/v1/responses/{made['id']}").json()["output"] == made["output"]
        follow = post(url, "/v1/responses", {"input": "more", "previous_response_id": made["id"]})
        assert follow.status_code == 200, follow.text


def test_a_completion_is_recorded_in_the_named_session(three: Replicas, name: str) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
    for url in three.urls:
        answer = httpx.post(
            f"{url}/v1/chat/completions",
            json=body,
            headers={"X-CFS-Session": name},
            timeout=60,
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
    assert text_of(three.urls[0], name).startswith("User: hello\nAssistant: hello\n")


def test_the_sdk_and_the_command_line_use_any_replica(three: Replicas, name: str) -> None:
    for url in three.urls:
        with Session(name, url=url) as session:
            assert session.send("hello").text == "hello"
    assert len(text_of(three.urls[0], name).splitlines()) == 6


def test_a_large_file_passes_through_each_replica(three: Replicas, name: str) -> None:
    content = os.urandom(1 << 20) * 8
    for url in three.urls:
        put = httpx.put(f"{url}/v1/files/workspaces/{name}/file", content=content, timeout=60, trust_env=False)
        assert put.status_code in (200, 201), put.text


def test_an_order_that_no_replica_has_signed_is_refused(three: Replicas, name: str) -> None:
    for header in ("0;;99999999999;0" + "0" * 63, "nonsense", "-1;;99999999999;" + "f" * 64):
        answer = get(three.urls[0], f"/v1/sessions/{name}", **{"X-CFS-Slot": header})
        assert answer.status_code == 403, answer.text
    assert post(three.urls[0], "/cluster/names", {"do": "reserve"}).status_code == 404


def test_errors_have_the_shape_of_one_server(three: Replicas, name: str) -> None:
    for url in three.urls:
        missing = get(url, f"/v1/sessions/{name}")
        assert missing.status_code == 404
        assert missing.json()["type"] == "urn:cfs:error:not-found"
        assert post(url, "/v1/sessions", {"id": ".hidden"}).status_code == 422
        assert get(url, "/v1/sessions?limit=0").status_code == 422
        assert get(url, "/v1/sessions/%ff").status_code in (400, 422)


def test_curl_streams_through_a_replica(three: Replicas, name: str) -> None:
    for url in three.urls:
        done = subprocess.run(
            ["curl", "-sN", "-H", "Accept: text/event-stream", "-d", "hello", f"{url}/v1/sessions/{name}/messages"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert "event: turn.finished" in done.stdout


def test_the_health_of_each_replica_names_the_same_store(three: Replicas) -> None:
    lives = [json.loads(get(url, "/healthz").content) for url in three.urls]
    assert len({life["store"] for life in lives}) == 1
    assert len({life["replica"] for life in lives}) == 3
    assert all(get(url, "/readyz").status_code == 200 for url in three.urls)


def test_each_replica_shows_the_past_of_each_session(three: Replicas, name: str) -> None:
    """`.versions` lists the sessions of all replicas, whichever is asked."""
    made = [f"{name}-{number}" for number in range(6)]
    for number, session in enumerate(made):
        say(three.urls[number % 3], session, "hello")
    for url in three.urls:
        listed = httpx.request(
            "PROPFIND", f"{url}/dav/sessions/.versions/sessions", headers={"Depth": "1"}, timeout=60, trust_env=False
        )
        assert listed.status_code == 207
        assert all(f"/dav/sessions/.versions/sessions/{session}/" in listed.text for session in made)
        for session in made:
            for path in (f"/dav/sessions/.versions/sessions/{session}/@1", f"/v1/past/sessions/{session}/@1"):
                assert get(url, path).text == "User: hello\n"


def test_replicas_without_a_common_folder_say_that_they_keep_no_versions_of_files(three: Replicas, name: str) -> None:
    say(three.urls[0], name, "hello")
    need = "servers that share a database need a common folder or bucket for that: name it with `--workspaces`"
    reason = f"versions of files are not kept here: {need} (docs/versions.md)"
    for url in three.urls:
        assert httpx.put(f"{url}/v1/files/workspaces/{name}/a", content=b"x", timeout=60).status_code < 300
        refused = [
            *(
                get(url, path.format(name))
                for path in (
                    "/v1/versions/workspaces/{}",
                    "/v1/past/workspaces/{}/@1/a",
                    "/dav/workspaces/{}/.versions",
                )
            ),
            post(url, f"/v1/versions/workspaces/{name}", {"source": f"{name}-copy"}),
            post(url, f"/v1/sessions/{name}/rewind", {"to": 1, "messages": False}),
        ]
        assert [(answer.status_code, answer.json()["detail"]) for answer in refused] == [(501, reason)] * 5
