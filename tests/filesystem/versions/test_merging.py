"""Three-way merges of workspaces: of lines as `git merge-file` does it, of trees without any loss."""

import hashlib
import random
import subprocess
from itertools import count
from pathlib import Path

import pytest

from cfs_filesystem.versions import Entry, EntryType
from cfs_filesystem.versions.merging import Merge, PathConflict, merge_lines, merge_trees

NAMES = ("main", "copy")


def edited(lines: list[str], chance: random.Random, new: "count[int]") -> list[str]:
    lines = list(lines)
    for _ in range(chance.randint(0, 3)):
        at = chance.randint(0, len(lines))
        lines[at : at + chance.randint(0, 2)] = [str(next(new)) for _ in range(chance.randint(0, 2))]
    return lines


@pytest.mark.external
def test_lines_merge_as_git_merges_them(tmp_path: Path) -> None:
    """All lines differ, so that there is one difference only, and both must agree on each case."""
    chance, new, clean = random.Random(1), count(), 0
    for _ in range(300):
        base = [str(next(new)) for _ in range(chance.randint(0, 14))]
        ours = edited(base, chance, new)
        theirs = ours if chance.random() < 0.1 else edited(base, chance, new)
        texts = ["".join(f"{line}\n" for line in lines).encode() for lines in (ours, base, theirs)]
        if chance.random() < 0.3:
            texts = [text.removesuffix(b"\n") for text in texts]
        for name, text in zip(("ours", "base", "theirs"), texts, strict=True):
            (tmp_path / name).write_bytes(text)
        git = subprocess.run(
            ["git", "merge-file", "-p", "ours", "base", "theirs"], cwd=tmp_path, capture_output=True, check=False
        )
        assert merge_lines(texts[1], texts[0], texts[2]) == (None if git.returncode else git.stdout)
        clean += not git.returncode
    assert 50 < clean < 250


def test_bytes_that_are_no_text_do_not_merge() -> None:
    assert merge_lines(b"a\n\n\nb\n", b"A\n\n\nb\n", b"a\n\n\n\0\n") is None


def file(content: str, mode: int = 0o644) -> Entry:
    data = content.encode()
    return Entry("", 0, 0.0, EntryType.FILE, mode, len(data), hashlib.sha256(data).hexdigest(), content)


def link(target: str) -> Entry:
    return Entry("", 0, 0.0, EntryType.LINK, 0o777, len(target), hashlib.sha256(target.encode()).hexdigest(), target)


FOLDER = Entry("", 0, 0.0, EntryType.FOLDER, 0o755, 0, "")
A, B, C = file("1\n2\n3\n"), file("one\n2\n3\n"), file("1\n2\nthree\n")
D = file("eins\n2\n3\n")


def merged(base: dict[str, Entry], target: dict[str, Entry], source: dict[str, Entry]) -> tuple[Merge, dict[str, str]]:
    """Merge, and return also what the target has then."""
    merge = merge_trees(base, target, source, NAMES, lambda entry: entry.stamp.encode())
    result = {**target, **merge.entries}
    contents = {
        path: merge.texts[path].decode() if path in merge.texts else entry.stamp if entry.digest else "/"
        for path, entry in result.items()
        if entry is not None
    }
    return merge, contents


def test_what_one_side_has_changed_is_taken() -> None:
    base = {"a": A, "b": A, "gone": A, "mode": A}
    merge, contents = merged(
        base,
        {"a": B, "b": A, "gone": A, "mode": A, "own": B},
        {"a": A, "b": C, "mode": file(A.stamp, 0o755), "d": FOLDER, "d/new": D},
    )
    assert contents == {
        "a": B.stamp,
        "b": C.stamp,
        "mode": A.stamp,
        "own": B.stamp,
        "d": "/",
        "d/new": D.stamp,
    }
    assert merge.conflicts == ()
    assert set(merge.entries) == {"b", "gone", "mode", "d", "d/new"}


def test_lines_and_permissions_of_both_sides_come_together() -> None:
    merge, contents = merged({"a": A}, {"a": file(B.stamp, 0o755)}, {"a": C})
    assert contents == {"a": "one\n2\nthree\n"}
    entry = merge.entries["a"]
    assert entry is not None
    assert (entry.mode, entry.size, merge.conflicts) == (0o755, len("one\n2\nthree\n"), ())


def test_a_conflict_leaves_the_file_and_puts_both_sides_beside_it() -> None:
    merge, contents = merged({"a": A}, {"a": B}, {"a": D})
    assert contents == {"a": B.stamp, "a.conflict-main": B.stamp, "a.conflict-copy": D.stamp}
    assert merge.conflicts == (PathConflict("a", "changed", ("a", "a.conflict-main", "a.conflict-copy")),)


def test_names_of_conflicts_replace_nothing() -> None:
    """Not even a file that has such a name, and a long name is shortened."""
    _, contents = merged({"a": A}, {"a": B, "a.conflict-main": C}, {"a": D, "a.conflict-copy": C})
    assert contents == {
        "a": B.stamp,
        "a.conflict-main": C.stamp,
        "a.conflict-copy": C.stamp,
        "a.conflict-main.2": B.stamp,
        "a.conflict-copy.2": D.stamp,
    }
    long = "d/" + "ä" * 127
    _, contents = merged({"d": FOLDER, long: A}, {"d": FOLDER, long: B}, {"d": FOLDER, long: D})
    assert max(len(path.encode()) - 2 for path in contents) <= 255
    assert set(contents.values()) == {"/", B.stamp, D.stamp}


@pytest.mark.parametrize(
    ("target", "source", "contents", "reason"),
    [
        ({}, {"d": FOLDER, "d/a": B}, {"d": "/", "d/a": B.stamp}, "removed"),
        ({"d": FOLDER, "d/a": B}, {}, {"d": "/", "d/a": B.stamp}, "removed_by_source"),
        (
            {"d": B},
            {"d": FOLDER, "d/a": A, "d/b": C},
            {"d": B.stamp, "d.conflict-copy": "/", "d.conflict-copy/b": C.stamp},
            "type",
        ),
        (
            {"d": FOLDER, "d/a": B},
            {"d": D},
            {"d": "/", "d/a": B.stamp, "d.conflict-copy": D.stamp},
            "type",
        ),
        (
            {"d": link("elsewhere")},
            {"d": FOLDER, "d/a": B},
            {"d": "elsewhere", "d.conflict-copy": "/", "d.conflict-copy/a": B.stamp},
            "type",
        ),
    ],
)
def test_a_change_outlives_a_removal_and_what_becomes_something_else(
    target: dict[str, Entry], source: dict[str, Entry], contents: dict[str, str], reason: str
) -> None:
    merge, result = merged({"d": FOLDER, "d/a": A}, target, source)
    assert result == contents
    assert reason in {conflict.reason for conflict in merge.conflicts}


def test_random_trees_lose_nothing() -> None:
    """Each content that a side has made is in the result, as a file, or as the lines of one."""
    chance = random.Random(3)
    for _ in range(3000):
        new = count()
        base = tree({}, chance, new)
        target, source = tree(base, chance, new), tree(base, chance, new)
        merge, contents = merged(base, target, source)
        for path in contents:
            for above in (path[:at] for at, letter in enumerate(path) if letter == "/"):
                assert contents.get(above) == "/", (path, merge)
        lines = {line for content in contents.values() for line in content.splitlines()}
        old = {line for entry in base.values() for line in entry.stamp.splitlines()}
        for side in (target, source):
            for path, entry in side.items():
                if not (path in base and entry.equals(base[path])):
                    assert set(entry.stamp.splitlines()) - old <= lines, (path, base, target, source, contents)
        again = {path: entry for path, entry in {**target, **merge.entries}.items() if entry is not None}
        if not merge.texts:
            assert not merged(base, target, target)[0].entries
            assert not merged(source, again, source)[0].entries


def tree(before: dict[str, Entry], chance: random.Random, new: "count[int]") -> dict[str, Entry]:
    """Change a tree at random."""
    result = dict(before)
    for _ in range(chance.randint(0, 5)):
        path = chance.choice(["a", "b", "d", "d/a", "d/e", "d/e/a", "d.conflict-copy"])
        gone = {other for other in result if other == path or other.startswith(f"{path}/")}
        action = chance.choice(["write", "edit", "edit", "remove", "link"])
        content = result[path].stamp if path in result else ""
        if action == "edit" and content and result[path].type is EntryType.FILE:
            lines = content.splitlines()
            lines[chance.randrange(len(lines))] = f"line {next(new)}"
            content = "".join(f"{line}\n" for line in lines)
        else:
            content = "".join(f"line {next(new)}\n" for _ in range(4))
        for other in gone:
            del result[other]
        if action == "remove":
            continue
        for above in (path[:at] for at, letter in enumerate(path) if letter == "/"):
            if above in result and result[above].type is not EntryType.FOLDER:
                del result[above]
            result.setdefault(above, FOLDER)
        result[path] = link(content.strip().replace("\n", " ")) if action == "link" else file(content)
    return result
