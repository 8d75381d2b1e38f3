"""A write over what changed since it was read is refused, and told who was first."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cfs_agents.guards.claims import check_claims
from cfs_agents.guards.ledger import ChangeLog
from cfs_agents.guards.stale_writes import StaleWrites
from cfs_agents.tools import FileTools, ToolError, agent_grants
from cfs_agents.tools.reading import ReadRanges
from cfs_filesystem import DiskFileSystem

Make = Callable[[str], FileTools]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    place.mkdir()
    return place


@pytest.fixture
def ledger(work: Path) -> ChangeLog:
    return ChangeLog(work)


@pytest.fixture
def agent(work: Path, ledger: ChangeLog) -> Make:
    def make(name: str) -> FileTools:
        ledger.mark(name)
        return FileTools(disk.create_handle(agent_grants()), StaleWrites(ledger, name))

    disk = DiskFileSystem(work.parent)
    return make


def test_a_file_that_another_agent_made_meanwhile_is_not_overwritten(agent: Make, work: Path) -> None:
    a, b = agent("a"), agent("b")
    a.write_file("x.txt", "of a")
    with pytest.raises(ToolError, match=r"x\.txt was changed by a since you last read it"):
        b.write_file("x.txt", "of b")
    assert (work / "x.txt").read_text() == "of a"


def test_equal_content_is_no_conflict(agent: Make, work: Path, ledger: ChangeLog) -> None:
    """Also for a claim: who has written the file has not lied, although nothing changed."""
    a, b = agent("a"), agent("b")
    a.write_file("x.txt", "the same")
    b.write_file("x.txt", "the same")
    with pytest.raises(ToolError, match="changed by a"):
        agent("c").write_file("x.txt", "the other")
    for name in ("a", "b"):
        assert check_claims({"created_files": ["x.txt"]}, name, ledger.since(name), ledger) == ()
    assert check_claims({"created_files": ["x.txt"]}, "c", ledger.since("c"), ledger) != ()
    again = ChangeLog(work, work.parent / "ledger.jsonl")
    again.mark("b")
    with again.writing("b", "x.txt"):
        (work / "x.txt").write_text("the same")
    assert ChangeLog(work, work.parent / "ledger.jsonl").has_written("b", "x.txt"), "a kill forgets nothing"


def test_who_has_read_it_may_write_it(agent: Make, work: Path) -> None:
    a, b = agent("a"), agent("b")
    a.write_file("x.txt", "of a")
    b.write_file("x.txt", b.read_file("x.txt") + " and b")
    with pytest.raises(ToolError, match="changed by b"):
        a.write_file("x.txt", "of a again")
    a.read_file("x.txt", 1, 1)
    a.write_file("x.txt", "all of us")
    assert (work / "x.txt").read_text() == "all of us"


def test_who_wrote_it_last_may_write_it_again(agent: Make, work: Path) -> None:
    a = agent("a")
    for text in ("1", "2", "3"):
        a.write_file("x.txt", text)
    assert (work / "x.txt").read_text() == "3"


def test_what_was_there_before_may_be_overwritten_unread(agent: Make, work: Path) -> None:
    (work / "old.txt").write_text("old")
    agent("a").write_file("old.txt", "new")
    assert (work / "old.txt").read_text() == "new"


def test_what_an_agent_made_is_not_overwritten_unread_by_those_who_came_later(agent: Make, work: Path) -> None:
    agent("a").write_file("x.txt", "of a")
    late = agent("late")
    with pytest.raises(ToolError, match="changed by a"):
        late.write_file("x.txt", "of late")
    late.read_file("x.txt")
    late.write_file("x.txt", "of both")
    assert (work / "x.txt").read_text() == "of both"


def test_a_person_who_changed_it_is_respected_too(agent: Make, work: Path) -> None:
    a = agent("a")
    a.write_file("x.txt", "of a")
    (work / "x.txt").write_text("of a person")
    with pytest.raises(ToolError, match="changed by somebody outside"):
        a.write_file("x.txt", "of a")


def test_a_file_that_is_gone_may_be_written_anew(agent: Make, work: Path) -> None:
    a = agent("a")
    a.write_file("x.txt", "1")
    (work / "x.txt").unlink()
    a.write_file("x.txt", "2")


def test_an_edit_works_on_what_there_is(agent: Make, work: Path) -> None:
    a, b = agent("a"), agent("b")
    a.write_file("x.txt", "one two")
    b.edit_file("x.txt", "two", "three")
    assert (work / "x.txt").read_text() == "one three"
    with pytest.raises(ToolError, match="changed by b"):
        a.write_file("x.txt", "one")


def test_twenty_agents_write_one_file_and_nobody_loses_a_word(agent: Make, work: Path) -> None:
    agents = {f"agent{number}": agent(f"agent{number}") for number in range(20)}
    refused: list[str] = []

    def work_on(name: str) -> None:
        tools = agents[name]
        text = f"{name}\n"
        while True:
            try:
                tools.write_file("shared.txt", text)
            except ToolError as error:
                refused.append(error.reason)
                text = tools.read_file("shared.txt") + f"{name}\n"
            else:
                return

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(work_on, agents))
    assert sorted((work / "shared.txt").read_text().split()) == sorted(agents)
    assert len(refused) >= 19
    assert all("was changed by agent" in reason for reason in refused)


def test_who_has_ended_writes_nothing_more(agent: Make, work: Path, ledger: ChangeLog) -> None:
    gate = StaleWrites(ledger, "a")
    gate.close()
    tools = FileTools(DiskFileSystem(work.parent).create_handle(agent_grants()), gate)
    with pytest.raises(ToolError, match="you have ended"):
        tools.write_file("x.txt", "late")
    with pytest.raises(ToolError, match="you have ended"):
        tools.edit_file("x.txt", "a", "b")
    gate.open()
    tools.write_file("x.txt", "in time")


def test_other_folders_are_not_looked_at(agent: Make) -> None:
    a, b = agent("a"), agent("b")
    a.write_file("/storage/x.txt", "1")
    b.write_file("/storage/x.txt", "2")
    assert a.read_file("/storage/x.txt") == "2"


def lines(first: int, last: int, word: str = "line") -> str:
    return "".join(f"{word} {number}\n" for number in range(first, last + 1))


def test_what_was_added_behind_a_page_is_not_dropped(agent: Make, work: Path) -> None:
    """A page is not the whole file: only the ranges that the agent saw count as read."""
    a, b = agent("a"), agent("b")
    a.write_file("x.txt", lines(1, 2000))
    text = b.read_file("x.txt")
    a.write_file("x.txt", lines(1, 2500))
    with pytest.raises(ToolError) as refusal:
        b.write_file("x.txt", text + "of b\n")
    assert refusal.value.reason == (
        "x.txt was changed by a since you last read it, and is not overwritten. You have not read its lines 2001-2500."
        " Read them: read_file(path='/workspace/x.txt', start_line=2001, end_line=2500). Then write what both need."
    )
    text += b.read_file("x.txt", 2001, 2500)
    b.write_file("x.txt", "of b\n")
    assert (work / "x.txt").read_text() == "of b\n"


def test_a_page_of_an_unchanged_file_is_a_part_of_it(agent: Make, work: Path) -> None:
    a, b = agent("a"), agent("b")
    a.write_file("x.txt", lines(1, 4500))
    for start, rest in ((1, "2001-4500"), (2001, "4001-4500")):
        b.read_file("x.txt", start)
        with pytest.raises(ToolError, match=f"read only a part of it, and not its lines {rest}"):
            b.write_file("x.txt", "new")
    b.read_file("x.txt", 4001)
    b.write_file("x.txt", "new")
    assert (work / "x.txt").read_text() == "new"


def test_only_the_lines_that_changed_have_to_be_read_again(agent: Make, work: Path) -> None:
    """In the middle, with another length; what is before and behind them is still known."""
    a, b = agent("a"), agent("b")
    a.write_file("x.txt", lines(1, 100))
    b.read_file("x.txt")
    a.edit_file("x.txt", "line 50\n", "a longer line 50\nand one more\n")
    with pytest.raises(ToolError, match=r"not read its lines 50-51\. Read them: .*start_line=50, end_line=51\)"):
        b.write_file("x.txt", "new")
    b.read_file("x.txt", 50, 50)
    with pytest.raises(ToolError, match=r"not its lines 51\."):
        b.write_file("x.txt", "new")
    b.read_file("x.txt", 51, 51)
    b.write_file("x.txt", "new")
    assert (work / "x.txt").read_text() == "new"


def test_an_edit_reads_nothing_but_what_it_replaces(agent: Make) -> None:
    """It is allowed in any file, and what was read before it stays read."""
    a, b = agent("a"), agent("b")
    a.write_file("x.txt", lines(1, 30))
    b.edit_file("x.txt", "line 7\n", "seven\n")
    with pytest.raises(ToolError, match="read only a part of it, and not its lines 1-6, 8-30"):
        b.write_file("x.txt", "new")
    b.read_file("x.txt", 1, 20)
    b.edit_file("x.txt", "line 3\n", "three\nand a half\n")
    with pytest.raises(ToolError, match="not its lines 22-31"):
        b.write_file("x.txt", "new")
    b.read_file("x.txt", 22)
    b.write_file("x.txt", "new")


def test_who_read_an_empty_file_does_not_know_what_came_into_it(agent: Make, work: Path) -> None:
    (work / "x.txt").touch()
    a, b = agent("a"), agent("b")
    b.read_file("x.txt")
    a.write_file("x.txt", "of a\n")
    with pytest.raises(ToolError, match=r"changed by a since .* not read its lines 1"):
        b.write_file("x.txt", "of b\n")


def test_a_file_that_became_binary_is_not_overwritten(agent: Make, work: Path) -> None:
    a = agent("a")
    a.write_file("x.txt", "of a\n")
    (work / "x.txt").write_bytes(b"\xff\x00")
    with pytest.raises(ToolError, match="changed by somebody outside since you last read it"):
        a.write_file("x.txt", "of a again\n")


class Reading(RuleBasedStateMachine):
    """Reads and edits of one agent and changes by others: what counts as read is what the agent has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = ReadRanges()
        self.present: list[tuple[str, bool]] = [(f"{n}\n", False) for n in range(6)]
        """The lines, each a text of its own, and whether the agent has seen it."""
        self.counter = 6

    @property
    def text(self) -> str:
        return "".join(line for line, _ in self.present)

    def fresh(self) -> str:
        self.counter += 1
        return f"{self.counter}\n"

    @rule(first=st.integers(0, 8), count=st.integers(1, 4))
    def read(self, first: int, count: int) -> None:
        last = min(first + count, len(self.present))
        if first < last:
            start = sum(len(line) for line, _ in self.present[:first])
            end = sum(len(line) for line, _ in self.present[:last])
            self.ranges.add(self.text, start, end)
            self.present[first:last] = [(line, True) for line, _ in self.present[first:last]]

    @rule(at=st.integers(0, 8))
    def edit(self, at: int) -> None:
        if at < len(self.present):
            before, start = self.text, sum(len(line) for line, _ in self.present[:at])
            end = start + len(self.present[at][0])
            self.present[at] = (self.fresh(), True)
            self.ranges.edited(before, self.text, start, end)

    @rule(at=st.integers(0, 8))
    def others_insert(self, at: int) -> None:
        self.present.insert(at, (self.fresh(), False))

    @rule(at=st.integers(0, 8))
    def others_change(self, at: int) -> None:
        if at < len(self.present):
            self.present[at] = (self.fresh(), False)

    @rule(at=st.integers(0, 8))
    def others_delete(self, at: int) -> None:
        del self.present[at : at + 1]

    @invariant()
    def nothing_unseen_counts_as_read(self) -> None:
        position = 0
        gaps = self.ranges.gaps(self.text)
        for line, seen in self.present:
            if not seen:
                assert any(start < position + len(line) and position < end for start, end in gaps)
            position += len(line)

    @rule()
    def read_what_is_missing(self) -> None:
        for start, end in self.ranges.gaps(self.text):
            self.ranges.add(self.text, start, end)
        self.present = [(line, True) for line, _ in self.present]
        assert not self.ranges.gaps(self.text)


TestReading = Reading.TestCase
TestReading.settings = settings(stateful_step_count=20)
