"""Tools for files: what a model can do with its own, and what it is told when it cannot (A2, A3)."""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cfs_agents.tools import FileTools
from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.paths import directory_path, file_path
from cfs_agents.tools.replacement import replaced
from cfs_filesystem import InvalidPathError, validate_path
from tests.agents.tools.agents import ToolHarness
from tests.filesystem.hostile_paths import LITERAL, REFUSED

OPERATIONS: dict[str, dict[str, Any]] = {
    "read_file": {},
    "write_file": {"content": "overwritten"},
    "edit_file": {"old": "secret", "new": "overwritten"},
    "list_directory": {},
    "search_files": {"pattern": "secret"},
}
"""Each tool, and what it takes beside a path."""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ToolHarness]:
    """An agent's directory."""
    made = ToolHarness(tmp_path)
    yield made
    made.files.close()


# -- reading and writing --------------------------------------------------------------------------------------------


def test_written_text_is_read_as_it_was(harness: ToolHarness) -> None:
    """Without a final newline, with odd ends of lines, with anything."""
    for text in ("one\ntwo\n", "no newline", "\n\n", "a\r\nb\rc\n", "日本語\u2028x\x0b\x85", " leading"):
        harness.told("write_file", path="a.txt", content=text)
        assert harness.told("read_file", path="/workspace/a.txt") == text
        assert (harness.workspace / "a.txt").read_bytes() == text.encode()


def test_writing_says_what_it_did(harness: ToolHarness) -> None:
    """Created or changed, lines and bytes; directories above are made."""
    assert (
        harness.told("write_file", path="a/b/c.txt", content="é\nb") == "created /workspace/a/b/c.txt: 2 lines, 4 bytes"
    )
    assert harness.told("write_file", path="a/b/c.txt", content="") == (
        "changed /workspace/a/b/c.txt, which had 4 bytes: 0 lines, 0 bytes"
    )
    assert harness.told("read_file", path="a/b/c.txt") == "[the file is empty]"


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        (1, 1, "line 1\n[lines 1-1 of 5]"),
        (2, 4, "line 2\nline 3\nline 4\n[lines 2-4 of 5]"),
        (5, None, "line 5\n[lines 5-5 of 5]"),
        (None, 2, "line 1\nline 2\n[lines 1-2 of 5]"),
        (4, 99, "line 4\nline 5\n[lines 4-5 of 5]"),
        (1, 5, "line 1\nline 2\nline 3\nline 4\nline 5\n[lines 1-5 of 5]"),
    ],
)
@pytest.mark.parametrize("ending", ["\n", ""])
def test_lines_are_counted_from_one_and_the_last_is_included(
    harness: ToolHarness, first: int | None, last: int | None, text: str, ending: str
) -> None:
    """And the model is told which of how many they are."""
    content = "\n".join(f"line {number}" for number in range(1, 6)) + ending
    harness.told("write_file", path="a", content=content)
    assert harness.told("read_file", path="a", start_line=first, end_line=last) == text


def test_lines_outside_of_the_file_are_refused_with_their_number(harness: ToolHarness) -> None:
    """So that the next call can be right."""
    harness.told("write_file", path="a", content="1\n2\n3\n")
    assert harness.refused("read_file", path="a", start_line=4) == "'/workspace/a' has no line 4: it has 3 lines"
    assert harness.refused("read_file", path="a", start_line=3, end_line=2) == "end_line 2 is before start_line 3"
    assert "'start_line' is not right: 0, input should be greater" in harness.refused(
        "read_file", path="a", start_line=0
    )


def test_long_file_is_read_part_by_part(harness: ToolHarness) -> None:
    """By number of lines, or of characters; each note says where to go on, and nothing is lost."""
    for lines in ([f"{n}\n" for n in range(5000)], [f"{n:0100}\n" for n in range(1500)]):
        harness.told("write_file", path="a", content="".join(lines))
        read, start = "", 1
        while start:
            text, _, note = harness.told("read_file", path="a", start_line=start).rpartition("[")
            assert len(text) <= 60_000
            read += text
            start = int(note.partition("start_line=")[2].rstrip("]") or 0)
        assert read == "".join(lines)


def test_line_that_is_too_long_is_cut_and_said(harness: ToolHarness) -> None:
    """A minified file does not fill the context, and can be read to its end by the arguments of the notes."""
    for ending in ("", "\n", "\nafter it\n"):
        content = "<" + "0123456789" * 13_000 + ">" + ending
        harness.told("write_file", path="a", content=content)
        first = harness.call("read_file", path="a")
        assert first.text.endswith(
            f"\n[line 1 of {1 + ('after' in ending)}, characters 1-60,000 of 130,002;"
            " go on with start_line=1, start_column=60001]"
        )
        assert first.truncated
        read, pages = "", 0
        arguments: dict[str, Any] = {"path": "a"}
        while arguments:
            result = harness.call("read_file", **arguments)
            text, _, note = result.text.rpartition("[")
            more = dict(re.findall(r"(start_\w+)=(\d+)", note))
            assert result.truncated is bool(more)
            read += text.removesuffix("\n") if more else text
            arguments = {"path": "a"} | {name: int(value) for name, value in more.items()} if more else {}
            pages += 1
        assert (read.removesuffix("\n"), pages) == (content.removesuffix("\n"), 3)


def test_part_of_a_line_that_is_not_there_is_refused(harness: ToolHarness) -> None:
    harness.told("write_file", path="a", content="12345\n\n")
    assert harness.told("read_file", path="a", start_line=1, start_column=4, end_line=1) == (
        "45\n[line 1 of 2 from character 4 on]"
    )
    for line, column, size in ((1, 6, 5), (2, 2, 0)):
        reason = harness.refused("read_file", path="a", start_line=line, start_column=column)
        assert reason == f"line {line} of '/workspace/a' has no character {column}: it has {size} characters"


def test_requested_end_stays_when_a_page_is_cut(harness: ToolHarness) -> None:
    """The note has all arguments of the next call; what was requested and given in full is not cut."""
    harness.told("write_file", path="a", content="".join(f"{n}\n" for n in range(5000)))
    result = harness.call("read_file", path="a", start_line=1000, end_line=4000)
    assert result.text.endswith("[lines 1000-2999 of 5000; go on with start_line=3000, end_line=4000]")
    assert result.truncated
    assert not harness.call("read_file", path="a", start_line=3000, end_line=4000).truncated


def test_file_that_is_no_text_or_too_large_is_refused(harness: ToolHarness) -> None:
    """With what it is, and what to do."""
    (harness.workspace / "binary").write_bytes(b"\x00\xff\xfe")
    with (harness.workspace / "large").open("wb") as file:
        file.truncate(17 << 20)
    assert "is not UTF-8 text (byte 1): it has 3 bytes" in harness.refused("read_file", path="binary")
    assert "17,825,792 bytes" in harness.refused("read_file", path="large")


def test_missing_file_is_told_with_what_there_is(harness: ToolHarness) -> None:
    """A near name, a directory, a path that begins twice."""
    harness.told("write_file", path="notes.txt", content="x")
    assert (
        harness.refused("read_file", path="note.txt") == "there is no '/workspace/note.txt'; near it there is notes.txt"
    )
    assert harness.refused("read_file", path="zebra") == "there is no '/workspace/zebra'"
    assert (
        harness.refused("read_file", path="no/a") == "there is no '/workspace/no/a', and no directory '/workspace/no'"
    )
    assert harness.refused("read_file", path="/workspace") == "'/workspace' is a directory: use list_directory"
    assert harness.refused("read_file", path="workspace/notes.txt") == (
        "there is no '/workspace/workspace/notes.txt', but '/workspace/notes.txt': relative paths begin in /workspace"
    )
    assert harness.refused("list_directory", path="notes.txt") == "'/workspace/notes.txt' is a file: use read_file"
    assert (
        harness.refused("write_file", path="/storage/documents", content="x") == "'/storage/documents' is a directory"
    )


# -- what was read ----------------------------------------------------------------------------------------------------


def test_file_that_was_read_in_part_is_not_replaced(harness: ToolHarness) -> None:
    """The reason says which lines are missing, and the call that reads them; then the write is made."""
    (harness.workspace / "a").write_text("".join(f"{n}\n" for n in range(1, 5001)))
    harness.told("read_file", path="a")
    reason = harness.refused("write_file", path="a", content="new")
    assert reason == (
        "/workspace/a is not overwritten: you have read only a part of it, and not its lines 2001-5000. Read them:"
        " read_file(path='/workspace/a', start_line=2001, end_line=5000). Or change lines that you have read with"
        " edit_file."
    )
    assert (harness.workspace / "a").read_text().startswith("1\n2\n")
    harness.told("edit_file", path="a", old="\n7\n", new="\nseven\n")
    harness.told("read_file", path="a", start_line=2001, end_line=4000)
    assert "not its lines 4001-5000" in harness.refused("write_file", path="a", content="new")
    harness.told("read_file", path="a", start_line=4001)
    harness.told("write_file", path="a", content="new")
    assert (harness.workspace / "a").read_text() == "new"


def test_rest_of_a_long_line_counts_as_not_read(harness: ToolHarness) -> None:
    (harness.workspace / "a").write_text("one\n" + "x" * 70_000 + "\nthree\n")
    harness.told("read_file", path="a", start_line=2)
    reason = harness.refused("write_file", path="a", content="new")
    assert "not its lines 1, 2:60001-3. Read them: read_file(path='/workspace/a', start_line=1, end_line=1)" in reason
    harness.told("read_file", path="a", end_line=1)
    assert "start_line=2, start_column=60001, end_line=3)" in harness.refused("write_file", path="a", content="new")
    harness.told("read_file", path="a", start_line=2, start_column=60_001)
    harness.told("write_file", path="a", content="new")


def test_file_that_was_never_read_can_be_replaced(harness: ToolHarness) -> None:
    """And one that the agent wrote or has read whole. An edit reads nothing; the same content replaces nothing."""
    for name in ("never", "written", "read", "same"):
        (harness.workspace / name).write_text("1\n2\n3\n")
    harness.told("edit_file", path="never", old="2", new="two")
    harness.told("write_file", path="written", content="own\nlines\n")
    harness.told("read_file", path="read")
    for name in ("written", "read", "same"):
        harness.told("read_file", path=name, end_line=1)
    harness.told("write_file", path="same", content="1\n2\n3\n")
    for name in ("never", "written", "read", "same"):
        harness.told("write_file", path=name, content="new\n")


# -- names that look alike --------------------------------------------------------------------------------------------

LOOK_ALIKES = [
    ("caf\u00e9.txt", "cafe\u0301.txt"),
    ("a b.txt", "a\u00a0b.txt"),
    ("it's.txt", "it\u2019s.txt"),
    ("ab.txt", "a\u200bb.txt"),
    ("x-y.txt", "x\u2013y.txt"),
]


@pytest.mark.parametrize(("one", "other"), [*LOOK_ALIKES, *((b, a) for a, b in LOOK_ALIKES)])
def test_no_file_is_created_beside_one_that_looks_the_same(harness: ToolHarness, one: str, other: str) -> None:
    """The reason has both names, and how they differ; a missing file is reported with its look-alike."""
    harness.told("write_file", path=one, content="there")
    reason = harness.refused("write_file", path=other, content="beside")
    there = f"/workspace/{one}"
    assert f"is not created beside {there!r}, whose name looks the same" in reason
    assert f"yours is {other!a}, that one {one!a}" in reason
    missing = harness.refused("read_file", path=other)
    assert f"but {there!r}, whose name looks the same: yours is {other!a}, that one {one!a}" in missing
    assert [path.name for path in harness.workspace.iterdir()] == [one]
    harness.told("write_file", path=one, content="there is no look-alike now")
    tools = FileTools(harness.handle, look_alikes=True)
    tools.write_file(other, "beside")
    assert {path.name for path in harness.workspace.iterdir()} == {one, other}
    assert tools.read_file(other) == "beside"
    harness.told("write_file", path=other, content="it exists")


def test_directory_that_looks_the_same_is_reported(harness: ToolHarness) -> None:
    """Nothing is created in a second one beside it; names that differ in case are different."""
    harness.told("write_file", path="caf\u00e9/a", content="x")
    reason = harness.refused("write_file", path="cafe\u0301/sub/b", content="x")
    assert "is not created beside '/workspace/caf\u00e9', whose name looks the same" in reason
    assert "but '/workspace/caf\u00e9/a', whose name" in harness.refused("read_file", path="cafe\u0301/a")
    assert "but '/workspace/caf\u00e9', whose name" in harness.refused("list_directory", path="cafe\u0301")
    harness.told("write_file", path="CAF\u00c9/a", content="x")


# -- editing --------------------------------------------------------------------------------------------------------


def test_edit_replaces_the_one_place(harness: ToolHarness) -> None:
    """Exactly, whatever the texts hold."""
    harness.told("write_file", path="a.py", content="def f():\n    return 1\n\ndef g():\n    return 2\n")
    said = harness.told("edit_file", path="a.py", old="    return 2\n", new="    return '\\1 $& 日'\n")
    assert said == "changed /workspace/a.py at line 5: 13 characters replaced by 21"
    assert harness.told("read_file", path="a.py").endswith("def g():\n    return '\\1 $& 日'\n")


@pytest.mark.parametrize(
    ("text", "old", "reason"),
    [
        ("a b a\na", "a", "'old' is 3 times in '/a', at the lines 1, 1, 2; nothing was changed"),
        ("aaa", "aa", "'old' is 2 times in '/a', at the lines 1, 1; nothing was changed"),
        ("x\n" * 30, "x", "'old' is 30 times in '/a', at the lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...; nothing"),
        ("abc", "x", "'old' is not in '/a'; nothing was changed"),
        ("one\n\ttwo\n    three\n", "two\nthree", "'old' is not in '/a': it is at line 2 but for white space, copy"),
        ("a\r\nb\r\n", "a\nb", "'old' is not in '/a': the file's lines end in '\\r\\n'; nothing was changed"),
        ("abc", "", "'old' is empty"),
        ("abc", "new", "'old' and 'new' are the same"),
    ],
)
def test_edit_that_is_not_clear_is_refused(text: str, old: str, reason: str) -> None:
    """How many times and where; the place that was nearly meant."""
    with pytest.raises(ToolError) as caught:
        replaced("/a", text, old, "new")
    assert reason in caught.value.reason


def test_refused_edit_changes_nothing(harness: ToolHarness) -> None:
    """Not even the time of the file."""
    harness.told("write_file", path="a", content="x x")
    before = (harness.workspace / "a").stat()
    harness.refused("edit_file", path="a", old="x", new="y")
    after = (harness.workspace / "a").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_edits_at_the_same_time_are_all_made(harness: ToolHarness) -> None:
    """Calls of one message may run side by side."""
    harness.told("write_file", path="a", content="".join(f"<{number}>" for number in range(20)))
    threads = [
        threading.Thread(
            target=harness.told, args=("edit_file",), kwargs={"path": "a", "old": f"<{n}>", "new": f"[{n}]"}
        )
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert harness.told("read_file", path="a") == "".join(f"[{number}]" for number in range(20))


# -- listing and searching ------------------------------------------------------------------------------------------


def test_directory_is_listed_sorted_with_sizes(harness: ToolHarness) -> None:
    """Directories are marked; every way to name it is the same."""
    for path in ("b.txt", "a/x", "C", ".hidden"):
        harness.told("write_file", path=path, content="12345")
    listed = "/workspace: 1 directories, 3 files\n.hidden (5 bytes)\nC (5 bytes)\na/\nb.txt (5 bytes)"
    assert harness.told("list_directory") == listed
    for path in (".", "", "./", "/workspace", "/workspace/"):
        assert harness.told("list_directory", path=path) == listed
    assert harness.told("list_directory", path="a") == "/workspace/a: 0 directories, 1 files\nx (5 bytes)"


def test_root_shows_what_the_agent_may_see(harness: ToolHarness) -> None:
    """Its folders, its rules and its memory; not the runtime's log."""
    (harness.workspace / "a").write_text("x")
    listed = harness.told("list_directory", path="/").splitlines()
    assert {"workspace/", "guideline.md (8 bytes)", "context_window_main.md (15 bytes)"} <= set(listed)
    assert not any("logs" in line for line in listed)


def test_large_directory_is_cut_with_a_count(harness: ToolHarness) -> None:
    """The model learns that there is more, and how to see it."""
    for number in range(510):
        (harness.workspace / f"f{number:03}").touch()
    lines = harness.told("list_directory").splitlines()
    title = "/workspace: 0 directories, 510 files"
    assert (lines[0], len(lines), lines[-1]) == (title, 502, "[... 10 more; go on with after='f499']")
    assert harness.call("list_directory").truncated
    rest = harness.call("list_directory", after="f499")
    assert rest.text.splitlines() == [title, *(f"f{number} (0 bytes)" for number in range(500, 510))]
    assert not rest.truncated


@pytest.fixture
def library(harness: ToolHarness) -> ToolHarness:
    """Some files to search."""
    files = {
        "a.py": "import os\n\ndef one():\n    return os\n",
        "b/c.py": "def two(): pass\r\nclass One: pass\n",
        "b/notes.md": "one def\n",
        ".git/config": "def hidden\n",
        "b/.cache/x.py": "def hidden\n",
    }
    for path, text in files.items():
        harness.told("write_file", path=path, content=text)
    (harness.workspace / "binary").write_bytes(b"def \xff\n")
    return harness


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": r"def \w+\("}, ["/workspace/a.py:3:1: def one():", "/workspace/b/c.py:1:1: def two(): pass"]),
        ({"pattern": "def", "glob": "*.md"}, ["/workspace/b/notes.md:1:5: one def"]),
        ({"pattern": "^import|^class"}, ["/workspace/a.py:1:1: import os", "/workspace/b/c.py:2:1: class One: pass"]),
        ({"pattern": "pass$", "path": "b"}, ["/workspace/b/c.py:2:12: class One: pass"]),
        ({"pattern": "ONE", "ignore_case": True, "path": "/workspace/a.py"}, ["/workspace/a.py:3:5: def one():"]),
        ({"pattern": "(?i)CLASS"}, ["/workspace/b/c.py:2:1: class One: pass"]),
        (
            {"pattern": r"(o)s\b|x{99}", "glob": "a.*"},
            ["/workspace/a.py:1:8: import os", "/workspace/a.py:4:12:     return os"],
        ),
        ({"pattern": "def", "path": ".git"}, ["/workspace/.git/config:1:1: def hidden"]),
        ({"pattern": "^$", "glob": "b/*", "path": "."}, []),
        ({"pattern": "nowhere"}, []),
    ],
)
def test_search_gives_lines_with_their_numbers(
    library: ToolHarness, arguments: dict[str, Any], found: list[str]
) -> None:
    """In text files, but for hidden ones."""
    *lines, note = library.told("search_files", **arguments).splitlines()
    assert lines == found
    assert note.startswith(f"[{len(found)} matching lines in ")


def test_search_is_bounded(harness: ToolHarness) -> None:
    """In lines, in the length of each, and in time: a pattern that takes too long is told as one."""
    harness.told("write_file", path="many", content="x\n" * 1000 + "y" * 1000 + "\n")
    text = harness.told("search_files", pattern="x")
    assert text.count("\n/workspace/many:") == 199
    assert "stopped after 200 lines" in text
    assert harness.call("search_files", pattern="x").truncated
    rest = harness.told("search_files", pattern="x", after="/workspace/many:900").splitlines()
    assert rest[:-1] == [f"/workspace/many:{number}:1: x" for number in range(901, 1001)]
    assert "after must be PATH:LINE" in harness.refused("search_files", pattern="x", after="many")
    assert len(harness.told("search_files", pattern="y")) < 700
    harness.told("write_file", path="bad", content="x" * 100_000)
    assert "the pattern was given up" in harness.refused("search_files", pattern="(x+x+)+y", glob="bad")
    assert "not a regular expression" in harness.refused("search_files", pattern="(")
    with (harness.workspace / "huge").open("wb") as file:
        file.truncate(9 << 20)
    assert "1 files are larger than 8 MiB" in harness.told("search_files", pattern="q")


def test_search_goes_on_where_it_stopped(harness: ToolHarness) -> None:
    """By the argument of its note, over all files, and each match is shown once."""
    for name in ("a", "b", "c"):
        harness.told("write_file", path=name, content="x\ny\n" * 150)
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        *lines, note = harness.told("search_files", pattern="x", **after).splitlines()
        seen += lines
        more = re.search(r"go on with after='(.+)', or", note)
        if more is None:
            break
        after = {"after": more[1]}
    assert seen == [f"/workspace/{name}:{number}:1: x" for name in "abc" for number in range(1, 300, 2)]


def test_match_in_a_long_line_is_shown_with_what_is_around_it(harness: ToolHarness) -> None:
    """Its column leads to it, and the note says how to read on."""
    harness.told("write_file", path="a", content="first\n" + "x" * 50_000 + "needle" + "y" * 50_000 + "\n")
    result = harness.call("search_files", pattern="need(le)")
    line, note = result.text.splitlines()
    assert line == "/workspace/a:2:50001: ..." + "x" * 100 + "needle" + "y" * 294 + "..."
    assert result.truncated
    assert "1 long lines are shown in part, around the match" in note
    assert harness.told("read_file", path="a", start_line=2, start_column=50_001).startswith("needleyyy")


def test_match_over_several_lines_is_shown_by_its_lines(harness: ToolHarness) -> None:
    harness.told("write_file", path="a", content="b\na b\nc d\nb\n")
    lines = harness.told("search_files", pattern="b\nc").splitlines()[:-1]
    assert lines == ["/workspace/a:2:3: a b", "/workspace/a:3:1: c d"]


def test_search_in_nothing_is_told(harness: ToolHarness) -> None:
    """A missing directory is not an empty result."""
    assert harness.refused("search_files", pattern="x", path="nowhere") == "there is no '/workspace/nowhere'"


# -- safety ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "logical"),
    [
        ("notes.txt", "/workspace/notes.txt"),
        ("./a", "/workspace/a"),
        ("././a/b", "/workspace/a/b"),
        ("workspace/a", "/workspace/workspace/a"),
        ("/workspace/a", "/workspace/a"),
        ("/storage/x", "/storage/x"),
        ("~/x", "/workspace/~/x"),
        (" a ", "/workspace/ a "),
        ("C:/x", "/workspace/C:/x"),
    ],
)
def test_path_of_a_model_becomes_a_logical_one(given: str, logical: str) -> None:
    """Relative to the workspace, and otherwise as it stands."""
    assert file_path(given) == logical
    assert directory_path(given + "/") == logical


@pytest.mark.parametrize("given", ["..", "../a", "a/..", "/workspace/../workspace/a", "./../a", "/..", "a/../b"])
def test_two_dots_are_refused_wherever_they_lead(harness: ToolHarness, given: str) -> None:
    """Also when they would stay inside, and the reason says so."""
    for tool, more in OPERATIONS.items():
        assert "'..' is never followed" in harness.refused(tool, path=given, **more)


@pytest.mark.parametrize("tool", OPERATIONS)
def test_no_hostile_path_gets_out_in_or_around(harness: ToolHarness, tmp_path: Path, tool: str) -> None:
    """The corpus of the gate against each tool: a reason, or a file of the agent's own; nothing else is touched."""
    (tmp_path / "secret").write_text("secret")
    outside = {path: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    for hostile in REFUSED:
        result = harness.call(tool, path=hostile.path, **OPERATIONS[tool])
        assert str(tmp_path) not in result.text
        relative = not hostile.path.startswith("/")
        named = f"/workspace/{hostile.path.removeprefix('./')}" if relative else hostile.path
        directory = tool in ("list_directory", "search_files")
        if not directory and not legal(named):
            assert not result.ok, hostile
        result.text.encode()
    assert {path: path.read_text() for path in tmp_path.iterdir() if path.is_file()} == outside
    assert set(tmp_path.iterdir()) == {harness.root, *outside}


def legal(path: str) -> bool:
    """Whether the gate takes a path."""
    try:
        validate_path(path)
    except InvalidPathError:
        return False
    return True


def test_literal_paths_mean_what_they_say(harness: ToolHarness) -> None:
    """What only looks like a way out is a file of that name in the workspace."""
    for path in LITERAL:
        name = "/workspace" + path
        if legal(name) and harness.call("write_file", path=name, content=path).ok:
            assert harness.told("read_file", path=name) == path
            assert os.path.lexists(harness.workspace / path[1:])
            (harness.workspace / path[1:]).unlink()


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/boot/x", "/proc/self/environ", "/logs/operations.jsonl", "/workspacex/a"]
)
def test_system_directories_and_the_runtime_are_refused(harness: ToolHarness, path: str) -> None:
    """With what the agent may use instead."""
    for tool, more in OPERATIONS.items():
        reason = harness.refused(tool, path=path, **more)
        assert "no grant covers" in reason
    assert "/workspace" in harness.refused("write_file", path=path, content="x")
    assert not (harness.root / "etc").exists()
    assert (harness.root / "logs/operations.jsonl").read_text() == "{}\n"


def test_rules_and_memory_are_for_reading(harness: ToolHarness) -> None:
    """The memory is changed by its own tool only."""
    for path in ("/guideline.md", "/context_window_main.md"):
        assert harness.told("read_file", path=path)
        assert "no grant covers write" in harness.refused("write_file", path=path, content="x")


def test_links_lead_nowhere(harness: ToolHarness, tmp_path: Path) -> None:
    """To a file, to a directory, hard or symbolic: refused, and not followed by a search."""
    (tmp_path / "secret").write_text("secret\n")
    (harness.workspace / "link").symlink_to(tmp_path / "secret")
    (harness.workspace / "up").symlink_to(tmp_path)
    os.link(tmp_path / "secret", harness.workspace / "hard")
    for path in ("link", "up/secret", "hard"):
        for tool, more in OPERATIONS.items():
            if tool in ("read_file", "write_file", "edit_file"):
                assert "link" in harness.refused(tool, path=path, **more)
    for path in ("/workspace", "up", "link"):
        assert "secret\n" not in harness.call("search_files", pattern="secret", path=path).text
    assert (tmp_path / "secret").read_text() == "secret\n"
