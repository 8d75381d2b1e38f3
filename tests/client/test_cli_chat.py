"""`cfs chat`, at a real terminal and through a pipe (C10, S12, S14)."""

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.client.harness import HttpHarness
from tests.client.scripts import failing
from tests.client.terminal import CTRL_C, CTRL_D, UP, Terminal, cfs, ended, home_in, terminal
from tests.server.support import serving

Chat = Callable[..., AbstractContextManager[Terminal]]
PASTE = "\x1b[200~{}\x1b[201~"
PROMPT = "> "


@pytest.fixture
def chat(http_harness: HttpHarness, tmp_path: Path) -> Chat:
    """Open a chat at a terminal, in a home of its own, and wait for nothing."""
    return lambda *arguments, **env: terminal(http_harness.url, "chat", *arguments, **home_in(tmp_path), **env)


def history(harness: HttpHarness, session: str) -> list[str]:
    """The contents of a session's messages."""
    return [message.content for message in harness.server.store.get(session).history.messages]


def test_a_conversation(http_harness: HttpHarness, chat: Chat) -> None:
    with chat("chat1") as screen:
        screen.expect("New session chat1.")
        screen.expect(PROMPT)
        screen.line("hello there")
        screen.expect("hello there\r\n")
        screen.expect(PROMPT)
        screen.line("again")
        screen.expect("again\r\n")
        screen.expect(PROMPT)
        screen.type(CTRL_D)
        assert screen.end()[0] == 0
    assert history(http_harness, "chat1") == ["hello there", "hello there", "again", "again"]


def test_a_chat_without_a_name_gets_one_that_can_be_typed_and_continued(http_harness: HttpHarness, chat: Chat) -> None:
    """The session begins with the first message, so that looking around leaves none behind."""
    with chat() as screen:
        screen.expect("New session.")
        screen.expect(PROMPT)
        screen.type(CTRL_D)
        assert screen.end()[0] == 0
    assert len(http_harness.server.store) == 0
    http_harness.write("other", "hi")
    with chat() as screen:
        screen.expect(PROMPT)
        screen.line("hello")
        screen.expect("[this is session ")
        screen.expect(PROMPT)
        screen.line("/quit")
        shown = screen.end()[1]
    (name,) = {session.id for session in http_harness.server.store} - {"other"}
    assert re.fullmatch(r"[a-z]+-[a-z]+-\d", name)
    assert f"To continue: cfs chat {name}" in shown
    with chat("--continue") as screen:
        screen.expect(f"Session {name}: 2 messages.")
        screen.expect(PROMPT)
        screen.line("again")
        screen.expect("again\r\n")
        screen.expect(PROMPT)
    assert history(http_harness, name) == ["hello", "hello", "again", "again"]


def test_there_must_be_a_session_to_continue(http_harness: HttpHarness) -> None:
    code, _, said = ended(cfs(http_harness.url, "chat", "-c"))
    assert (code, said) == (1, "cfs: there is no session yet; `cfs chat` begins one\n")
    assert cfs(http_harness.url, "chat", "-c", "chat1").returncode == 2


def test_the_reply_is_shown_as_it_comes(http_harness: HttpHarness, chat: Chat) -> None:
    http_harness.hold()
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.line("one two three")
        for word in ("one", " two", " three"):
            http_harness.wait_until(lambda: http_harness.server.engine.requests)
            http_harness.step()
            screen.expect(word)
        http_harness.release()
        screen.expect(PROMPT)


def test_ctrl_c_cancels_the_turn_and_keeps_the_session(http_harness: HttpHarness, chat: Chat) -> None:
    http_harness.hold()
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.line("one two three")
        http_harness.wait_until(lambda: http_harness.server.engine.requests)
        http_harness.step()
        screen.expect("one")
        screen.type(CTRL_C)
        screen.expect("[Cancelled]")
        http_harness.release()
        screen.expect(PROMPT)
        screen.line("next")
        screen.expect("next\r\n")
        screen.expect(PROMPT)
        screen.line("/quit")
        assert screen.end()[0] == 0
    assert history(http_harness, "chat1") == ["one two three", "one [Cancelled]", "next", "next"]


def test_ctrl_c_while_others_are_answered_leaves_the_message_in_the_queue(
    http_harness: HttpHarness, chat: Chat
) -> None:
    http_harness.hold()
    http_harness.write("chat1", "first")
    with chat("chat1") as screen:
        screen.expect("a turn is running")
        screen.expect(PROMPT)
        screen.line("second")
        http_harness.wait_until(lambda: http_harness.server.store.get("chat1").queue)
        screen.type(CTRL_C)
        screen.expect("no longer waiting; the message stays in the session")
        http_harness.release()
        screen.expect(PROMPT)
    http_harness.wait_until(lambda: http_harness.server.store.get("chat1").state == "idle")
    assert history(http_harness, "chat1") == ["first", "first", "second", "second"]


def test_ctrl_c_at_the_prompt_drops_the_line(http_harness: HttpHarness, chat: Chat) -> None:
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.type("not this")
        screen.expect("not this")
        screen.press_until(CTRL_C, PROMPT)
        screen.line("but this")
        screen.expect("but this\r\n")
        screen.expect(PROMPT)
        screen.type(CTRL_D)
        assert screen.end()[0] == 0
    assert history(http_harness, "chat1")[0] == "but this"


def test_several_lines_stand_between_quotes(http_harness: HttpHarness, chat: Chat) -> None:
    http_harness.script = lambda _: ["yes"]
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.line('"""one')
        screen.expect("... ")
        screen.type("\r")
        screen.expect("... ")
        screen.line('/two"""')
        screen.expect("yes")
        screen.expect(PROMPT)
    assert history(http_harness, "chat1")[0] == "one\n\n/two"


def test_what_is_pasted_is_one_message(http_harness: HttpHarness, chat: Chat) -> None:
    http_harness.script = lambda _: ["yes"]
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.type(PASTE.format("one\ntwo\nthree"))
        screen.expect("three")
        screen.type("\r")
        screen.expect("yes")
        screen.expect(PROMPT)
    assert history(http_harness, "chat1")[0] == "one\ntwo\nthree"


def test_lines_can_be_edited_and_come_back_in_the_next_chat(
    http_harness: HttpHarness, chat: Chat, tmp_path: Path
) -> None:
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.type("hallo\x7f\x7f\x7f\x7fello\r")
        screen.expect("\rhello\r\n")
        screen.expect(PROMPT)
        screen.type(CTRL_D)
        assert screen.end()[0] == 0
    kept = tmp_path / "state/cfs/chat_history"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("hello\n", 0o600)
    with chat("chat2") as screen:
        screen.expect(PROMPT)
        screen.type(UP)
        screen.expect("hello")
        screen.type("\r")
        screen.expect("\rhello\r\n")
        screen.expect(PROMPT)
    assert history(http_harness, "chat2") == ["hello", "hello"]


def test_the_end_of_the_earlier_conversation_is_shown(http_harness: HttpHarness, chat: Chat) -> None:
    for number in range(6):
        http_harness.write("chat1", f"message{number}\n" + "x\n" * 10)
        http_harness.wait_until(lambda: http_harness.server.store.get("chat1").state == "idle")
    with chat("chat1") as screen:
        screen.expect("Session chat1: 12 messages.")
        shown = screen.expect("message5 x x x x x x x x x x")
    assert "message2" not in shown
    assert "> message3" in shown
    assert "[3 more lines]" in shown


def test_settings_are_shown_and_changed(http_harness: HttpHarness, chat: Chat) -> None:
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.line("/settings temperature=0.1 stop=END")
        screen.expect("temperature=0.1\r\n")
        screen.expect('stop=["END"]')
        screen.expect(PROMPT)
        screen.line("/settings temperature=")
        screen.expect("temperature=0.7")
        screen.expect(PROMPT)
        screen.line("/settings colour=red")
        screen.expect("cfs: there is no setting 'colour'")
        screen.expect(PROMPT)
        screen.line("/settings")
        screen.expect("temperature=0.7")
    assert http_harness.server.store.get("chat1").settings.stop == ("END",)


def test_a_fork_goes_on_by_itself(http_harness: HttpHarness, chat: Chat) -> None:
    http_harness.write("chat1", "hello")
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.line("/fork chat2")
        screen.expect("this is chat2 now")
        screen.expect(PROMPT)
        screen.line("more")
        screen.expect("more\r\n")
        screen.expect(PROMPT)
    assert history(http_harness, "chat1") == ["hello", "hello"]
    assert history(http_harness, "chat2") == ["hello", "hello", "more", "more"]


def test_commands_that_concern_nobody_else(http_harness: HttpHarness, chat: Chat) -> None:
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.line("/help")
        screen.expect("/fork [NAME]")
        screen.expect(PROMPT)
        screen.line("/nonsense")
        screen.expect("there is no command /nonsense")
        screen.expect(PROMPT)
        screen.line("//etc/hosts")
        screen.expect("\r/etc/hosts\r\n")
        screen.expect(PROMPT)
        screen.line("/cancel")
        screen.expect("cancelled: 0 running, 0 waiting")
    assert history(http_harness, "chat1") == ["/etc/hosts", "/etc/hosts"]


def test_a_failed_turn_is_told_and_the_next_one_works(http_harness: HttpHarness, chat: Chat) -> None:
    http_harness.script = failing("out of memory")
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.line("hello")
        screen.expect("cfs: the turn failed: out of memory")
        screen.expect(PROMPT)
        http_harness.script = lambda _: ["better"]
        screen.line("and now")
        screen.expect("better")


def test_colours_only_where_they_are_welcome(http_harness: HttpHarness, chat: Chat) -> None:
    with chat("chat1", NO_COLOR="") as screen:
        assert "\x1b[2m" in screen.expect("New session")
    with chat("chat1", NO_COLOR="1") as screen:
        assert "\x1b[2m" not in screen.expect("New session")


def test_a_session_that_is_lost_meanwhile_is_told_and_not_begun_anew_silently(
    http_harness: HttpHarness, chat: Chat
) -> None:
    with chat("chat1") as screen:
        screen.expect(PROMPT)
        screen.line("one")
        screen.expect("one\r\n")
        screen.expect(PROMPT)
        http_harness.do(lambda: http_harness.server.store.delete("chat1"))
        screen.line("two")
        screen.expect("nothing was sent. What you send next begins a new session chat1.")
        screen.expect(PROMPT)
        assert "chat1" not in [each.id for each in http_harness.server.store]
        screen.line("three")
        screen.expect("three\r\n")
        screen.expect(PROMPT)
        screen.type(CTRL_D)
        assert screen.end()[0] == 0
    assert history(http_harness, "chat1") == ["three", "three"]


def test_a_pipe_ends_where_its_session_is_lost(http_harness: HttpHarness) -> None:
    """With a code that says so."""
    command = [sys.executable, "-m", "cfs", "chat", "chat1", "--url", http_harness.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"one\n"
        http_harness.do(lambda: http_harness.server.store.delete("chat1"))
        output, errors = process.communicate(b"two\nnever\n", timeout=30)
    assert (process.returncode, output, errors.count(b"\n")) == (1, b"", 1)
    assert b"'chat1' has been deleted" in errors
    assert list(http_harness.server.store) == []


def test_a_pipe_gets_the_replies_and_nothing_else(http_harness: HttpHarness) -> None:
    data = b'hello\n\n"""a\nb"""\n//x\n/quit\nnever'
    assert ended(cfs(http_harness.url, "chat", "chat1", data=data)) == (0, "hello\na b\n/x\n", "")
    assert history(http_harness, "chat1")[::2] == ["hello", "a\nb", "/x"]


@pytest.mark.parametrize(("entry", "reason"), [(b"/nonsense", "there is no command"), (b"/settings a=b", "no setting")])
def test_a_pipe_ends_with_the_first_error(http_harness: HttpHarness, entry: bytes, reason: str) -> None:
    code, output, errors = ended(cfs(http_harness.url, "chat", "chat1", data=b"hello\n" + entry + b"\nnever\n"))
    assert (code, output, errors.count("\n")) == (1, "hello\n", 1)
    assert reason in errors


def test_a_chat_needs_a_server() -> None:
    code, output, errors = ended(cfs("http://127.0.0.1:9", "chat", "chat1", data=b"hello\n"))
    assert (code, output, errors.count("\n")) == (3, "", 1)


def test_a_new_chat_says_once_that_the_model_is_a_toy(tmp_path: Path) -> None:
    """After the first reply, as a remark that is in no transcript; so does `cfs send` at a terminal."""
    toy, real = "[cfs-demo is a toy", "`cfs connect` finds models that talk]"
    with serving() as server:
        with terminal(server.url, "chat", "chat1", **home_in(tmp_path)) as screen:
            screen.expect(PROMPT)
            screen.line("My name is Alice.")
            screen.expect(toy)
            screen.expect(real)
            screen.expect(PROMPT)
            screen.line("What is my name?")
            assert toy not in screen.expect(PROMPT)
        with terminal(server.url, "chat", "chat1", **home_in(tmp_path)) as screen:
            screen.expect(PROMPT)
            screen.line("What is my name?")
            assert toy not in screen.expect(PROMPT)
        with terminal(server.url, "send", "sent1", "Hello!") as screen:
            screen.expect(toy)
            assert screen.end()[0] == 0
        for session in ("chat1", "sent1"):
            assert "toy" not in cfs(server.url, "cat", session).stdout.decode()
