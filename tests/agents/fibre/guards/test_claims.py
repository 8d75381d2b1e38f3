"""Liars: each claim is held against the files, and what is wrong with it is told."""

from pathlib import Path

import pytest

from cfs_agents.guards.claims import check_claims, relative
from cfs_agents.guards.ledger import ChangeLog


@pytest.fixture
def ledger(tmp_path: Path) -> ChangeLog:
    """A workspace in which `a` made a.txt, `b` made b.txt, and old.txt was there before."""
    (tmp_path / "old.txt").write_text("old")
    (tmp_path / "edited.txt").write_text("old")
    (tmp_path / "removed.txt").write_text("old")
    ledger = ChangeLog(tmp_path)
    ledger.mark("a")
    for agent, path, text in (("a", "a.txt", "1"), ("b", "b.txt", "2"), ("a", "edited.txt", "new"), ("a", "empty", "")):
        with ledger.writing(agent, path):
            (tmp_path / path).write_text(text)
    (tmp_path / "removed.txt").unlink()
    return ledger


def told(ledger: ChangeLog, **details: object) -> tuple[str, ...]:
    return check_claims(details, "a", ledger.since("a"), ledger)


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"created_files": []},
        {"created_files": ["a.txt"]},
        {"created_files": ["/workspace/a.txt", "./a.txt"], "logs": "fine"},
        {"changed_files": ["edited.txt"], "deleted_files": ["removed.txt"]},
    ],
)
def test_what_is_so_is_not_complained_of(ledger: ChangeLog, details: dict[str, object]) -> None:
    assert told(ledger, **details) == ()


@pytest.mark.parametrize(
    ("key", "claim", "complaint"),
    [
        ("created_files", ["none.txt"], "claimed, but not there: none.txt"),
        ("created_files", ["empty"], "claimed, but empty: empty"),
        ("created_files", ["b.txt"], "claimed, but made by others: b.txt"),
        ("created_files", ["old.txt"], "claimed, but nothing changed: old.txt"),
        ("modified_files", ["old.txt"], "claimed, but nothing changed: old.txt"),
        ("deleted_files", ["old.txt"], "claimed as deleted, but there: old.txt"),
        ("deleted_files", ["never.txt"], "claimed, but nothing changed: never.txt"),
        ("created_files", ["/etc/passwd"], "claimed, but no path of the workspace: /etc/passwd"),
        ("created_files", ["../up"], "claimed, but no path of the workspace: ../up"),
        ("created_files", "a.txt", "created_files is no list of paths"),
        ("created_files", [1], "created_files is no list of paths"),
    ],
)
def test_what_is_not_so_is_told(ledger: ChangeLog, key: str, claim: object, complaint: str) -> None:
    assert told(ledger, **{key: claim}) == (complaint,)


def test_many_lies_are_told_in_few_words(ledger: ChangeLog) -> None:
    (complaint,) = told(ledger, created_files=[f"{number}.txt" for number in range(500)])
    assert complaint == "claimed, but not there: 0.txt, 1.txt, 2.txt, 3.txt, 4.txt..."


def test_a_chinese_parent_reads_chinese(ledger: ChangeLog) -> None:
    said = check_claims({"created_files": ["none.txt"]}, "a", ledger.since("a"), ledger, "zh")
    assert said == ("声称有，但不存在：none.txt",)


@pytest.mark.parametrize("path", ["", "/workspace", "/storage/x", "a//b", "a\nb"])
def test_what_is_no_path_of_the_workspace(path: str) -> None:
    assert relative(path) is None
