"""The ledger: what became of each file of a shared workspace, and through whom, also after a kill."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs_agents.guards.claims import check_claims
from cfs_agents.guards.ledger import ChangeLog
from cfs_agents.guards.report import ChangedFile, Report
from cfs_agents.tools.paths import escaped_name, unescaped_name
from cfs_agents.tree.listing import tree
from cfs_agents.tree.record import SubAgentRecord, report_of, state_of
from cfs_agents.tree.session_folder import SessionFolder

ODD = st.sampled_from(
    [b"\xff", b"\n", b"\x1b[2J", b"\\", b"*", b"?", b"\xed\xa0\x80", b"\\xff", "\u202e".encode(), b"x" * 255]
)
NAMES = st.one_of(ODD, st.binary(min_size=1, max_size=255)).filter(
    lambda name: not {0, ord("/")} & set(name) and not name.startswith(b".")
)
"""Names that a disk takes: any bytes but `/` and NUL; pictures of a folder leave out those that begin with a dot."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    return work


@pytest.fixture
def ledger(root: Path) -> ChangeLog:
    return ChangeLog(root, root.parent / "ledger.jsonl")


def write(ledger: ChangeLog, root: Path, agent: str, path: str, text: str) -> None:
    with ledger.writing(agent, path):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_what_is_created_changed_and_deleted_is_told_with_who_did_it(ledger: ChangeLog, root: Path) -> None:
    (root / "old.txt").write_text("old")
    (root / "gone.txt").write_text("gone")
    ledger.mark("a")
    write(ledger, root, "a", "new/one.txt", "1")
    write(ledger, root, "b", "old.txt", "new")
    (root / "gone.txt").unlink()
    assert ledger.since("a") == (
        ChangedFile("gone.txt", "deleted"),
        ChangedFile("new/one.txt", "created", "a"),
        ChangedFile("old.txt", "changed", "b"),
    )


def test_what_is_again_as_it_was_has_not_changed(ledger: ChangeLog, root: Path) -> None:
    (root / "a.txt").write_text("same")
    ledger.mark("a")
    write(ledger, root, "a", "a.txt", "other")
    write(ledger, root, "a", "a.txt", "same")
    write(ledger, root, "a", "b.txt", "short-lived")
    (root / "b.txt").unlink()
    assert ledger.since("a") == ()


def test_a_rewritten_file_with_the_same_content_is_unchanged(ledger: ChangeLog, root: Path) -> None:
    (root / "a.txt").write_text("same")
    ledger.mark("a")
    (root / "a.txt").unlink()
    (root / "a.txt").write_text("same")
    os.utime(root / "a.txt", (1, 1))
    assert ledger.since("a") == ()


def test_each_agent_counts_from_its_own_mark(ledger: ChangeLog, root: Path) -> None:
    ledger.mark("a")
    write(ledger, root, "a", "a.txt", "1")
    ledger.mark("b")
    assert ledger.since("b") == ()
    assert ledger.since("a") == (ChangedFile("a.txt", "created", "a"),)
    ledger.mark("a", again=False)
    assert len(ledger.since("a")) == 1
    ledger.mark("a")
    assert ledger.since("a") == ()


def test_an_agent_that_had_a_hand_in_a_file_is_named_to_whom_it_concerns(ledger: ChangeLog, root: Path) -> None:
    ledger.mark("a")
    ledger.mark("b")
    write(ledger, root, "a", "both.txt", "1")
    write(ledger, root, "b", "both.txt", "2")
    assert ledger.since("a") == (ChangedFile("both.txt", "created", "a"),)
    assert ledger.since("b") == (ChangedFile("both.txt", "created", "b"),)
    assert ledger.last_by("both.txt") == "b"


def test_what_a_command_changes_is_its_agents_doing(ledger: ChangeLog, root: Path) -> None:
    ledger.mark("a")
    ledger.begin_command("a")
    (root / "made.txt").write_text("1")
    ledger.end_command("a")
    (root / "later.txt").write_text("1")
    assert ledger.since("a") == (ChangedFile("later.txt", "created"), ChangedFile("made.txt", "created", "a"))


def test_of_two_commands_at_a_time_nobody_knows_which_did_it(ledger: ChangeLog, root: Path) -> None:
    ledger.mark("a")
    ledger.begin_command("a")
    ledger.begin_command("b")
    (root / "made.txt").write_text("1")
    ledger.end_command("b")
    (root / "also.txt").write_text("1")
    ledger.end_command("a")
    assert ledger.since("a") == (ChangedFile("also.txt", "created", "a"), ChangedFile("made.txt", "created"))


def test_a_new_process_knows_all_of_it(ledger: ChangeLog, root: Path) -> None:
    (root / "before.txt").write_text("0")
    ledger.mark("a")
    write(ledger, root, "a", "a.txt", "1")
    (root / "before.txt").write_text("changed while nobody looked")
    again = ChangeLog(root, root.parent / "ledger.jsonl")
    assert again.since("a") == (ChangedFile("a.txt", "created", "a"), ChangedFile("before.txt", "changed"))
    assert again.known_to("a", "a.txt") == again.present("a.txt")


_READ = """
import sys
from pathlib import Path
from cfs_agents.guards.ledger import ChangeLog

opened = []
ledger = ChangeLog(Path(sys.argv[1]), Path(sys.argv[2]))
sys.addaudithook(lambda event, values: opened.append(str(values[0])) if event == "open" else None)
ledger.mark("a")
print(sum(name.endswith(".py") and "/" not in name for name in opened))
"""


def test_a_new_process_reads_only_files_that_have_changed(tmp_path: Path) -> None:
    """What the others contain is known by their times. The files of this folder have been there for long enough."""
    root, file = Path(__file__).parent, tmp_path / "ledger.jsonl"

    def read() -> int:
        command = [sys.executable, "-c", _READ, str(root), str(file)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert read() == len(list(root.glob("*.py")))
    assert read() == 0


def test_a_write_that_a_kill_has_broken_off_is_entered_for_its_agent(ledger: ChangeLog, root: Path) -> None:
    ledger.mark("a")
    ledger.begins("a", "a.txt")
    (root / "a.txt").write_text("written, and not entered")
    again = ChangeLog(root, root.parent / "ledger.jsonl")
    assert again.since("a") == (ChangedFile("a.txt", "created", "a"),)


@pytest.mark.parametrize("torn", [b'{"path": "x", "bef', b"\xff\xfe\n", b"{}\n", b"[1]\n"])
def test_a_torn_end_is_cut_off(ledger: ChangeLog, root: Path, torn: bytes) -> None:
    ledger.mark("a")
    write(ledger, root, "a", "a.txt", "1")
    file = root.parent / "ledger.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + torn)
    again = ChangeLog(root, file)
    assert file.read_bytes() == whole
    assert again.since("a") == (ChangedFile("a.txt", "created", "a"),)


def test_links_and_what_programs_keep_for_themselves_are_passed_over(ledger: ChangeLog, root: Path) -> None:
    ledger.mark("a")
    (root / "link").symlink_to("/etc/passwd")
    for folder in (".git", "node_modules", "deep/.venv"):
        (root / folder).mkdir(parents=True)
        (root / folder / "file").write_text("x")
    assert ledger.since("a") == ()
    assert ledger.size("link") is None


def test_a_very_large_file_is_told_by_its_size_and_time(ledger: ChangeLog, root: Path) -> None:
    large = root / "large.bin"
    with large.open("wb") as file:
        file.truncate(64 << 20)
    ledger.mark("a")
    with large.open("ab") as file:
        file.write(b"x")
    assert ledger.since("a") == (ChangedFile("large.bin", "changed"),)


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True))
def test_any_name_survives_ledger_report_and_reload(names: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as place:
        root, file = Path(place, "workspace"), Path(place, "ledger.jsonl")
        root.mkdir()
        ledger = ChangeLog(root, file)
        ledger.mark("a")
        ledger.begin_command("a")
        for name in names:
            Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_text("x")
        ledger.end_command("a")

        facts = ledger.since("a")
        assert {os.fsencode(unescaped_name(change.path)) for change in facts} == set(names)
        assert all(change == ChangedFile(change.path, "created", "a") for change in facts)
        assert check_claims({"created_files": [change.path for change in facts]}, "a", facts, ledger) == ()
        assert (
            len(tree({"/workspace": root, "/storage": root.parent / "storage"}).encode().decode().splitlines())
            == len(names) + 2
        )

        folder = SessionFolder(Path(place, "session"), link=None)
        report = Report("a", "success", "made", facts=facts)
        record = SubAgentRecord(session_id="main", agent_id="a", agent_name="a", report=state_of(report))
        folder.save(record.model_dump(mode="json"), [])
        loaded = SessionFolder(Path(place, "session"), link=None).load()
        assert loaded is not None
        assert report_of(SubAgentRecord.model_validate(loaded.status)) == report
        report.text().encode()
        for line in file.read_bytes().splitlines():
            json.dumps(json.loads(line.decode()), ensure_ascii=False).encode()
        again = ChangeLog(root, file)
        assert again.since("a") == facts
        Path(os.fsdecode(os.fsencode(root) + b"/" + names[0])).unlink()
        assert len(again.since("a")) == len(names) - 1


@given(NAMES)
def test_an_escaped_name_is_one_line_of_text_and_can_be_read_back(name: bytes) -> None:
    text = escaped_name(os.fsdecode(name))
    text.encode()
    assert len(text.splitlines()) == 1
    assert os.fsencode(unescaped_name(text)) == name


def test_link_in_the_place_of_a_folder_leads_the_ledger_nowhere(ledger: ChangeLog, root: Path) -> None:
    """A file that was in a folder is gone when the folder is a link: what is outside is neither read nor told."""
    write(ledger, root, "a", "sub/secret", "inside")
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("outside")
    (outside / "other").write_text("outside")
    ledger.mark("a")
    (root / "sub").rename(root / "moved")
    (root / "sub").symlink_to(outside)
    assert ledger.present("sub/secret") is None
    assert ledger.size("sub/secret") is None
    assert {change.path for change in ledger.since("a")} == {"moved/secret", "sub/secret"}
    assert [change.kind for change in ledger.since("a") if change.path == "sub/secret"] == ["deleted"]


def test_pipe_in_the_place_of_a_file_does_not_hold_up_the_ledger(ledger: ChangeLog, root: Path) -> None:
    """Nothing writes to it."""
    write(ledger, root, "a", "file", "text")
    (root / "file").unlink()
    os.mkfifo(root / "file")
    assert ledger.present("file") is None
