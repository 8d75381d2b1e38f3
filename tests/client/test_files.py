"""What is special about sessions that are files (C1, C4, C6, F5, F6)."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cfs import (
    AsyncSession,
    Busy,
    CfsError,
    Conflict,
    FunctionTool,
    Gone,
    InvalidSettings,
    NotFound,
    ServerError,
    Session,
    Settings,
    StorageFull,
    Timeout,
    TooLarge,
    Unreachable,
    Unsupported,
)
from cfs.state.replies import find_reply, settled, turns_of
from cfs.testing import AnsweringDirectory
from cfs.transports.attributes import read_settings, write_settings
from cfs.transports.disk import AsyncMountedFiles, MountedFiles, error_from
from cfs.transports.file import file_of
from cfs.wire import SettingsPatch
from tests.census import Census
from tests.client.scripts import in_turn


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[AnsweringDirectory]:
    with AnsweringDirectory(tmp_path) as here:
        yield here


@pytest.mark.parametrize(
    ("session", "path"),
    [
        ("chat1", "/cfs/chat1"),
        ("你好 ?", "/cfs/你好 ?"),
        ("main/coder", "/cfs/.sub_sessions/main/coder"),
        ("main/coder/tester/x", "/cfs/.sub_sessions/main/coder.tester.x"),
    ],
)
def test_each_session_is_a_file(session: str, path: str) -> None:
    assert file_of("/cfs", session) == path


def test_tools_are_told_in_the_text_of_a_message(directory: AnsweringDirectory) -> None:
    """A file takes nothing else: calls are read out of the reply, and results go into one message."""

    def add(a: int, b: int = 0) -> int:
        """Add two numbers."""
        return a + b

    directory.script = in_turn("[CALL:add(2, b=3)][CALL:add(1)][CALL:sub()]", "It is 5.")
    response = Session("chat1", mount=directory.path).send("2 + 3?", tools=[FunctionTool.of(add)])
    assert "add(a: int, b: int = 0) -> int: Add two numbers." in response.history[0]
    results = "[RESULT:add] 5\n[RESULT:add] 1\n[ERROR:sub] there is no such tool; there are: add"
    assert response.history[2] == f"User: {results}"


def test_a_session_may_be_named_by_the_path_of_its_file(directory: AnsweringDirectory) -> None:
    for path in ("chat1", directory.path / "chat1", str(directory.path / "chat1")):
        assert Session(path, mount=f"{directory.path}/").id == "chat1"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        ("ENOENT", NotFound),
        ("ESTALE", Gone),
        ("EAGAIN", Busy),
        ("EPERM", Conflict),
        ("EFBIG", TooLarge),
        ("ENOSPC", StorageFull),
        ("ENOTCONN", Unreachable),
        ("ETIMEDOUT", Timeout),
        ("EOPNOTSUPP", Unsupported),
        ("EIO", ServerError),
        ("EXDEV", ServerError),
    ],
)
def test_what_the_system_reports_becomes_an_error_of_ours(number: str, kind: type[CfsError]) -> None:
    error = error_from(OSError(getattr(errno, number), "x"), "/cfs/chat1")
    assert type(error) is kind
    assert error.detail.startswith("/cfs/chat1: ")


def test_a_message_that_is_written_up_to_half_a_character_is_waited_for(directory: AnsweringDirectory) -> None:
    """A program may write a long text a few bytes at a time."""
    long, begun = "长文\n".encode(), 4
    file = directory.path / "a"
    file.write_bytes(long[:begun])
    Session("b", mount=directory.path).send("hello")  # its file is answered after a look at the other one
    with file.open("ab") as rest:
        rest.write(long[begun:])
    session = Session("a", mount=directory.path)
    session.wait()
    assert session.history[0] == "User: 长文"
    assert session.history[1].startswith("Assistant: ")


def test_a_file_that_cannot_be_written_is_told_in_our_words(directory: AnsweringDirectory) -> None:
    (directory.path / "folder").mkdir()
    session = Session("folder", mount=directory.path)
    with pytest.raises(CfsError, match="Is a directory"):
        session.send("hello")


def test_what_files_cannot_do_names_the_way_that_can(directory: AnsweringDirectory) -> None:
    with Session("chat1", mount=directory.path) as session:
        for call in (
            lambda: session.cancel(queued=True),
            lambda: session.cancel(cascade=True),
            lambda: session.send("x", settings={"temperature": 0}),
        ):
            with pytest.raises(Unsupported, match="url="):
                call()
        assert session.history == []


def test_settings_are_attributes_that_the_shell_can_read(directory: AnsweringDirectory) -> None:
    with Session("chat1", mount=directory.path) as session:
        session.configure(temperature=0.2, stop=["a", "é"], system="Be brief.", seed=None)
        path = directory.path / "chat1"
        assert os.getxattr(path, "user.cfs.temperature") == b"0.2"
        assert os.getxattr(path, "user.cfs.stop") == '["a", "é"]'.encode()
        assert os.getxattr(path, "user.cfs.system") == b"Be brief."
        os.setxattr(path, "user.cfs.max_tokens", b"5")
        os.setxattr(path, "user.other", b"x")
        assert session.settings == Settings(temperature=0.2, stop=("a", "é"), system="Be brief.", max_tokens=5)
        os.setxattr(path, "user.cfs.max_tokens", b"five")
        with pytest.raises(InvalidSettings):
            _ = session.settings


@pytest.mark.parametrize(
    "settings",
    [Settings(), Settings(seed=7, stop=("1", "null"), system='"7"', prompt_style="chat", top_p=1.0, overflow="error")],
)
def test_settings_come_back_from_their_attributes(settings: Settings) -> None:
    attributes = write_settings(SettingsPatch(**settings.model_dump()))
    assert read_settings({name: value for name, value in attributes.items() if value is not None}) == settings


def test_null_in_an_attribute_is_the_default() -> None:
    assert read_settings({"user.cfs.seed": b"null", "user.cfs.stop": b"null"}) == Settings()


def test_a_text_that_looks_like_json_is_a_text_in_each_text_setting() -> None:
    settings = Settings(title="2024", system="true", model="7", keep="9d")
    attributes = write_settings(SettingsPatch(**settings.model_dump(include={"title", "system", "model", "keep"})))
    assert read_settings({name: value for name, value in attributes.items() if value is not None}) == settings


@pytest.mark.parametrize(
    ("text", "over"),
    [
        ("", True),
        ("User: hi\n", False),
        ("User: hi\nAssistant: h", False),
        ("User: hi\nAssistant: h\n", True),
        ("User: hi\nAssistant: h\nUser: more\n", False),
        ("System: be brief\n", True),
        ("hello\n", False),
    ],
)
def test_a_text_says_by_itself_whether_it_is_settled(text: str, over: bool) -> None:
    assert settled(text) is over


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("User: hi\n", None),
        ("User: hi\nAssistant: h", ("h", 2, False)),
        ("User: hi\nAssistant: h\n", ("h", 2, True)),
        ("User: hi\nAssistant: old\nUser: hi\n", None),
        ("User: hi\nAssistant: h\nUser: more\nAssistant: m", ("h", 2, True)),
        ("User: hi\nAssistant: call\nTool: 7\n", None),
        ("User: hi\nAssistant: call\nTool: 7\nAssistant: h\n", ("h", 4, True)),
        ("User: no\nAssistant: h\n", None),
        ("torn", None),
    ],
)
def test_the_reply_to_a_message_is_found_in_a_text_that_grows(text: str, found: tuple[str, int, bool] | None) -> None:
    reply = find_reply(text, turns_of(text), "hi")
    assert (reply and (reply.text, reply.end, reply.complete)) == found


async def test_a_read_that_would_wait_fails_at_once(tmp_path: Path) -> None:
    """A pipe with a writer and no bytes is to `O_NONBLOCK` what the file of a generating session is (S7)."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    keep = os.open(pipe, os.O_RDWR)
    try:
        with pytest.raises(BlockingIOError):
            MountedFiles().read(str(pipe))
        with pytest.raises(BlockingIOError):
            await AsyncMountedFiles().read(str(pipe))
    finally:
        os.close(keep)


class LiveMount:
    """A directory with a `.live` of pipes, as a mount shows it: a test says what is generated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / ".live").mkdir()
        (path / "chat1").touch()
        os.mkfifo(path / ".live/chat1")
        self._pipe = os.open(path / ".live/chat1", os.O_RDWR)

    def say(self, data: bytes) -> None:
        """Generate something."""
        os.write(self._pipe, data)

    def end(self, reply: str) -> None:
        """End the turn."""
        with (self.path / "chat1").open("a") as file:
            file.write(f"Assistant: {reply}\n")
        os.close(self._pipe)


def test_on_a_mount_text_is_read_from_live(tmp_path: Path) -> None:
    mount = LiveMount(tmp_path)
    session = Session("chat1", mount=tmp_path, timeout=60)
    with closing(session.stream("hi")) as pieces:
        mount.say(b" one")
        assert next(pieces) == " one"
        mount.say("二".encode()[:1])
        mount.say("二".encode()[1:] + b" ")
        assert next(pieces) == "二 "
        mount.end("one二")
        assert list(pieces) == []


async def test_coroutines_read_live_too_and_what_it_did_not_say_comes_from_the_transcript(tmp_path: Path) -> None:
    mount = LiveMount(tmp_path)
    session = AsyncSession("chat1", mount=tmp_path, timeout=60)
    pieces = session.stream("hi")
    mount.say(b"one")
    assert await anext(pieces) == "one"
    mount.end("one [Cancelled]")
    assert [piece async for piece in pieces] == [" [Cancelled]"]


def test_waiting_for_live_has_an_end(tmp_path: Path) -> None:
    mount = LiveMount(tmp_path)
    with pytest.raises(Timeout, match=r"continues|still busy"):
        list(Session("chat1", mount=tmp_path, timeout=0.1).stream("hi"))
    mount.end("late")


@pytest.mark.parametrize("first", ["System: be kind\n", "User: hi\nAssistant: hello\n"])
def test_a_file_that_ends_with_an_unanswered_message_is_answered(directory: AnsweringDirectory, first: str) -> None:
    """As by the mount (S14)."""
    file = directory.path / "chat1"
    draft = directory.path / ".draft"
    draft.write_text(f"{first}User: and now?\n")
    draft.rename(file)
    while file.read_text() != f"{first}User: and now?\nAssistant: and now?\n":
        time.sleep(0.002)


def test_the_directory_answers_in_one_thread_which_ends(tmp_path: Path) -> None:
    before = Census.now()
    with AnsweringDirectory(tmp_path) as directory:
        threads = [line for line in before.added() if line.startswith("thread")]  # it opens files all the time
        assert threads == ["thread cfs-answering-directory"]
        directory.hold()
        Session("a", mount=tmp_path)
        (tmp_path / "a").write_text("hello\n")
    assert before.added() == []
