"""`cfs ask`, `cfs set`, `cfs rename` and `cfs fork` (C10, S9, S14)."""

import json
import re
from datetime import datetime, timedelta

import pytest

from tests.client.harness import HttpHarness
from tests.client.terminal import cfs, ended


def history(harness: HttpHarness, session: str) -> list[str]:
    """The contents of a session's messages."""
    return [message.content for message in harness.server.store.get(session).history.messages]


def days() -> set[str]:
    """Today's name of a session; around midnight there are two."""
    now = datetime.now().astimezone()
    return {f"{now + timedelta(seconds=seconds):%Y-%m-%d}" for seconds in (-60, 0)}


@pytest.mark.parametrize("words", [["hello there"], ["ask", "hello", "there"], ["hello there", "--set", "seed=1"]])
def test_a_question_is_asked_in_the_session_of_the_day(http_harness: HttpHarness, words: list[str]) -> None:
    """Only the reply is on standard output."""
    code, output, errors = ended(cfs(http_harness.url, *words))
    assert (code, output) == (0, "hello there\n")
    name = re.fullmatch(r"\[session (\S+)\]\n", errors)
    assert name
    assert name[1] in days()
    assert history(http_harness, name[1]) == ["hello there", "hello there"]


def test_a_question_needs_no_spaces_in_scripts_without_them(http_harness: HttpHarness) -> None:
    assert ended(cfs(http_harness.url, "你好吗"))[:2] == (0, "你好吗\n")


def test_a_typing_error_is_no_question(http_harness: HttpHarness) -> None:
    code, output, errors = ended(cfs(http_harness.url, "sned", "main", "hello"))
    assert (code, output) == (2, "")
    assert "Did you mean 'send'?" in errors
    assert len(http_harness.server.store) == 0


def test_settings_are_printed_and_changed(http_harness: HttpHarness) -> None:
    http_harness.write("main", "hi")
    assert "temperature=0.7\n" in ended(cfs(http_harness.url, "set", "main"))[1]
    assert ended(cfs(http_harness.url, "set", "main", "temperature=0.2", "title=2027", "keep=90d")) == (0, "", "")
    settings = json.loads(cfs(http_harness.url, "set", "main", "--json").stdout)
    assert (settings["temperature"], settings["title"], settings["keep"]) == (0.2, "2027", "90d")
    assert cfs(http_harness.url, "set", "main", "temperature=").returncode == 0
    assert "temperature=0.7\n" in ended(cfs(http_harness.url, "set", "main"))[1]


def test_a_session_is_renamed_with_what_is_below_it(http_harness: HttpHarness) -> None:
    http_harness.write("old", "hi")
    http_harness.write("old/sub", "ho")
    assert ended(cfs(http_harness.url, "rename", "old", "new")) == (0, "", "")
    assert {session.id for session in http_harness.server.store} == {"new", "new/sub"}
    code, _, errors = ended(cfs(http_harness.url, "rename", "new", "new/sub"))
    assert (code, errors.count("\n")) == (1, 1)


def test_a_copy_prints_its_name(http_harness: HttpHarness) -> None:
    http_harness.write("main", "hi")
    http_harness.wait_until(lambda: http_harness.server.store.get("main").state == "idle")
    assert ended(cfs(http_harness.url, "fork", "main")) == (0, "main-2\n", "")
    assert ended(cfs(http_harness.url, "fork", "main", "copy", "--messages", "0")) == (0, "copy\n", "")
    assert (history(http_harness, "main-2"), history(http_harness, "copy")) == (["hi", "hi"], [])


def test_a_link_of_a_server_without_tokens_is_the_page(http_harness: HttpHarness) -> None:
    http_harness.write("main", "hi")
    code, output, errors = ended(cfs(http_harness.url, "share", "create", "main"))
    assert (code, output) == (0, f"{http_harness.url}/#conversation/main\n")
    assert "no tokens" in errors


def test_an_address_needs_no_scheme(http_harness: HttpHarness) -> None:
    http_harness.write("main", "hi")
    assert ended(cfs(http_harness.url.removeprefix("http://"), "ls")) == (0, "main\n", "")
