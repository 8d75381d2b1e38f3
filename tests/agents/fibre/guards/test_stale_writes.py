"""A write over what changed since it was read is refused, and told who was first."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cfs_agents.fibre.guards.files import ChangeLog, StaleWrites, check_claims
from cfs_agents.tools import FileTools, ToolError, agent_grants
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
