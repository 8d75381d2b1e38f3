"""`cfs ls` and `cfs rm` (C10)."""

import json
import re
from pathlib import Path

from cfs import wire
from tests.client.harness import HttpHarness
from tests.client.terminal import Running, cfs, ended, terminal


def make(harness: HttpHarness, *sessions: str) -> None:
    """Make empty sessions."""
    harness.do(lambda: [harness.server.store.open(session) for session in sessions])


def test_names_come_one_a_line_in_their_order(http_harness: HttpHarness) -> None:
    make(http_harness, "b", "a", "名字")
    assert ended(cfs(http_harness.url, "ls")) == (0, "a\nb\n名字\n", "")


def test_messages_are_searched(http_harness: HttpHarness) -> None:
    http_harness.write("garden", "Plan a\nGarden")
    http_harness.write("garden/shed", "Plan a shed in the garden")
    http_harness.write("pond", "no fish")
    url = http_harness.url
    code, shown, said = ended(
        cfs(url, "search", "a", "garden", "--limit", "1", "--in", "garden/shed", "--role", "user")
    )
    assert (code, shown) == (0, "garden/shed #0 user: Plan a shed in the garden\n")
    assert (
        ended(cfs(url, "search", '"a garden"', "--role", "user", "--since", "1h"))[1]
        == "garden #0 user: Plan a Garden\n"
    )
    assert ended(cfs(url, "search", "shed", "--role", "tool"))[1] == ""
    code, shown, said = ended(cfs(url, "search", "orchid", "--since", "2026-11-01"))
    assert (code, shown) == (0, "")
    assert "Nothing contains" in said
    as_json = json.loads(cfs(url, "search", "FI*", "--json").stdout)
    assert {each["session"] for each in as_json["results"]} == {"pond"}
    for wrong, reason in {"--role=robot": "use one of", "--since=soon": "no time"}.items():
        code, shown, said = ended(cfs(url, "search", "x", wrong))
        assert (code != 0, shown, said.count("\n")) == (True, "", 1)
        assert reason in said


def test_matches_are_marked_on_a_terminal(http_harness: HttpHarness) -> None:
    http_harness.write("pond", "no fish")
    with terminal(http_harness.url, "search", "fish", "--role", "user", NO_COLOR="") as running:
        running.expect("no \x1b[33m\x1b[1mfish\x1b[0m")


def test_a_prefix_chooses(http_harness: HttpHarness) -> None:
    make(http_harness, "chat1", "chat2", "main/coder/tester", "main/writer")
    assert ended(cfs(http_harness.url, "ls", "chat")) == (0, "chat1\nchat2\n", "")
    assert ended(cfs(http_harness.url, "ls", "main/")) == (0, "main/coder\nmain/writer\n", "")


def test_all_pages_are_read(http_harness: HttpHarness) -> None:
    names = [f"s{number:04}" for number in range(1203)]
    http_harness.do(lambda: [http_harness.server.store.open(name) for name in names])
    assert ended(cfs(http_harness.url, "ls")) == (0, "".join(f"{name}\n" for name in names), "")
    listed = json.loads(cfs(http_harness.url, "ls", "--json").stdout)
    assert [info["id"] for info in listed] == names


def test_the_long_form_says_more(http_harness: HttpHarness) -> None:
    make(http_harness, "main/coder")
    http_harness.hold()
    http_harness.write("chat1", "hello")
    http_harness.write("chat1", "more")
    code, output, _ = ended(cfs(http_harness.url, "ls", "-l"))
    head, *lines = [line.split() for line in output.splitlines()]
    assert code == 0
    assert head == ["STATE", "QUEUED", "MESSAGES", "BYTES", "CHANGED", "BELOW", "NAME"]
    assert (lines[0][:3], lines[0][-2:]) == (["generating", "1", "1"], ["0", "chat1"])
    assert (lines[1][:3], lines[1][-2:]) == (["idle", "0", "0"], ["1", "main"])
    assert [line.rindex("  ") for line in output.splitlines()] == [output.index("  NAME")] * 3


def test_what_runs_is_listed_with_all_that_is_below(http_harness: HttpHarness) -> None:
    """A sub-session may run while its parent is idle; a turn that waits for its agent counts, too."""
    make(http_harness, "idle", "main/coder", "main/tester")
    assert ended(cfs(http_harness.url, "ps")) == (0, "", "No turn is running or queued.\n")
    assert ended(cfs(http_harness.url, "ps", "--json")) == (0, "[]\n", "")
    http_harness.hold()
    http_harness.write("main/coder", "hello")
    http_harness.write("main/coder", "more")
    code, output, _ = ended(cfs(http_harness.url, "ps"))
    head, line = (line.split() for line in output.splitlines())
    assert (code, head) == (0, ["STATE", "QUEUED", "MESSAGES", "TOKENS", "COST", "TIME", "NAME"])
    assert line[:4] == ["generating", "1", "1", "0"]
    assert line[4] == "$0.0000"
    assert re.fullmatch(r"(\d+m)?\d+s", line[5])
    assert line[6] == "main/coder"
    (info,) = json.loads(cfs(http_harness.url, "ps", "--json").stdout)
    assert info["turn_since"] < info["updated_at"] + 1


def test_a_name_that_is_typed_wrong_is_understood(http_harness: HttpHarness) -> None:
    make(http_harness, "chat1", "main/coder", "other")
    missing = "cfs: there is no session {!r}. Did you mean {!r}?\n"
    for command in (["cat"], ["cat", "--json"], ["rm"]):
        assert ended(cfs(http_harness.url, *command, "chta1")) == (1, "", missing.format("chta1", "chat1"))
    assert ended(cfs(http_harness.url, "cat", "main/codr"))[2] == missing.format("main/codr", "main/coder")
    assert ended(cfs(http_harness.url, "rm", "quartz"))[2] == "cfs: there is no session 'quartz'\n"


def test_the_dashboard_is_opened_where_there_is_a_browser(http_harness: HttpHarness, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    url = http_harness.url
    opened = ended(cfs(url, "open", "main/coder", BROWSER=f"{browser} %s"))
    assert opened == (0, "", "")
    assert (tmp_path / "opened").read_text() == f"{url}/#conversation/main/coder\n"
    assert ended(cfs(url, "open", BROWSER="", DISPLAY="", WAYLAND_DISPLAY="")) == (0, f"{url}/\n", "")


def test_json_is_a_list_of_sessions(http_harness: HttpHarness) -> None:
    assert ended(cfs(http_harness.url, "ls", "--json")) == (0, "[]\n", "")
    make(http_harness, "a")
    (info,) = json.loads(cfs(http_harness.url, "ls", "--json").stdout)
    assert wire.SessionInfo.model_validate(info).id == "a"


def test_a_terminal_gets_no_control_characters(http_harness: HttpHarness) -> None:
    make(http_harness, "a\x9bb")
    with terminal(http_harness.url, "ls") as screen:
        assert screen.end() == (0, "a\ufffdb\r\n")


def test_sessions_are_removed_with_what_is_below(http_harness: HttpHarness) -> None:
    make(http_harness, "a", "b/c", "d")
    assert ended(cfs(http_harness.url, "rm", "a", "b")) == (0, "", "")
    assert [session.id for session in http_harness.server.store] == ["d"]


def test_what_does_not_exist_is_told_and_the_rest_goes_on(http_harness: HttpHarness) -> None:
    make(http_harness, "a")
    assert ended(cfs(http_harness.url, "rm", "nobody", "a")) == (1, "", "cfs: there is no session 'nobody'\n")
    assert len(http_harness.server.store) == 0
    assert ended(cfs(http_harness.url, "rm", "-f", "nobody")) == (0, "", "")


def test_removing_a_session_ends_those_who_wait_for_it(http_harness: HttpHarness) -> None:
    http_harness.hold()
    with Running(http_harness.url, "send", "chat1", "hello") as sending:
        http_harness.wait_until(lambda: http_harness.server.store.find("chat1"))
        assert cfs(http_harness.url, "rm", "chat1").returncode == 0
        assert sending.end() == (1, "", "cfs: session 'chat1' has been deleted\n")
