"""Sessions as files (G6, S3): the test kit, and calls from threads that are not the loop's."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from cfs.errors import StorageFull, TooLarge, TooMany, Unavailable
from cfs.wire import SettingsPatch
from cfs_filesystem import (
    OPERATIONS,
    ConflictError,
    FsHandle,
    Grant,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
)
from cfs_filesystem.testing import FileSystemConformance
from cfs_server.domain.loop_bridge import LoopBridge
from cfs_server.domain.quotas import Quota, StoreLimits
from cfs_server.engine.host.scripted import Script, echo, failing
from cfs_server.sessions.filesystem import SessionFileSystem
from cfs_server.sessions.session import Session
from tests.sessions.support import StoreHarness, running_store, transcript

EVERYTHING = [Grant(prefix="/sessions/", ops=OPERATIONS)]


@dataclass(frozen=True, slots=True)
class Abroad:
    """A store on the loop of another thread, and a handle for its sessions in this one."""

    portal: BlockingPortal
    harness: StoreHarness
    files: FsHandle

    def on_loop(self, action: Callable[[], object]) -> object:
        """Do something where the sessions live."""
        return self.portal.call(action)

    def settled(self, session_id: str) -> Session:
        """Wait until a session has answered everything."""
        return self.portal.call(self.harness.settled, session_id)

    def ids(self) -> list[str]:
        """Name the sessions that there are."""
        return sorted(session.id for session in self.portal.call(lambda: list(self.harness.store)))


@contextmanager
def abroad(limits: StoreLimits | None = None, script: Script = echo) -> Iterator[Abroad]:
    """Open a store in a thread of its own; in the end it must be sound."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(running_store(script, limits)) as d:
        filesystem = portal.call(SessionFileSystem, d.store)
        yield Abroad(portal, d, filesystem.create_handle(EVERYTHING))


@pytest.fixture
def far() -> Iterator[Abroad]:
    with abroad() as here:
        yield here


class TestSessions(FileSystemConformance):
    prefix = "/sessions/"
    nested = False
    binary = False
    empty_directories = False
    moves_over = False

    @pytest.fixture
    def filesystem(self) -> Iterator[SessionFileSystem]:
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(running_store()) as d:
            yield portal.call(lambda: SessionFileSystem(d.store, generate=False))

    def stored(self, *writes: str) -> str:
        return transcript(*writes)


# -- many threads -------------------------------------------------------------------------------------------------


def test_messages_of_twenty_threads_are_all_there_and_whole_while_turns_run() -> None:
    """To one session and to one each: nothing is lost, mixed or answered twice (S4)."""
    with abroad(StoreLimits(queued_turns=1000)) as far:
        started = threading.Barrier(20)

        def write(writer: int) -> None:
            started.wait()
            for number in range(10):
                content = "\n".join(f"writer {writer} message {number} line {line}" for line in range(10))
                far.files.write("/sessions/shared", content)
                far.files.write(f"/sessions/own-{writer}", content)
                assert far.files.file("/sessions/shared")["size"] > 0
                far.files.list()

        with ThreadPoolExecutor(20) as threads:
            list(threads.map(write, range(20)))
        sent = {
            writer: [
                "\n".join(f"writer {writer} message {number} line {line}" for line in range(10)) for number in range(10)
            ]
            for writer in range(20)
        }
        shared = far.settled("shared").history.messages
        assert [message.role for message in shared] == ["user", "assistant"] * 200
        said = [message.content for message in shared[::2]]
        assert sorted(said) == sorted(content for contents in sent.values() for content in contents)
        for writer, contents in sent.items():
            assert [content for content in said if content in contents] == contents, "each writer's order is kept"
            own = far.settled(f"own-{writer}").history.messages
            assert [message.content for message in own[::2]] == contents


def test_threads_read_whole_versions_while_others_write(far: Abroad) -> None:
    """What is read is the transcript after some of the messages, never after a part of one."""
    far.files.write("/sessions/a", "")
    done = threading.Event()
    whole = [""]
    for number in range(30):
        whole.append(whole[-1] + f"User: {number} begins\n{number} ends\n")
        whole.append(whole[-1] + f"Assistant: {number} begins {number} ends\n")

    def read() -> set[str]:
        texts = {far.files.read_file("/sessions/a")}
        while not done.is_set():
            texts.add(far.files.read_file("/sessions/a"))
        return texts

    with ThreadPoolExecutor(10) as threads:
        readers = [threads.submit(read) for _ in range(10)]
        try:
            for number in range(30):
                far.files.write("/sessions/a", f"{number} begins\n{number} ends")
                far.settled("a")
        finally:
            done.set()
    seen = {text for reader in readers for text in reader.result()}
    assert len(seen) > 1
    assert seen <= set(whole)


@pytest.mark.parametrize("operation", ["write", "delete"])
def test_of_twenty_threads_that_want_to_be_the_one_just_one_is(far: Abroad, operation: str) -> None:
    """Only one makes a session with `overwrite=False`, and only one deletes it; the others are told."""
    if operation == "delete":
        far.files.write("/sessions/a", "")
    started = threading.Barrier(20)

    def attempt(number: int) -> bool:
        started.wait()
        try:
            if operation == "write":
                far.files.write("/sessions/a", f"from {number}", overwrite=False)
            else:
                far.files.delete("/sessions/a")
        except (ConflictError, NotFoundError):
            return False
        return True

    with ThreadPoolExecutor(20) as threads:
        won = list(threads.map(attempt, range(20)))
    assert sum(won) == 1
    if operation == "write":
        assert [m.content for m in far.settled("a").history.messages] == [f"from {won.index(True)}"] * 2
    else:
        assert far.ids() == []


def test_calls_of_the_loop_s_own_thread_are_done_at_once(far: Abroad) -> None:
    """There nothing could carry them: a call that waited for the loop would wait for itself."""

    def write_and_read() -> bytes:
        far.files.write("/sessions/a", "from the loop")
        return far.files.read_binary("/sessions/a")

    assert far.on_loop(write_and_read) == b"User: from the loop\n"


def test_a_defect_on_the_loop_is_raised_where_the_call_came_from(far: Abroad) -> None:
    class Odd(Exception):
        pass

    def fail() -> None:
        raise Odd

    carrier = far.portal.call(LoopBridge)
    with pytest.raises(Odd):
        carrier(fail)
    assert carrier(lambda: 1) == 1, "the loop goes on"


def test_an_asynchronous_block_is_entered_and_left_on_the_loop(far: Abroad) -> None:
    """A thread waits for it; on the loop itself only a block that does not wait can be entered."""
    threads: list[int] = []

    @asynccontextmanager
    async def block(pause: float | None) -> AsyncIterator[int]:
        if pause is not None:
            await asyncio.sleep(pause)
        threads.append(threading.get_ident())
        yield 7
        threads.append(threading.get_ident())

    bridge = far.portal.call(LoopBridge)
    loop_thread = bridge(threading.get_ident)
    with bridge.within(block(0)) as entered:
        assert (entered, threads) == (7, [loop_thread])
    with pytest.raises(ZeroDivisionError), bridge.within(block(0)):
        raise ZeroDivisionError
    assert threads == [loop_thread] * 4

    def enter(pause: float | None) -> int:
        with bridge.within(block(pause)) as found:
            return found

    assert bridge(lambda: enter(None)) == 7
    with pytest.raises(RuntimeError, match="cannot wait"):
        bridge(lambda: enter(0))


class _Loop(asyncio.SelectorEventLoop):
    """Says when something has been put on it from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def call_soon_threadsafe(self, *arguments: Any) -> asyncio.Handle:  # type: ignore[override]
        handle = super().call_soon_threadsafe(*arguments)
        self.asked.set()
        return handle


def test_a_call_ends_when_the_loop_ends_before_it_comes_to_it() -> None:
    """Nobody who calls while the server shuts down waits for ever."""

    async def make() -> LoopBridge:
        return LoopBridge()

    loop = _Loop()
    carrier = loop.run_until_complete(make())
    loop.asked.clear()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(carrier, lambda: 1)
        loop.asked.wait()  # and nobody runs the loop any more
        loop.close()
        with pytest.raises(Unavailable):
            waiting.result()
        with pytest.raises(Unavailable):
            threads.submit(carrier, lambda: 1).result()


# -- what a write does --------------------------------------------------------------------------------------------


def test_a_write_triggers_a_turn(far: Abroad) -> None:
    before = time.time()
    meta = far.files.write("/sessions/a", "hello there\n")
    assert (meta["path"], meta["size"]) == ("/sessions/a", len("User: hello there\n"))
    assert before <= meta["updated_at"].timestamp() <= time.time()
    far.settled("a")
    assert far.files.read_file("/sessions/a") == "User: hello there\nAssistant: hello there\n"


def test_without_generate_nobody_answers(far: Abroad) -> None:
    silent = far.portal.call(lambda: SessionFileSystem(far.harness.store, generate=False)).create_handle(EVERYTHING)
    silent.write("/sessions/a", "one")
    silent.write("/sessions/a", "two")
    assert far.settled("a").history.text == transcript("one", "two")
    assert far.harness.engine.requests == []


def test_a_write_does_not_wait_for_the_reply_and_a_read_does_not_either(far: Abroad) -> None:
    far.on_loop(far.harness.engine.hold)
    far.files.write("/sessions/a", "first")
    far.files.write("/sessions/a", "second")
    assert far.files.read_file("/sessions/a") == "User: first\n"
    far.on_loop(far.harness.engine.release)
    far.settled("a")
    assert far.files.read_file("/sessions/a").splitlines()[2:] == ["User: second", "Assistant: second"]


def test_what_is_known_of_a_session_changes_with_its_text_only(far: Abroad) -> None:
    """Tokens and settings leave size, time and version as they are: nobody has to read again for them (H3)."""
    far.on_loop(far.harness.engine.hold)
    known = [far.files.write("/sessions/a", "one two")]
    far.on_loop(far.harness.engine.step)
    far.portal.call(_until_tokens, far.harness.store.get("a"), 1)
    known.append(far.files.file("/sessions/a"))
    far.on_loop(lambda: far.harness.store.get("a").change_settings(SettingsPatch(seed=1)))
    known.append(far.files.file("/sessions/a"))
    assert known[0] == known[1] == known[2]
    far.on_loop(far.harness.engine.release)
    far.settled("a")
    last = far.files.file("/sessions/a")
    assert last["size"] > known[0]["size"]
    assert last["updated_at"] > known[0]["updated_at"]
    assert last.get("version") != known[0].get("version")


async def _until_tokens(session: Session, count: int) -> None:
    while not isinstance(events := session.log.since(0), list) or len([e for e in events if e.type == "token"]) < count:
        await session.log.broadcast.wait()


@pytest.mark.parametrize("nothing", ["", "\n", " \n", "User: "])
def test_an_empty_write_makes_a_session_and_adds_nothing(far: Abroad, nothing: str) -> None:
    assert far.files.write("/sessions/a", nothing)["size"] == 0
    assert (far.ids(), far.files.read_binary("/sessions/a")) == (["a"], b"")
    far.files.write("/sessions/a", "x")
    far.settled("a")
    size = far.files.file("/sessions/a")["size"]
    assert far.files.write("/sessions/a", nothing)["size"] == size
    assert len(far.settled("a").history) == 2
    assert len(far.harness.engine.requests) == 1


def test_a_deleted_session_takes_everything_below_it_along(far: Abroad) -> None:
    for name in ("main", "main/coder", "main/coder/tester", "mainly"):
        far.files.write(f"/sessions/{name}", "x")
    assert [meta["path"] for meta in far.files.list("/sessions/main")] == [
        "/sessions/main",
        "/sessions/main/coder",
        "/sessions/main/coder/tester",
    ]
    assert [meta["path"] for meta in far.files.list("/sessions/main/coder/")] == ["/sessions/main/coder/tester"]
    far.files.delete("/sessions/main")
    assert far.ids() == ["mainly"]
    assert [meta["path"] for meta in far.files.list()] == ["/sessions/mainly"]


def test_a_session_is_an_entry_and_the_directory_of_its_sub_sessions(far: Abroad) -> None:
    """Where both could be shown it is the entry; what is below it is in its scan."""
    for session in ("main", "main/a", "main/a/x", "main/b", "other", "mainly"):
        far.files.write(f"/sessions/{session}", "")
    roots = far.files.scan("/sessions/")
    assert [meta["path"] for meta in roots] == ["/sessions/main", "/sessions/mainly", "/sessions/other"]
    assert roots == far.files.scan("/sessions") == [far.files.file(meta["path"]) for meta in roots]
    assert [meta["path"] for meta in far.files.scan("/sessions/main")] == ["/sessions/main/a", "/sessions/main/b"]
    assert [meta["path"] for meta in far.files.scan("/sessions/main/a")] == ["/sessions/main/a/x"]
    directories = [meta["path"] for meta in far.files.list() if far.files.is_directory(meta["path"])]
    assert directories == ["/sessions/main", "/sessions/main/a"]
    for path in ("/sessions/other", "/sessions/none", "/sessions/main/b", "/sessions/%zz"):
        with pytest.raises(NotFoundError):
            far.files.scan(path)
    assert far.files.is_directory("/sessions/")
    some = far.files.narrow([Grant(prefix="/sessions/main/a", ops={"list"})])
    assert [(meta["path"], meta.get("directory")) for meta in some.scan("/sessions/")] == [("/sessions/main", True)]
    assert [(meta["path"], meta.get("directory")) for meta in some.scan("/sessions/main")] == [
        ("/sessions/main/a", None)
    ]


def test_a_session_is_renamed_with_its_sub_sessions_by_a_move(far: Abroad) -> None:
    """The same sessions, with all that was said; and no new message for anybody (S14)."""
    for session in ("main", "main/a", "other", "other/b"):
        far.files.write(f"/sessions/{session}", f"said in {session}")
        far.settled(session)
    said = far.files.read_file("/sessions/main/a")
    far.files.move("/sessions/main", "/sessions/new")
    assert far.ids() == ["new", "new/a", "other", "other/b"]
    assert far.files.read_file("/sessions/new/a") == said
    far.files.move("/sessions/new/a", "/sessions/other/a")
    assert far.ids() == ["new", "other", "other/a", "other/b"]
    for path, target in (
        ("/sessions/new", "/sessions/other"),
        ("/sessions/new", "/sessions/other/b"),
        ("/sessions/other", "/sessions/other/b/c"),
        ("/sessions/new", "/sessions/none/new"),
    ):
        for overwrite in (True, False):
            with pytest.raises(ConflictError):
                far.files.move(path, target, overwrite=overwrite)
    for path in ("/sessions/dir", "/sessions/new/dir"):
        with pytest.raises(ConflictError):
            far.files.make_directory(path)
    with pytest.raises(ConflictError):
        far.files.remove_directory("/sessions/other")
    assert far.ids() == ["new", "other", "other/a", "other/b"]


def test_what_wins_the_race_with_the_gate_is_refused_by_a_rename(far: Abroad) -> None:
    far.files.write("/sessions/a", "")
    far.files.write("/sessions/b", "")
    filesystem = far.files._filesystem
    for path, target, kind in (
        ("/sessions/gone", "/sessions/c", ConflictError),
        ("/sessions/a", "/sessions/b", ConflictError),
        ("/sessions/a", "/sessions/none/c", ConflictError),
        ("/sessions/a", "/sessions/%zz", InvalidPathError),
    ):
        with pytest.raises(kind):
            filesystem._move_impl(path, target, True)
    assert far.ids() == ["a", "b"]


def test_a_sub_session_needs_the_session_above_it(far: Abroad) -> None:
    """It is another entry, which the writer's grants may not cover; nothing is made on the way."""
    with pytest.raises(ConflictError, match="'main'"):
        far.files.write("/sessions/main/coder", "x")
    far.files.write("/sessions/main", "")
    with pytest.raises(ConflictError, match="'main/coder'"):
        far.files.write("/sessions/main/coder/tester", "x")
    assert far.ids() == ["main"]
    far.files.write("/sessions/main/coder", "x")
    assert far.ids() == ["main", "main/coder"]


def test_a_failed_turn_is_in_the_text_and_the_write_was_good() -> None:
    with abroad(script=failing("out of memory")) as far:
        far.files.write("/sessions/a", "x")
        far.settled("a")
        assert far.files.read_file("/sessions/a") == "User: x\nAssistant: [Error: out of memory]\n"


# -- limits -------------------------------------------------------------------------------------------------------


def test_a_full_queue_is_told() -> None:
    with abroad(StoreLimits(queued_turns=2)) as far:
        far.on_loop(far.harness.engine.hold)
        for number in range(3):
            far.files.write("/sessions/a", f"{number}")
        with pytest.raises(TooMany) as told:
            far.files.write("/sessions/a", "one too many")
        assert told.value.retry_after
        far.on_loop(far.harness.engine.release)
        assert len(far.settled("a").history) == 6


def test_too_many_sessions_or_bytes_are_told_and_change_nothing() -> None:
    with abroad(StoreLimits(sessions=2, total_bytes=1_500, message_bytes=80)) as far:
        far.files.write("/sessions/a", "")
        far.files.write("/sessions/b", "")
        with pytest.raises(StorageFull):
            far.files.write("/sessions/c", "")
        with pytest.raises(TooLarge):
            far.files.write("/sessions/a", "x" * 81)
        with pytest.raises(TooLarge):
            far.files.write("/sessions/new", "x" * 81)
        far.files.write("/sessions/a", "x" * 40)
        far.settled("a")
        with pytest.raises(StorageFull):
            far.files.write("/sessions/b", "x" * 80)
        assert far.ids() == ["a", "b"]
        assert far.files.file("/sessions/b")["size"] == 0


def test_new_sessions_count_for_the_account_that_wrote_them(far: Abroad) -> None:
    account = far.harness.store.account.part("alice", Quota(sessions=1))
    files = far.portal.call(SessionFileSystem, far.harness.store, account).create_handle(EVERYTHING)
    files.write("/sessions/a", "hello")
    far.settled("a")
    assert (account.sessions, account.bytes) == (1, far.harness.store.get("a").history.cost)
    with pytest.raises(StorageFull, match="alice"):
        files.write("/sessions/b", "hello")
    far.files.write("/sessions/b", "hello")
    files.write("/sessions/b", "to another's session")
    assert account.sessions == 1
    files.delete("/sessions/a")
    assert (account.sessions, account.bytes) == (0, 0)


def test_a_server_that_shuts_down_takes_nothing_more(far: Abroad) -> None:
    far.portal.call(far.harness.store.drain, 0)
    with pytest.raises(Unavailable):
        far.files.write("/sessions/a", "x")


def test_text_that_is_none_is_refused_and_makes_no_session(far: Abroad) -> None:
    with pytest.raises(InvalidArgumentError, match="byte 3"):
        far.files.write("/sessions/a", b"caf\xe9")
    assert far.ids() == []


# -- names --------------------------------------------------------------------------------------------------------

NAMES = {
    "what?": "what%3F",
    "a*b": "a%2Ab",
    "100%": "100%25",
    "%41": "%2541",
    "back\\slash": "back%5Cslash",
    "and\u2044or": "and%E2%81%84or",
    "dots\uff0e": "dots%EF%BC%8E",
    "next\x85line": "next%C2%85line",
    "中文 🙂": "中文 🙂",
    "a b": "a b",
    "é": "é",
    "x" * 255: "x" * 255,
}


@pytest.mark.parametrize("session_id", NAMES)
def test_ids_that_are_no_logical_names_are_reached_by_their_escapes(far: Abroad, session_id: str) -> None:
    """And the path that is shown is the path that is taken."""
    path = f"/sessions/{NAMES[session_id]}"
    far.on_loop(lambda: far.harness.store.open(session_id))
    assert [meta["path"] for meta in far.files.list()] == [path]
    far.files.write(path, "hello")
    assert far.ids() == [session_id]
    far.settled(session_id)
    assert far.files.read_file(path) == "User: hello\nAssistant: hello\n"
    assert far.files.file(path)["path"] == path
    assert [meta["path"] for meta in far.files.list(path)] == [path]
    far.files.delete(path)
    assert far.ids() == []


@pytest.mark.parametrize(
    "name",
    ["%61", "%3f", "a%zz", "a%", "%FF", "%2Fa", ".hidden", "%2E", "a/b c", "a/settings", "x" * 256, "/".join("a" * 20)],
)
def test_paths_that_name_no_session_make_none(far: Abroad, name: str) -> None:
    with pytest.raises(InvalidPathError):
        far.files.write(f"/sessions/{name}", "x")
    with pytest.raises((InvalidPathError, NotFoundError)):
        far.files.read_binary(f"/sessions/{name}")
    assert far.ids() == []
