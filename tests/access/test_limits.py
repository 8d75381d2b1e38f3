"""How much one caller may take, and that it is nobody else's loss (H7)."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from cfs.errors import TooMany
from cfs.wire import Message
from cfs_server.access import tokens
from cfs_server.access.auth import Rate
from cfs_server.domain.message_sizes import cost_of
from tests.access.support import Gated, bearer, gated, make
from tests.server.support import EventStream, until
from tests.server.test_errors import problem_in


def two(file: Path, **limits: Any) -> dict[str, str]:
    """Make a token with limits, and one without."""
    return {"alice": make(file, "alice", "/", **limits), "bob": make(file, "bob", "/")}


def full(answer: httpx.Response, who: str = "alice") -> None:
    """Check that something was refused for want of room, with what to do."""
    assert problem_in(answer).status == 507, answer.text
    assert who in answer.text or "your token" in answer.text
    assert "delete some" in answer.text


# -- requests a second ------------------------------------------------------------------------------------------------


@dataclass
class ManualClock:
    """A clock that the test moves."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def taken(rate: Rate) -> int:
    """Take until there is no more."""
    count = 0
    while True:
        try:
            rate.take()
        except TooMany:
            return count
        count += 1


def refusal(rate: Rate) -> float:
    """Ask for one too many; return after how many seconds there is room."""
    with pytest.raises(TooMany) as refused:
        rate.take()
    assert refused.value.retry_after is not None
    return refused.value.retry_after


def test_two_seconds_worth_of_requests_may_come_at_once_and_then_as_many_as_come_back() -> None:
    clock = ManualClock()
    rate = Rate(clock)
    rate.limit(5)
    assert taken(rate) == 10
    assert refusal(rate) == pytest.approx(0.2)
    clock.now += 0.1
    assert refusal(rate) == pytest.approx(0.1), "asking too early costs nothing"
    clock.now += 0.1
    assert taken(rate) == 1
    clock.now += 1
    assert taken(rate) == 5
    clock.now += 1_000_000
    assert taken(rate) == 10, "what is not used is not saved up"


def test_in_the_long_run_there_are_no_more_than_the_limit() -> None:
    clock = ManualClock()
    rate = Rate(clock)
    rate.limit(3)
    count = 0
    for _ in range(10_000):
        clock.now += 0.01
        count += taken(rate)
    assert 300 <= count <= 306


def test_less_than_one_request_a_second_is_one_now_and_then() -> None:
    clock = ManualClock()
    rate = Rate(clock)
    rate.limit(0.1)
    assert taken(rate) == 1
    assert refusal(rate) == pytest.approx(10)
    clock.now += 9.9
    assert taken(rate) == 0
    clock.now += 0.2
    assert taken(rate) == 1


def test_a_limit_is_changed_taken_away_and_set_again_and_setting_the_same_gives_nothing() -> None:
    clock = ManualClock()
    rate = Rate(clock)
    for _ in range(1000):
        rate.take()
    rate.limit(2)
    assert taken(rate) == 4
    rate.limit(2)
    assert taken(rate) == 0, "each change of the tokens file sets all limits"
    rate.limit(None)
    for _ in range(1000):
        rate.take()
    rate.limit(1)
    assert taken(rate) == 2


async def test_too_many_requests_are_told_when_to_come_back_and_others_are_not_kept(file: Path) -> None:
    with capture_logs() as log:
        async with gated(file, two(file, requests=0.01)) as gate:
            assert await gate.status("alice") == 200
            answer = await gate["alice"].get("/v1/sessions")
            assert problem_in(answer).status == 429
            assert 90 < int(answer.headers["Retry-After"]) <= 100
            assert "0.01 requests a second" in answer.text
            assert problem_in(await gate["alice"].get("/healthz")).status == 429, "a token is shown, and so counted"
            assert (await gate.server.client.get("/healthz")).status_code == 200
            for _ in range(20):
                assert await gate.status("bob") == 200
    late = [entry["principal"] for entry in log if entry["event"] == "request" and entry["status"] == 429]
    assert late == ["alice", "alice"], "the log says who"


# -- where limits come from -------------------------------------------------------------------------------------------


async def test_a_token_s_own_limits_go_before_those_of_the_server_one_by_one(file: Path) -> None:
    secrets = {
        "plain": make(file, "plain", "/"),
        "more": make(file, "more", "/", sessions=50, requests=1000, daily_tokens=1, daily_cost=2),
        "less": make(file, "less", "/", sessions=0, bytes=0, streams=0, daily_cost=0),
    }
    defaults = {"token_sessions": 5, "token_bytes": 600, "token_streams": 7, "token_requests": 80.0}
    defaults |= {"token_daily_tokens": 9, "token_daily_cost": 0.5}
    async with gated(file, secrets, **defaults) as gate:
        limits = {name: (await gate[name].get("/v1/whoami")).json()["limits"] for name in secrets}
        assert limits == {
            "plain": {"sessions": 5, "bytes": 600, "streams": 7, "requests": 80, "daily_tokens": 9, "daily_cost": 0.5},
            "more": {"sessions": 50, "bytes": 600, "streams": 7, "requests": 1000, "daily_tokens": 1, "daily_cost": 2},
            "less": {"sessions": 0, "bytes": 0, "streams": 0, "requests": 80, "daily_tokens": 9, "daily_cost": 0.0},
        }
        made = [(await gate["more"].post("/v1/sessions")).status_code for _ in range(6)]
        assert made == [201] * 6
        made = [(await gate["plain"].post("/v1/sessions")).status_code for _ in range(6)]
        assert made == [201] * 5 + [507]
        full(await gate["less"].post("/v1/sessions"), "less")
        full(await gate["less"].put("/v1/files/workspaces/a/b", content=b"x"))
        stream = await gate["less"].get("/v1/events", headers={"Accept": "text/event-stream"})
        assert problem_in(stream).status == 429


async def test_limits_of_a_running_server_follow_the_file(file: Path) -> None:
    async with gated(file, {"alice": make(file, "alice", "/", sessions=1)}) as gate:
        assert (await gate["alice"].post("/v1/sessions")).status_code == 201
        full(await gate["alice"].post("/v1/sessions"))
        await gate.edit("sessions = 1", "sessions = 2")
        while (answer := await gate["alice"].post("/v1/sessions")).status_code != 201:
            full(answer)
            await asyncio.sleep(0.05)
        await gate.edit("sessions = 2", "sessions = 0")
        while (await gate["alice"].get("/v1/whoami")).json()["limits"]["sessions"] != 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (await gate.used("alice"))["sessions"] == 2, "less than there is takes nothing away"
        full(await gate["alice"].post("/v1/sessions"))


# -- sessions ---------------------------------------------------------------------------------------------------------


async def make_one(gate: Gated, how: str, who: str = "alice") -> httpx.Response:
    """Make one session more in one of the ways that there are; `a` exists."""
    caller = gate[who]
    match how:
        case "post":
            return await caller.post("/v1/sessions", json={"id": f"{who}-new"})
        case "without a name":
            return await caller.post("/v1/sessions")
        case "import":
            return await caller.post("/v1/sessions", json={"id": f"{who}-new", "transcript": "User: x\n"})
        case "message":
            return await caller.post(f"/v1/sessions/{who}-new/messages", content=b"x")
        case "empty message":
            return await caller.post(f"/v1/sessions/{who}-new/messages", content=b"")
        case "file":
            return await caller.put(f"/v1/files/sessions/{who}-new", content=b"x")
        case "fork":
            return await caller.post("/v1/sessions/a/fork", json={"id": f"{who}-new"})
        case "sub-session":
            return await caller.post("/v1/sessions", json={"id": f"a/{who}-new"})
        case "sub-session by file":
            return await caller.put(f"/v1/files/sessions/a/{who}-new", content=b"x")
    raise ValueError(how)


WAYS = ["post", "without a name", "import", "message", "empty message", "file", "fork", "sub-session"]
WAYS += ["sub-session by file"]


@pytest.mark.parametrize("how", WAYS)
async def test_every_way_to_make_a_session_counts_and_is_refused_at_the_limit(file: Path, how: str) -> None:
    async with gated(file, two(file, sessions=2)) as gate:
        assert (await gate["alice"].post("/v1/sessions", json={"id": "a"})).status_code == 201
        made = await make_one(gate, how)
        assert made.status_code in (201, 202), made.text
        assert (await gate.used("alice"))["sessions"] == 2
        last = made.json().get("id") or made.json().get("session") or made.json()["path"].removeprefix("/sessions/")
        assert (await gate["alice"].post("/v1/sessions", json={"id": "third"})).status_code == 507
        assert (await gate["alice"].delete(f"/v1/sessions/{last}")).status_code == 204
        assert (await gate["alice"].post("/v1/sessions", json={"id": "filler"})).status_code == 201
        before = len(gate.server.store)
        full(await make_one(gate, how))
        assert len(gate.server.store) == before
        assert (await make_one(gate, how, "bob")).status_code in (201, 202), "bob has room"
        assert (await gate.used("alice"))["sessions"] == 2


async def test_sessions_that_are_made_on_the_way_count_and_none_is_made_where_not_all_have_room(file: Path) -> None:
    async with gated(file, two(file, sessions=3)) as gate:
        alice = gate["alice"]
        for name in ("a/b/c/d", "x/y/z/w"):
            full(await alice.post("/v1/sessions", json={"id": name}))
            full(await alice.post(f"/v1/sessions/{name}/messages", content=b"x"))
        assert (len(gate.server.store), await gate.used("alice")) == (
            0,
            {"sessions": 0, "bytes": 0, "streams": 0, "requests": None, "daily_tokens": 0, "daily_cost": 0.0},
        )
        assert (await alice.post("/v1/sessions", json={"id": "a/b"})).status_code == 201
        assert (await alice.post("/v1/sessions/a/b/rename", json={"id": "c/b"})).status_code == 200
        assert (await gate.used("alice"))["sessions"] == 3, "c was made for it"
        full(await alice.post("/v1/sessions/a/rename", json={"id": "d/a"}))
        assert (await alice.delete("/v1/sessions/c")).status_code == 204
        assert (await gate.used("alice"))["sessions"] == 1, "what is below is gone, too"


# -- bytes of messages ------------------------------------------------------------------------------------------------


WAITS = cost_of(Message(role="user", content="x" * 400))


async def test_messages_and_imports_count_until_they_are_deleted(file: Path) -> None:
    async with gated(file, two(file, bytes=2500)) as gate:
        alice, bob = gate["alice"], gate["bob"]
        said = await alice.post("/v1/sessions/a/messages?wait=true", content=b"x" * 400)
        assert said.status_code == 200, said.text
        used = (await gate.used("alice"))["bytes"]
        assert used > 800, "the reply repeats the message, and counts"
        long = "Assistant: " + "y" * 400 + "\n"
        for name in ("a", "new"):
            full(await alice.post(f"/v1/sessions/{name}/messages", content=b"x" * 400))
            full(await alice.put(f"/v1/files/sessions/{name}", content=b"x" * 400))
        full(await alice.post("/v1/sessions", json={"id": "new", "transcript": long}))
        full(await alice.post("/v1/sessions/a/fork", json={"id": "new"}))
        replaced = {"Content-Type": "text/plain", "If-Match": "*"}
        full(await alice.put("/v1/sessions/a/transcript", content=long * 4, headers=replaced))
        assert (await alice.get("/v1/sessions/new")).status_code == 404
        assert (await gate.used("alice"))["bytes"] == used
        assert (await bob.post("/v1/sessions", json={"id": "new", "transcript": long * 10})).status_code == 201
        assert (await alice.put("/v1/sessions/a/transcript", content=long, headers=replaced)).status_code == 200
        assert (await alice.post("/v1/sessions/b/messages?wait=true", content=b"x" * 200)).status_code == 200
        assert (await alice.delete("/v1/sessions/a")).status_code == 204
        assert (await alice.delete("/v1/sessions/b")).status_code == 204
        assert (await gate.used("alice"))["bytes"] == 0
        assert (await alice.post("/v1/sessions/c/messages", content=b"x" * 400)).status_code == 202


async def test_messages_that_wait_count_as_well(file: Path) -> None:
    """Nobody answers an agent's session, so they could wait there for ever, in as many sessions as there may be."""
    async with gated(file, two(file, bytes=2500)) as gate:
        alice = gate["alice"]
        for name in ("a", "b"):
            settings = {"id": name, "settings": {"driver": "agent"}}
            assert (await alice.post("/v1/sessions", json=settings)).status_code == 201
            assert (await alice.post(f"/v1/sessions/{name}/messages", content=b"x" * 400)).status_code == 202
        assert (await gate.used("alice"))["bytes"] == 2 * WAITS
        full(await alice.post("/v1/sessions/b/messages", content=b"x" * 400))
        assert (await alice.post("/v1/sessions/a/cancel", json={"queued": True})).json()["queued"] == 1
        assert (await gate.used("alice"))["bytes"] == WAITS
        assert (await alice.post("/v1/sessions/b/messages", content=b"x" * 400)).status_code == 202
        assert (await alice.delete("/v1/sessions/b")).status_code == 204
        assert (await gate.used("alice"))["bytes"] == 0


async def test_what_an_agent_adds_counts_and_a_turn_that_finds_no_room_can_be_ended(file: Path) -> None:
    async with gated(file, two(file, bytes=2500)) as gate:
        alice = gate["alice"]
        await alice.post("/v1/sessions", json={"id": "a", "settings": {"driver": "agent"}})
        await alice.post("/v1/sessions/a/messages", content=b"x" * 400)
        turn = (await alice.post("/v1/sessions/a/claim", json={})).json()
        place, claim = f"/v1/sessions/a/turns/{turn['turn']}", {"claim": turn["claim"]}

        def messages(size: int) -> dict[str, Any]:
            return claim | {"messages": [{"role": "assistant", "content": "y" * size}]}

        assert (await alice.post(f"{place}/update", json=messages(300))).status_code == 200
        full(await alice.post(f"{place}/update", json=messages(600)))
        full(await alice.post(f"{place}/finish", json=claim | {"reply": "z" * 600}))
        assert (await gate.used("alice"))["bytes"] < 2500
        ended = await alice.post(f"{place}/finish", json=claim | {"error": "no room"})
        assert ended.status_code == 200, ended.text
        assert (await alice.get("/v1/sessions/a")).json()["state"] == "idle"


# -- bytes of files ---------------------------------------------------------------------------------------------------


async def put(gate: Gated, who: str, name: str, size: int, **headers: str) -> httpx.Response:
    """Write a file of some size."""
    place = f"/v1/files/workspaces/{who}/{name}"
    return await gate[who].put(place, content=b"x" * size, headers=headers)


def each_in_its_own(file: Path) -> dict[str, str]:
    """Make two tokens, each for a workspace of its own, and one for all."""
    own = {name: make(file, name, f"/workspaces/{name}/", bytes=1000) for name in ("alice", "bob")}
    return own | {"root": make(file, "root", "/")}


async def test_files_fill_a_workspace_and_deleting_one_makes_room_at_once(file: Path) -> None:
    async with gated(file, each_in_its_own(file)) as gate:
        assert (await put(gate, "alice", "one", 600)).status_code == 201
        full(await put(gate, "alice", "two", 600))
        full(await put(gate, "alice", "deep/er/two", 401))
        assert (await put(gate, "bob", "one", 1000)).status_code == 201, "bob has room of his own"
        assert (await gate["alice"].get("/v1/files/workspaces/alice/two")).status_code == 404
        assert (await put(gate, "alice", "two", 400)).status_code == 201, "to the last byte"
        full(await put(gate, "alice", "three", 1))
        assert (await put(gate, "alice", "three", 0)).status_code == 201
        assert (await gate["alice"].delete("/v1/files/workspaces/alice/one")).status_code == 204
        assert (await put(gate, "alice", "four", 600)).status_code == 201
        full(await put(gate, "alice", "five", 1))
        assert (await gate["root"].delete("/v1/files/workspaces/alice/four")).status_code == 204
        assert (await put(gate, "alice", "five", 600)).status_code == 201, "whoever deleted it"


async def test_a_file_that_takes_the_place_of_another_needs_only_what_it_is_longer(file: Path) -> None:
    async with gated(file, each_in_its_own(file)) as gate:
        for size, status in ((900, 201), (900, 200), (1000, 200), (1001, 507), (10, 200), (1000, 200)):
            assert (await put(gate, "alice", "one", size)).status_code == status, size
        full(await put(gate, "alice", "two", 1))


async def test_a_write_that_fails_takes_no_room(file: Path) -> None:
    async with gated(file, each_in_its_own(file)) as gate:
        assert (await put(gate, "alice", "one", 1)).status_code == 201
        for _ in range(3):
            assert (await put(gate, "alice", "one", 900, **{"If-None-Match": "*"})).status_code in (409, 412)
            assert (await put(gate, "alice", "one/below", 900)).status_code == 409
        assert (await put(gate, "alice", "two", 999)).status_code == 201


async def test_writes_at_the_same_time_do_not_pass_the_limit_together(file: Path) -> None:
    async with gated(file, each_in_its_own(file)) as gate:
        for attempt in range(5):
            answers = await asyncio.gather(*(put(gate, "alice", f"f{n}", 300) for n in range(20)))
            stored = [n for n, answer in enumerate(answers) if answer.status_code == 201]
            assert len(stored) <= 3, f"attempt {attempt}"
            for answer in answers:
                if answer.status_code != 201:
                    full(answer)
            listed = (await gate["alice"].get("/v1/files")).json()["files"]
            assert sum(each["size"] for each in listed) == 300 * len(stored)
            for n in stored:
                assert (await gate["alice"].delete(f"/v1/files/workspaces/alice/f{n}")).status_code == 204


async def test_files_that_were_there_before_count(file: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "workspaces" / "alice").mkdir(parents=True)
    (tmp_path / "data" / "workspaces" / "alice" / "old").write_bytes(b"x" * 900)
    async with gated(file, each_in_its_own(file), data_dir=tmp_path / "data") as gate:
        full(await put(gate, "alice", "new", 200))
        assert (await put(gate, "alice", "new", 100)).status_code == 201


# -- streams ----------------------------------------------------------------------------------------------------------


async def test_streams_at_the_limit_are_told_to_come_back_and_closing_one_makes_room(file: Path) -> None:
    secrets = two(file, streams=2)
    async with gated(file, secrets) as gate:
        url, mine, hers = gate.server.url, bearer(secrets["bob"]), bearer(secrets["alice"])
        await gate["bob"].post("/v1/sessions", json={"id": "a"})
        open_ones = [await EventStream.open(url, path, hers) for path in ("/v1/events", "/v1/sessions/a/events")]
        assert [stream.status for stream in open_ones] == [200, 200]
        for path in ("/v1/events", "/v1/sessions/a/events"):
            answer = await gate["alice"].get(path, headers={"Accept": "text/event-stream"})
            assert problem_in(answer).status == 429
            assert int(answer.headers["Retry-After"]) >= 1
            assert "close some" in answer.text
        told = await gate["alice"].post(
            "/v1/sessions/a/messages", content=b"x", headers={"Accept": "text/event-stream"}
        )
        assert told.status_code == 429, "a turn's events are a stream as well"
        async with await EventStream.open(url, "/v1/events", mine) as other:
            assert other.status == 200
        open_ones.pop().close()
        while (await gate.used("alice"))["streams"] == 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with await EventStream.open(url, "/v1/events", hers) as again:
            assert again.status == 200
        open_ones.pop().close()
        await until(lambda: gate.server.parts.streams.open == 0)
        assert (await gate.used("alice"))["streams"] == 0


# -- across revocation ------------------------------------------------------------------------------------------------


async def test_what_was_made_before_a_token_was_revoked_still_counts_when_it_comes_back(file: Path) -> None:
    async with gated(file, two(file, sessions=2)) as gate:
        for name in ("a", "b"):
            assert (await gate["alice"].post("/v1/sessions", json={"id": name})).status_code == 201
        await asyncio.to_thread(tokens.revoke, file, "alice")
        await gate.until_status("alice", 401)
        assert (await gate["bob"].delete("/v1/sessions/a")).status_code == 204, "somebody may tidy up"
        gate.admit("alice", await asyncio.to_thread(lambda: make(file, "alice", "/", sessions=2)))
        await gate.until_status("alice", 200)
        assert (await gate.used("alice"))["sessions"] == 1
        assert (await gate["alice"].post("/v1/sessions", json={"id": "c"})).status_code == 201
        full(await gate["alice"].post("/v1/sessions", json={"id": "d"}))
