"""`cfs log`, `show`, `diff`, `rewind`, `redo` and `merge`, and the same in the SDK (C10, S16, S17)."""

import json
from pathlib import Path

import pytest

from cfs import Conflict, NotFound, Session, Unsupported, api
from cfs.transports.http import Client
from tests.client.harness import HttpHarness
from tests.client.terminal import cfs, ended

WHOLE = "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
FIRST = "User: one\nAssistant: one\n"


@pytest.fixture
def url(http_harness: HttpHarness) -> str:
    """A server with a conversation of four messages, `main`."""
    with Session("main", url=http_harness.url) as session:
        session.send("one")
        session.send("two")
    return http_harness.url


def test_versions_are_listed_with_time_author_and_beginning(url: str) -> None:
    code, output, errors = ended(cfs(url, "log", "main"))
    assert (code, errors) == (0, "")
    rows = [line.split(maxsplit=4) for line in output.splitlines()]
    assert [(row[0], row[3], row[4]) for row in rows] == [
        ("0", "local", "created"),
        ("1", "local", "user: one"),
        ("2", "model", "assistant: one"),
        ("3", "local", "user: two"),
        ("4", "model", "assistant: two"),
    ]
    code, output, errors = ended(cfs(url, "log", "main", "--limit", "2"))
    assert (len(output.splitlines()), errors) == (2, "There are 3 older versions: --limit shows more of them.\n")
    assert json.loads(cfs(url, "log", "main", "--json").stdout)["versions"][4]["text"] == "two"


def test_a_version_is_shown_as_it_was(url: str) -> None:
    assert ended(cfs(url, "show", "main@2")) == (0, FIRST, "")
    assert ended(cfs(url, "show", "main")) == (0, WHOLE, "")
    assert ended(cfs(url, "show", "main@2999-01-01T12:00")) == (0, WHOLE, "")
    assert json.loads(cfs(url, "show", "main@2", "--json").stdout)["messages"] == 2


def test_a_session_whose_name_has_an_at_is_still_found(url: str) -> None:
    with Session("me@home", url=url) as session:
        session.send("hi")
    assert ended(cfs(url, "show", "me@home"))[1] == "User: hi\nAssistant: hi\n"
    assert ended(cfs(url, "show", "me@home@1"))[1] == "User: hi\n"


def test_differences_are_printed_and_are_the_exit_status(url: str) -> None:
    code, output, errors = ended(cfs(url, "diff", "main@2"))
    assert (code, errors) == (1, "")
    assert output.splitlines()[-2:] == ["+User: two", "+Assistant: two"]
    assert ended(cfs(url, "diff", "main@4", "main")) == (0, "", "")


def test_a_rewind_says_what_it_does_and_how_to_undo_it(url: str) -> None:
    removed = "  - user: two\n  - assistant: two\n"
    planned = ended(cfs(url, "rewind", "main", "--to", "2", "--dry-run"))
    assert planned == (0, "main: would go to version 2\n" + removed, "Nothing has been changed.\n")
    assert ended(cfs(url, "show", "main"))[1] == WHOLE
    done = ended(cfs(url, "rewind", "main", "--to", "2"))
    assert done == (0, "main: went to version 2\n" + removed, "`cfs redo main` undoes this.\n")
    assert ended(cfs(url, "show", "main"))[1] == FIRST
    assert ended(cfs(url, "redo", "main"))[1] == "main: went to version 4\n" + removed.replace("-", "+")
    assert ended(cfs(url, "show", "main"))[1] == WHOLE


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["show", "main@9"], "session 'main' has no version 9: it has 0 to 4"),
        (["rewind", "main", "--to", "9"], "session 'main' has no version 9: it has 0 to 4"),
        (["rewind", "main", "--to", "yesterday"], "'yesterday' is neither the number of a version nor a time"),
        (["redo", "main"], "there is nothing to redo in session 'main': its newest change is not a rewind"),
        (["log", "mian"], "there is no session 'mian'"),
        (["diff", "main@2", "mian"], "there is no session 'mian'"),
    ],
)
def test_mistakes_get_one_line(url: str, words: list[str], reason: str) -> None:
    code, output, errors = ended(cfs(url, *words))
    assert (code, output) == (1, "")
    assert errors.startswith(f"cfs: {reason}")
    assert errors.count("\n") == 1


def test_the_sdk_reads_versions_and_rewinds(url: str) -> None:
    with Session("main", url=url) as session:
        assert [version.role for version in session.versions()] == [None, "user", "assistant", "user", "assistant"]
        assert [version.number for version in session.versions(before=2, limit=1)] == [1]
        assert [message.content for message in session.at(2)] == ["one", "one"]
        assert session.rewind(2, dry_run=True).dry_run
        assert session.read() == WHOLE
        (done,) = session.rewind(2).sessions
        assert [message.text for message in done.removed] == ["two", "two"]
        assert session.read() == FIRST
        session.redo()
        assert session.read() == WHOLE
        with pytest.raises(NotFound):
            session.at(99)
        with pytest.raises(Conflict):
            session.redo()


def test_the_files_of_a_copy_are_merged_back(url: str) -> None:
    def write(path: str, text: str) -> None:
        with Client(url) as client:
            client.call(api.write_file(f"/workspaces/{path}", text.encode()))

    write("main/a.txt", "1\n2\n3\n")
    assert ended(cfs(url, "fork", "main", "copy")) == (0, "copy\n", "")
    assert ended(cfs(url, "merge", "copy", "main")) == (0, "", "main has all changes of copy already.\n")
    write("main/a.txt", "one\n2\n3\n")
    write("copy/a.txt", "1\n2\nthree\n")
    write("copy/b.txt", "new\n")
    planned = ended(cfs(url, "merge", "copy", "main", "--dry-run"))
    assert planned == (0, "  * a.txt\n  + b.txt\n", "Nothing has been changed.\n")
    assert ended(cfs(url, "merge", "copy", "main")) == (0, "  * a.txt\n  + b.txt\n", "")
    assert ended(cfs(url, "files", "show", "main/a.txt"))[1] == "one\n2\nthree\n"
    write("main/b.txt", "of main\n")
    write("copy/b.txt", "of the copy\n")
    code, output, errors = ended(cfs(url, "merge", "copy", "main"))
    files = "b.txt, b.txt.conflict-main, b.txt.conflict-copy"
    assert (code, errors) == (1, "")
    assert output.splitlines()[-1] == f"  conflict in b.txt: both have changed it; see {files}"
    with Session("main", url=url) as session:
        assert session.merge("copy", dry_run=True).files == ()
        with pytest.raises(NotFound):
            session.merge("other")


def test_a_file_has_no_versions(tmp_path: Path) -> None:
    (tmp_path / "main").write_text("User: hi\n")
    with Session("main", mount=str(tmp_path)) as session:
        for call in (
            session.versions,
            lambda: session.at(1),
            lambda: session.rewind(1),
            session.redo,
            lambda: session.merge("a"),
        ):
            with pytest.raises(Unsupported, match="url="):
                call()
