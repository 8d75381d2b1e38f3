"""`cfs cat`: the transcript when it is settled, as it is, and as it grows (C10, S6, S7)."""

import json
import subprocess

from cfs import wire
from cfs.contract.transcript import render
from tests.client.harness import HttpHarness
from tests.client.terminal import CTRL_C, Running, cfs, ended, terminal
from tests.server.support import CFS, environment


def started(harness: HttpHarness, message: str = "one two") -> None:
    """Send a message whose turn stands still after its first word."""
    harness.hold()
    harness.write("chat1", message)
    harness.step()
    harness.wait_until(lambda: harness.server.store.get("chat1").partial)


def test_the_transcript_is_printed_byte_for_byte(http_harness: HttpHarness) -> None:
    http_harness.script = lambda _: ["fine\nUser: no, 我"]
    http_harness.write("chat1", "a\nAssistant: b")
    expected = "User: a\n\\Assistant: b\nAssistant: fine\n\\User: no, 我\n"
    assert ended(cfs(http_harness.url, "cat", "chat1")) == (0, expected, "")


def test_it_waits_until_the_session_is_settled(http_harness: HttpHarness) -> None:
    """The request is at the server, and the reply comes only when the engine goes on."""
    started(http_harness)
    http_harness.write("chat1", "three")
    with Running(http_harness.url, "cat", "chat1") as reading:
        http_harness.wait_until(lambda: http_harness.server.server.server_state.tasks)
        assert reading.process.poll() is None
        http_harness.release()
        text = "User: one two\nAssistant: one two\nUser: three\nAssistant: three\n"
        assert reading.end() == (0, text, "")


def test_without_waiting_it_prints_what_is_there_and_says_so(http_harness: HttpHarness) -> None:
    started(http_harness)
    code, output, errors = ended(cfs(http_harness.url, "cat", "chat1", "--no-wait"))
    assert (code, output.startswith("User: one two\n")) == (0, True)
    assert errors == "cfs: chat1 is generating: the transcript is not complete yet\n"


def test_json_is_the_session_with_its_messages(http_harness: HttpHarness) -> None:
    http_harness.write("chat1", "one two")
    code, output, errors = ended(cfs(http_harness.url, "cat", "chat1", "--json"))
    detail = wire.SessionDetail.model_validate_json(output)
    assert (code, errors, detail.state) == (0, "", "idle")
    assert [message.content for message in detail.history] == ["one two", "one two"]


def test_following_prints_token_by_token_and_ends_with_the_session(http_harness: HttpHarness) -> None:
    started(http_harness)
    with Running(http_harness.url, "cat", "chat1", "--follow") as following:
        following.until("User: one two\nAssistant: one")
        http_harness.step()
        following.until(" two")
        http_harness.release()
        following.until("\n")
        http_harness.write("chat1", "x\nUser: y")
        following.until("User: x\n\\User: y\nAssistant: x User: y\n")
        http_harness.do(lambda: http_harness.server.store.delete("chat1"))
        assert following.end() == (0, "", "cfs: chat1 has been deleted\n")


def test_what_is_followed_is_the_transcript(http_harness: HttpHarness) -> None:
    """Also where the reply holds what would read as another message, in pieces."""
    http_harness.script = lambda _: ["a\nUs", "er: b", "\n", "\\Tool: c\nUse", "less\nSystem", ":"]
    http_harness.write("chat1", "begin")
    http_harness.wait_until(lambda: http_harness.server.store.get("chat1").state == "idle")
    with Running(http_harness.url, "cat", "chat1", "-f") as following:
        shown = following.until("System:\n")
        http_harness.write("chat1", "again")
        shown += following.until("System:\n")
        assert shown == render(http_harness.server.store.get("chat1").history.messages)
        following.process.send_signal(2)
        assert following.end()[0] == 130


def test_following_as_json_is_an_event_a_line(http_harness: HttpHarness) -> None:
    http_harness.write("chat1", "one")
    http_harness.wait_until(lambda: http_harness.server.store.get("chat1").state == "idle")
    last = http_harness.server.store.get("chat1").log.last
    with Running(http_harness.url, "cat", "chat1", "--follow", "--json") as following:
        http_harness.wait_until(lambda: http_harness.server.parts.metrics.streams._value.get())
        http_harness.write("chat1", "two")
        lines = following.until('"turn.finished"').splitlines()
        http_harness.do(lambda: http_harness.server.store.delete("chat1"))
        lines = (lines[:-1] if lines else []) + [(lines[-1] if lines else "") + following.end()[1].splitlines()[0]]
    events = [json.loads(line) for line in lines]
    assert [event["number"] for event in events] == list(range(last + 1, last + 1 + len(events)))
    assert {"message.added", "token", "turn.finished"} <= {event["type"] for event in events}


def test_ctrl_c_ends_following(http_harness: HttpHarness) -> None:
    started(http_harness)
    with terminal(http_harness.url, "cat", "chat1", "-f") as screen:
        screen.expect("Assistant: one")
        screen.type(CTRL_C)
        assert screen.end()[0] == 130


def test_a_session_that_does_not_exist_is_an_error(http_harness: HttpHarness) -> None:
    expected = (1, "", "cfs: there is no session 'nobody'\n")
    assert ended(cfs(http_harness.url, "cat", "nobody")) == expected
    assert ended(cfs(http_harness.url, "cat", "nobody", "-f")) == expected


def test_a_reader_that_leaves_is_no_reason_for_words(http_harness: HttpHarness) -> None:
    """`cfs cat chat1 | head -1` with far more text than a pipe holds."""
    http_harness.write("chat1", "word\n" * 200_000)
    command = f"{CFS} cat chat1 | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(CFS_URL=http_harness.url), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("User: word\n141\n", "")
