"""What one caller may do with the sessions of a store (G9), without a server around it."""

import asyncio
import inspect
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

import pytest

from cfs.errors import CfsError, Conflict, Forbidden, Gone, InvalidTranscript, NotFound, NotGranted
from cfs.wire import Message, SettingsPatch
from cfs_filesystem import OPERATIONS, Grant, InMemoryFileSystem, InvalidPathError, Operation
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.ids import SESSIONS, parent_of, path_of
from cfs_server.domain.past import Moment
from cfs_server.domain.quotas import Quota
from cfs_server.domain.rights import Right
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.turns import TurnRequest
from cfs_server.domain.words import Criteria, SearchQuery
from cfs_server.sessions.authorization import Authorization
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.rewinding import RewindPlan, RewindStep
from tests.filesystem.support import grant
from tests.sessions.support import StoreHarness, running_store


@dataclass(frozen=True, slots=True)
class Counter:
    """A store, and the gate through which Bob comes to it."""

    harness: StoreHarness
    gate: AuthorizedSessions

    def may(self, *grants: Grant) -> None:
        """Let Bob do just this from now on."""
        self.gate._handle.grants = list(grants)

    def everything(self) -> list[object]:
        """All that a call could change."""
        store = self.harness.store
        return [store.bus.log.last, *((each.id, each.etag, each.settings, each.running) for each in store)]


@asynccontextmanager
async def counter() -> AsyncIterator[Counter]:
    async with running_store() as d:
        handle = InMemoryFileSystem([SESSIONS]).create_handle(())
        yield Counter(
            d, AuthorizedSessions(d.store, Authorization("bob", handle), d.store.account.part("bob", Quota()))
        )


def ids(sessions: Sequence[object]) -> list[str]:
    """Name some sessions."""
    return [str(getattr(session, "id", None)) for session in sessions]


# -- every method -----------------------------------------------------------------------------------------------------


class Method(NamedTuple):
    """A call of one method about the session `a`, and what it needs there."""

    needs: AbstractSet[Operation]
    call: Callable[[AuthorizedSessions], object]


WRITE: AbstractSet[Operation] = {"write"}


def plan_of(gate: AuthorizedSessions) -> RewindPlan:
    """A plan to take the session `a` back to its beginning."""
    session = gate._store.get("a")
    history = SizedMessages()
    return RewindPlan(
        (RewindStep(session, 0, history, tuple(enumerate(session.history.messages)), (), (), ()),), "op", Moment(0.0)
    )


METHODS: dict[str, list[Method]] = {
    "get": [
        Method({"read_binary"}, lambda gate: gate.get("a", "read_binary")),
        Method({"list", "delete"}, lambda gate: gate.get("a", "list", "delete")),
    ],
    "with_key": [Method({"file"}, lambda gate: gate.with_key(gate._store.get("a").key, "file"))],
    "find": [Method({"file"}, lambda gate: gate.find("a", "file"))],
    "get_for": [
        Method({"read_binary", "write"}, lambda gate: gate.get_for(Right.ANSWER, "a")),
        Method(WRITE, lambda gate: gate.get_for(Right.STEER, "a")),
    ],
    "require_right": [Method({"write", "delete"}, lambda gate: gate.require_right(Right.DELETE, "a"))],
    "configure": [
        Method(WRITE, lambda gate: gate.configure("a", SettingsPatch(seed=1, paused=True))),
        Method(WRITE, lambda gate: gate.configure("a", SettingsPatch(seed=1), dry_run=True)),
        Method({"write", "delete"}, lambda gate: gate.configure("a", SettingsPatch(keep="1m"))),
        Method({"write", "read_binary"}, lambda gate: gate.configure("a", SettingsPatch(driver=None))),
    ],
    "require": [Method({"read_re"}, lambda gate: gate.require("read_re", "a"))],
    "create": [
        Method(WRITE, lambda gate: gate.create("a/new")),
        Method({"write", "delete"}, lambda gate: gate.create("a/new", SettingsPatch(keep="1m"))),
    ],
    "open": [Method(WRITE, lambda gate: gate.open("a")), Method(WRITE, lambda gate: gate.open("a/new"))],
    "fill": [Method(WRITE, lambda gate: gate.fill("a/new", "User: x\n"))],
    "submit": [Method(WRITE, lambda gate: gate.submit("a", TurnRequest(Message(role="user", content="x"))))],
    "delete": [Method({"delete"}, lambda gate: gate.delete("a"))],
    "cancel": [Method(WRITE, lambda gate: gate.cancel("a", queued=True, cascade=True))],
    "name_of_copy": [
        Method({"read_binary"}, lambda gate: gate.name_of_copy("a", "own/new")),
        Method(WRITE, lambda gate: gate.name_of_copy("own", "a/new")),
    ],
    "fork": [
        Method({"read_binary"}, lambda gate: gate.fork("a", "own/new")),
        Method(WRITE, lambda gate: gate.fork("own", "a/new")),
    ],
    "rename": [
        Method({"read_binary", "delete"}, lambda gate: gate.rename("a", "own/new")),
        Method(WRITE, lambda gate: gate.rename("own", "a/new")),
    ],
    "past": [Method({"read_binary"}, lambda gate: gate.past("a"))],
    "plan_rewind": [
        Method(
            {"read_binary", "write", "delete"},
            lambda gate: gate.plan_rewind("a", 0, sub_sessions=True, messages=True, check=lambda _: None),
        )
    ],
    "carry_out": [
        Method(
            {"read_binary", "write", "delete"},
            lambda gate: gate.carry_out(plan_of(gate), None, check=lambda _: None),
        )
    ],
    "plan_redo": [
        Method({"read_binary", "write", "delete"}, lambda gate: gate.plan_redo("a", check=lambda _: None)),
    ],
    "replace": [Method({"write", "delete"}, lambda gate: gate.replace("a", "Assistant: x\n", "*"))],
    "require_still": [
        Method({"file"}, lambda gate: gate.require_still(gate._store.get("a"), "a", "file")),
    ],
}
SILENT = {
    *("may", "page", "active", "children", "visible", "log", "limits", "throughout", "wait_settled", "is_settled"),
    *("known", "loaded", "enter", "below", "roots_with_children", "turn", "events_of", "search"),
    *("new_name", "discard", "owner", "is_free"),
}
"""What raises nothing at once: it answers what may be known, or is about a session that was got or made before."""
ANYWHERE = {"require_somewhere", "require_any", "require_life"}
"""What is about no certain session, or takes any right to one (tests/server/test_lives.py)."""


def test_every_method_has_a_place_in_the_table() -> None:
    public = {name for name in dir(AuthorizedSessions) if not name.startswith("_")}
    assert public - {*METHODS, *SILENT, *ANYWHERE} == set(), "say in METHODS which rights these need"


async def test_a_right_at_one_session_is_one_somewhere() -> None:
    """Whether the session is there or not; one at files is none."""
    async with counter() as c:
        for grants in ([], [grant("/workspaces/a")], [Grant(prefix="/sessions", ops=OPERATIONS - {"write"})]):
            c.may(*grants)
            with pytest.raises(Forbidden, match="may not use the model"):
                c.gate.require_somewhere("write")
        for prefix in ("/sessions/a", "/sessions/a/", "/sessions", "/"):
            c.may(Grant(prefix=prefix, ops=WRITE))
            c.gate.require_somewhere("write")


async def carried_out(method: Method, gate: AuthorizedSessions) -> None:
    """Call a method, and wait for what it does."""
    result = method.call(gate)
    if inspect.isawaitable(result):
        await result


EACH = [pytest.param(method, id=f"{name} {n}") for name in METHODS for n, method in enumerate(METHODS[name])]
ASKED = [each for each in EACH if each.id not in ("require_still 0", "with_key 0", "carry_out 0")]
"""All that may be about a session that does not exist."""


@pytest.mark.parametrize("method", EACH)
async def test_a_method_needs_all_of_its_operations_and_no_other(method: Method) -> None:
    async with counter() as c:
        c.harness.store.create("a", transcript="Assistant: hello\n")
        c.harness.store.open("own")
        before = c.everything()
        for count in range(len(OPERATIONS) + 1):
            for ops in itertools.combinations(sorted(OPERATIONS), count):
                if method.needs <= set(ops):
                    continue
                c.may(grant("/sessions/own"), Grant(prefix="/sessions/a", ops=set(ops)))
                with pytest.raises(Forbidden if ops else NotGranted):
                    await carried_out(method, c.gate)
        assert c.everything() == before
        c.may(grant("/sessions/own"), Grant(prefix="/sessions/a", ops=method.needs))
        with suppress(Conflict):  # there is nothing to redo
            await carried_out(method, c.gate)
        await c.harness.settled(next(iter(c.harness.store)).id)


@pytest.mark.parametrize("method", ASKED)
async def test_without_rights_it_is_the_same_whether_there_is_a_session(method: Method) -> None:
    async def told(*, exists: bool) -> tuple[type[CfsError], str]:
        async with counter() as c:
            c.harness.store.open("own")
            if exists:
                c.harness.store.create("a", transcript="Assistant: hello\n")
            c.may(grant("/sessions/own"))
            with pytest.raises(NotGranted) as caught:
                await carried_out(method, c.gate)
            return type(caught.value), caught.value.detail

    assert await told(exists=True) == await told(exists=False)


# -- making -----------------------------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[AuthorizedSessions, str], object]] = {
    "create": lambda gate, name: gate.create(name),
    "open": lambda gate, name: gate.open(name),
    "fill": lambda gate, name: gate.fill(name, "User: x\n"),
    "submit": lambda gate, name: gate.submit(name, TurnRequest(Message(role="user", content="x"), generate=False)),
    "fork": lambda gate, name: gate.fork("own", name),
    "rename": lambda gate, name: gate.rename("own", name),
}


@pytest.mark.parametrize("maker", MAKERS)
async def test_a_right_at_a_sub_session_does_not_make_the_ones_above_it(maker: str) -> None:
    async with counter() as c:
        c.harness.store.open("own")
        c.may(grant("/sessions/own"), grant("/sessions/a/b/c"))
        for existing, missing in (((), "a"), (("a",), "a/b")):
            for name in existing:
                c.harness.store.open(name)
            before = c.everything()
            with pytest.raises(NotGranted, match=f"session '{missing}'"):
                MAKERS[maker](c.gate, "a/b/c")
            assert c.everything() == before
        c.harness.store.open("a/b")
        MAKERS[maker](c.gate, "a/b/c")
        assert c.harness.store.find("a/b/c") is not None


@pytest.mark.parametrize("maker", MAKERS)
async def test_what_is_made_counts_for_its_maker_and_what_is_renamed_stays_its_owners(maker: str) -> None:
    async with counter() as c:
        c.harness.store.open("own")
        c.may(grant("/"))
        MAKERS[maker](c.gate, "a/b")
        assert c.gate._account.sessions == (0 if maker == "rename" else 2)


async def test_a_session_without_a_name_needs_the_right_to_any_name() -> None:
    async with counter() as c:
        c.may(grant("/sessions/own"))
        with pytest.raises(NotGranted):
            c.gate.create()
        c.may(grant("/sessions/", "write"))
        assert c.gate.create().id


async def test_an_id_with_wildcards_is_granted_by_its_path() -> None:
    async with counter() as c:
        c.may(grant("/sessions/a%2Ab", "write"))
        assert c.gate.create("a*b/child").id == "a*b/child"
        for other in ("a", "axb", "a%2Ab", "a*", "a*bc"):
            with pytest.raises(NotGranted):
                c.gate.create(other)


# -- listing ----------------------------------------------------------------------------------------------------------

NAMES = [
    "a",
    "a*",
    "a/x",
    "b",
    "main",
    "main/c",
    "main/coder",
    "main/coder/t1",
    "main/coder/t2",
    "main/d",
    "mainly",
    "中",
]
GRANTS = {
    "everything": [grant("/")],
    "all sessions": [grant("/sessions/", "list")],
    "nothing": [],
    "no listing": [grant("/sessions/", *sorted(OPERATIONS - {"list"}))],
    "single roots": [grant("/sessions/main", "list"), grant("/sessions/a%2A", "list"), grant("/sessions/none", "list")],
    "only below a root": [grant("/sessions/main/", "list")],
    "one deep child": [grant("/sessions/main/coder/t2", "list")],
    "children and a root": [grant("/sessions/main/d"), grant("/sessions/main/c"), grant("/sessions/b")],
    "what can be no session": [grant("/sessions/a%2a"), grant("/sessions/main/c d"), grant("/sessions/a")],
    "what is covered twice": [
        grant("/sessions/main/coder"),
        grant("/sessions/main/"),
        grant("/sessions/main/coder/t1"),
    ],
}
PREFIXES = ["", "a", "m", "main", "mainl", "main/", "main/c", "main/coder", "main/coder/", "main/coder/t2", "x/", "中"]


@pytest.mark.parametrize("name", GRANTS)
async def test_a_page_is_the_part_of_the_listing_that_may_be_listed(name: str) -> None:
    """Compared with a filter over everything, for all prefixes, places to begin and sizes."""
    async with counter() as c:
        for session in NAMES:
            c.harness.store.open(session)
        c.may(*GRANTS[name])
        for prefix, after, limit in itertools.product(PREFIXES, ["", *NAMES, "zz"], [1, 2, 100]):
            parent = prefix.rpartition("/")[0] or None
            wanted = [
                session
                for session in sorted(NAMES)
                if parent_of(session) == parent
                and session.startswith(prefix)
                and session > after
                and c.gate._handle.allows("list", path_of(session))
            ]
            assert ids(c.gate.page(prefix, after, limit)) == wanted[:limit], (prefix, after, limit)


@pytest.mark.parametrize("name", GRANTS)
async def test_active_sessions_are_shown_as_far_as_they_may_be_listed(name: str) -> None:
    async with counter() as c:
        c.harness.engine.hold()
        for session in NAMES:
            c.harness.store.submit(session, TurnRequest(Message(role="user", content="x")))
        c.may(*GRANTS[name])
        wanted = [session for session in sorted(NAMES) if c.gate._handle.allows("list", path_of(session))]
        assert ids(c.gate.active()) == wanted
        c.harness.engine.release()


@pytest.mark.parametrize("name", GRANTS)
async def test_architectures_are_shown_as_far_as_they_may_be_listed(name: str) -> None:
    async with counter() as c:
        for session in NAMES:
            c.harness.store.open(session)
        c.may(*GRANTS[name])
        listed = [session for session in NAMES if "/" in session and c.gate._handle.allows("list", path_of(session))]
        roots = sorted({session.partition("/")[0] for session in listed})
        assert ids(c.gate.roots_with_children()) == roots
        for root in (session for session in NAMES if "/" not in session):
            assert sorted(ids(c.gate.below(root))) == [each for each in listed if each.startswith(root + "/")]


@pytest.mark.parametrize("name", GRANTS)
async def test_a_root_is_entered_by_a_right_at_it_or_below_it_and_known_by_one_at_it(name: str) -> None:
    async with counter() as c:
        for session in NAMES:
            c.harness.store.open(session)
        c.may(*GRANTS[name])
        for session in (session for session in NAMES if "/" not in session):
            path = path_of(session)
            at = any(c.gate._handle.allows(operation, path) for operation in OPERATIONS)
            below = any(scope.startswith(path + "/") for each in c.gate._handle.grants for scope in [each["prefix"]])
            assert (c.gate.known(session) is not None) == at
            assert (c.gate.enter(session) is not None) == (at or below)
            with nullcontext() if at or below else pytest.raises(NotGranted):
                c.gate.require_any(session)
        c.harness.store.delete("main")
        assert (c.gate.known("main"), c.gate.enter("main")) == (None, None)


async def test_a_session_is_filled_once() -> None:
    async with counter() as c:
        c.may(grant("/sessions/", "write"))
        assert c.gate.fill("a", "User: x\n") is c.harness.store.get("a")
        c.harness.store.open("b")
        assert c.gate.fill("b", "User: x\n").history.text == "User: x\n"
        for name in ("a", "b"):
            with pytest.raises(Conflict):
                c.gate.fill(name, "User: y\n")
        with pytest.raises(InvalidTranscript):
            c.gate.fill("c", "no turns")
        assert c.harness.store.find("c") is None


# -- waiting ----------------------------------------------------------------------------------------------------------


async def test_a_wait_ends_with_the_right_to_it() -> None:
    async with counter() as c:
        c.may(grant("/sessions/a", "file"))
        session = c.harness.store.open("a")
        assert await c.gate.wait_settled(session, None, "file")
        c.harness.engine.hold()
        c.harness.say("a", "x")
        waiting = asyncio.create_task(c.gate.wait_settled(session, None, "file"))
        await asyncio.sleep(0)
        c.may()
        c.harness.engine.release()
        with pytest.raises(NotGranted, match="'a'"):
            await waiting


@pytest.mark.parametrize("end", ["settled", "deleted", "time-out"])
async def test_a_wait_for_what_was_renamed_out_of_sight_does_not_tell_the_new_name(end: str) -> None:
    async with counter() as c:
        c.may(grant("/sessions/a", "file"))
        session = c.harness.store.open("a")
        c.harness.engine.hold()
        c.harness.say("a", "x")
        waiting = asyncio.create_task(c.gate.wait_settled(session, 0.5 if end == "time-out" else None, "file"))
        await asyncio.sleep(0)
        c.harness.store.rename("a", "hidden")
        if end == "deleted":
            c.harness.store.delete("hidden")
        if end == "settled":
            c.harness.engine.release()
        with pytest.raises(Gone) as caught:
            await waiting
        assert "'a'" in caught.value.detail
        assert "hidden" not in caught.value.detail
        c.harness.engine.release()


async def test_a_wait_that_is_cancelled_is_cancelled_whatever_the_rights_are() -> None:
    async with counter() as c:
        session = c.harness.store.open("a")
        c.harness.engine.hold()
        c.harness.say("a", "x")
        waiting = asyncio.create_task(c.gate.wait_settled(session, None, "file"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        c.harness.engine.release()


async def test_the_right_to_the_new_name_is_enough() -> None:
    async with counter() as c:
        session = c.harness.store.open("a")
        c.may(grant("/sessions/b", "read"))
        c.harness.store.rename("a", "b")
        c.gate.require_still(session, "a", "read_binary")
        with pytest.raises(NotGranted):
            c.gate.require_still(session, "a", "write")


# -- following --------------------------------------------------------------------------------------------------------


def seen(c: Counter) -> list[LoggedEvent]:
    """All events so far that Bob may see."""
    events = c.gate.log.since(0)
    assert isinstance(events, list)
    return c.gate.visible(events)


async def test_events_are_seen_by_those_who_may_read_the_session() -> None:
    async with counter() as c:
        for name in ("a", "a/b", "ab", "b"):
            c.harness.store.open(name)
        for grants, wanted in (
            ([grant("/")], ["a", "a/b", "ab", "b"]),
            ([grant("/sessions/", "read_binary")], ["a", "a/b", "ab", "b"]),
            ([grant("/sessions/", *sorted(OPERATIONS - {"read_binary"}))], []),
            ([grant("/sessions/a", "read")], ["a", "a/b"]),
            ([grant("/sessions/a/", "read")], ["a/b"]),
            ([], []),
        ):
            c.may(*grants)
            assert [event.session for event in seen(c)] == wanted


async def test_events_name_other_sessions_to_those_who_may_read_them() -> None:
    async with counter() as c:
        c.harness.store.open("a")
        c.harness.store.rename("a", "b")
        c.harness.store.fork("b", "copy")
        told: dict[str, list[tuple[str, dict[str, str]]]] = {}
        for readable in ("a", "b", "copy", "a b copy"):
            c.may(*(grant(f"/sessions/{name}", "read") for name in readable.split()))
            names = ("renamed_to", "renamed_from", "forked_from")
            told[readable] = [
                (event.session, {key: event.data[key] for key in names if key in event.data}) for event in seen(c)
            ]
        assert told == {
            "a": [("a", {}), ("a", {})],
            "b": [("b", {})],
            "copy": [("copy", {})],
            "a b copy": [
                ("a", {}),
                ("a", {"renamed_to": "b"}),
                ("b", {"renamed_from": "a"}),
                ("copy", {"forked_from": "b"}),
            ],
        }
        whole = c.harness.store.bus.log.since(0)
        assert isinstance(whole, list)
        assert whole[1].data["renamed_to"] == "b", "what is left out for one reader is there for the others"


async def test_what_can_be_no_id_is_refused_before_rights_are_looked_at() -> None:
    async with counter() as c:
        for bad in ("", ".a", "a/", "a/messages", "*" * 86):
            with pytest.raises(CfsError) as caught:
                c.gate.get(bad, "read_binary")
            assert not isinstance(caught.value, (NotFound, InvalidPathError))


async def test_what_can_be_no_session_has_nothing_below_it() -> None:
    async with counter() as c:
        c.may(grant("/"))
        c.harness.store.open("a/b")
        assert ids(c.gate.page("a/")) == ["a/b"]
        for prefix in ("/", ".x/", "a//", "a/b c/", "x" * 300 + "/"):
            assert c.gate.page(prefix) == []


async def test_a_search_looks_at_no_session_of_others() -> None:
    """G9: it makes as many calls of functions, however many sessions others have."""
    counts = []
    for others in (1, 60):
        async with counter() as bob:
            bob.may(grant("/sessions/own", "read"), grant("/sessions/own2/a", "read"))
            messages = SizedMessages.of([Message(role="tool", content="a fox")])
            for name in ("own", "own/a", "own2", "own2/a", *(f"other{number}" for number in range(others))):
                bob.harness.store.create(name, None, messages)
            calls = Calls()
            with calls:
                result = await bob.gate.search(Criteria(SearchQuery.parse("fox")), "", "", 10)
            assert sorted(match.session.id for match in result.matches) == ["own", "own/a", "own2/a"]
            counts.append(calls.count)
    assert counts[0] == counts[1]
    assert counts[0] > 10


class Calls:
    """Counts the calls of functions of CFS in a block."""

    count = 0

    def __enter__(self) -> None:
        sys.setprofile(self._called)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        self.count += event == "call" and "cfs_" in frame.f_code.co_filename
