"""`cfs send`: messages from arguments and pipes, replies as text, as JSON, and as they come (C10, S3, S4)."""

import json
import signal

import pytest

from cfs import wire
from tests.client.harness import HttpHarness
from tests.client.scripts import failing
from tests.client.terminal import CTRL_C, Running, cfs, ended, terminal

NOBODY = "http://127.0.0.1:9"


def history(harness: HttpHarness, session: str) -> list[tuple[str, str]]:
    """What a session's history says."""
    return [(message.role, message.content) for message in harness.server.store.get(session).history.messages]


def test_the_reply_is_printed_and_nothing_else(http_harness: HttpHarness) -> None:
    assert ended(cfs(http_harness.url, "send", "chat1", "hello", "there")) == (0, "hello there\n", "")
    assert history(http_harness, "chat1") == [("user", "hello there"), ("assistant", "hello there")]


@pytest.mark.parametrize("arguments", [["send", "chat1"], ["send", "chat1", "-"]])
def test_a_message_from_a_pipe_is_taken_as_a_file_would_take_it(
    http_harness: HttpHarness, arguments: list[str]
) -> None:
    """One newline at the end and a prefix are dropped (S3)."""
    http_harness.script = lambda _: ["yes"]
    assert ended(cfs(http_harness.url, *arguments, data="User: 你好\nagain\n\n".encode())) == (0, "yes\n", "")
    assert history(http_harness, "chat1")[0] == ("user", "你好\nagain\n")


def test_json_is_the_reply_with_its_usage(http_harness: HttpHarness) -> None:
    code, output, errors = ended(cfs(http_harness.url, "send", "chat1", "a b c", "--json"))
    reply = wire.Reply.model_validate_json(output)
    assert (code, errors) == (0, "")
    assert (reply.reply, reply.finish_reason, reply.usage.completion_tokens) == ("a b c", "stop", 3)
    assert reply.event == http_harness.server.store.get("chat1").log.last - 1  # the state changes after it


def test_without_waiting_it_ends_at_once(http_harness: HttpHarness) -> None:
    http_harness.hold()
    assert ended(cfs(http_harness.url, "send", "chat1", "hello", "--no-wait")) == (0, "", "")
    code, output, _ = ended(cfs(http_harness.url, "send", "chat1", "more", "--no-wait", "--json"))
    assert (code, wire.Accepted.model_validate_json(output).accepted_bytes) == (0, 4)
    assert len(http_harness.server.store.get("chat1").queue) == 1


def test_a_repeated_command_with_a_key_sends_nothing_and_prints_the_reply(http_harness: HttpHarness) -> None:
    key = ("--idempotency-key", "sent")
    for flags in ([], [], ["--json"], ["--no-wait"]):
        code, output, errors = ended(cfs(http_harness.url, "send", "chat1", "hello", *key, *flags))
        assert (code, errors, "hello" in output) == (0, "", flags != ["--no-wait"])
    assert history(http_harness, "chat1") == [("user", "hello"), ("assistant", "hello")]
    code, _, errors = ended(cfs(http_harness.url, "send", "chat1", "other", *key))
    assert code != 0
    assert "new key" in errors


def test_settings_hold_for_this_turn(http_harness: HttpHarness) -> None:
    flags = ["--set", "temperature=0", "--set", "stop=END", "--set", "system=Be 1"]
    assert cfs(http_harness.url, "send", "chat1", "hello", *flags).returncode == 0
    settings = http_harness.server.engine.requests[-1].settings
    assert (settings.temperature, settings.stop, settings.system) == (0, ("END",), "Be 1")
    assert http_harness.server.store.get("chat1").settings.temperature == 0.7


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["chat1", "x", "--set", "colour=red"], "there is no setting 'colour'"),
        (["chat1", "x", "--set", "temprature=0"], "Did you mean 'temperature'?"),
        (["chat1", "x", "--set", "temperature=hot"], "temperature: "),
        (["chat1", "x", "--set", "overflow=explode"], "overflow: "),
        (["chat1", "x", "--set", "temperature"], "write KEY=VALUE"),
        (["chat1", " "], "the message is empty"),
        (["chat1"], "the message is empty"),
        ([".hidden", "x"], "must not begin with '.'"),
        (["chat1", "x", "--url", "elsewhere"], "is not the URL of a server"),
        (["chat1", "x", "--token-file", "/no/such/file"], "No such file"),
        (["chat1", "x", "--nonsense"], "No such option"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_sent(
    http_harness: HttpHarness, arguments: list[str], reason: str
) -> None:
    code, output, errors = ended(cfs(http_harness.url, "send", *arguments, COLUMNS="300"))
    assert (code, output) == (2, "")
    assert reason in errors
    assert len(http_harness.server.store) == 0


def test_bytes_that_are_no_text_are_refused(http_harness: HttpHarness) -> None:
    code, _, errors = ended(cfs(http_harness.url, "send", "chat1", data=b"abc\xff", COLUMNS="300"))
    assert (code, "not UTF-8" in errors) == (2, True)


def test_what_the_server_refuses_is_one_line(http_harness: HttpHarness) -> None:
    code, output, errors = ended(cfs(http_harness.url, "send", "chat1", data=b"x" * (5 << 20)))
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert errors.startswith("cfs: a message has ")


def test_a_server_that_does_not_answer_has_a_code_of_its_own() -> None:
    code, output, errors = ended(cfs(NOBODY, "send", "chat1", "hello"))
    assert (code, output, errors.count("\n")) == (3, "", 1)
    assert f"no server answers at {NOBODY}" in errors


def test_a_turn_that_fails_is_an_error(http_harness: HttpHarness) -> None:
    http_harness.script = failing("out of memory", "half ")
    assert ended(cfs(http_harness.url, "send", "chat1", "hello")) == (1, "", "cfs: the turn failed: out of memory\n")
    code, output, _ = ended(cfs(http_harness.url, "send", "chat1", "hello", "--json"))
    assert (code, json.loads(output)["error"]) == (1, "out of memory")


def test_an_unverified_answer_of_an_agent_has_a_code_of_its_own(http_harness: HttpHarness) -> None:
    """The reply is the report of a tree of agents; the harness repeats the message."""
    report = "[main unverified] I wrote a.txt."
    for text, code in ((report, 4), (report.replace("unverified", "success"), 0), ("It is unverified.", 0)):
        assert ended(cfs(http_harness.url, "send", "chat1", text)) == (code, f"{text}\n", "")


def test_a_turn_that_is_cancelled_prints_what_there_is_and_fails(http_harness: HttpHarness) -> None:
    http_harness.hold()
    with Running(http_harness.url, "send", "chat1", "one two") as sending:
        http_harness.wait_until(
            lambda: (found := http_harness.server.store.find("chat1")) and found.state == "generating"
        )
        http_harness.step()
        http_harness.wait_until(lambda: "one" in (http_harness.server.store.get("chat1").partial or ""))
        http_harness.do(lambda: http_harness.server.store.cancel("chat1"))
        assert sending.end() == (1, "one [Cancelled]\n", "cfs: the turn was cancelled\n")


def test_on_a_terminal_the_reply_is_shown_as_it_comes(http_harness: HttpHarness) -> None:
    http_harness.hold()
    with terminal(http_harness.url, "send", "chat1", "one two three") as screen:
        http_harness.wait_until(lambda: http_harness.server.store.find("chat1"))
        for word in ("one", " two", " three"):
            http_harness.step()
            screen.expect(word)
        http_harness.release()
        assert screen.end() == (0, "\r\n")


def test_a_reply_cannot_steer_the_terminal(http_harness: HttpHarness) -> None:
    http_harness.script = lambda _: ["a\x1b[31mb\x07\x9b"]
    with terminal(http_harness.url, "send", "chat1", "x") as screen:
        assert screen.end() == (0, "a␛[31mb␇\ufffd\r\n")
    assert cfs(http_harness.url, "send", "chat1", "x").stdout == "a\x1b[31mb\x07\x9b\n".encode()


def test_ctrl_c_stops_waiting_and_the_turn_goes_on(http_harness: HttpHarness) -> None:
    http_harness.hold()
    with terminal(http_harness.url, "send", "chat1", "one two") as screen:
        http_harness.wait_until(lambda: http_harness.server.store.find("chat1"))
        http_harness.step()
        screen.expect("one")
        screen.type(CTRL_C)
        screen.expect("cfs: interrupted; the turn continues: cfs cat chat1")
        assert screen.end()[0] == 130
    http_harness.release()
    http_harness.wait_until(lambda: http_harness.server.store.get("chat1").state == "idle")
    assert history(http_harness, "chat1")[-1] == ("assistant", "one two")


def test_an_interrupt_without_a_terminal_ends_with_130(http_harness: HttpHarness) -> None:
    http_harness.hold()
    with Running(http_harness.url, "send", "chat1", "one two") as sending:
        http_harness.wait_until(lambda: http_harness.server.store.find("chat1"))
        sending.process.send_signal(signal.SIGINT)
        code, output, errors = sending.end()
        assert (code, output) == (130, "")
        assert "Traceback" not in errors


def test_a_message_is_typed_at_a_terminal(http_harness: HttpHarness) -> None:
    with terminal(http_harness.url, "send", "chat1") as screen:
        screen.expect("Ctrl-D on a line of its own sends it.")
        screen.type("hello you\r\x04")
        screen.expect("hello you\r\nhello you\r\n")
        assert screen.end()[0] == 0


def test_no_option_takes_a_token_itself() -> None:
    """Everybody could read it in the list of processes."""
    assert b"--token " not in cfs(NOBODY, "send", "--help", COLUMNS="200", TERM="dumb").stdout
