"""A report: short, with the facts beside what is claimed."""

from cfs_agents.guards.report import ChangedFile, Report


def test_a_success_says_what_the_child_made_and_asks_to_verify() -> None:
    report = Report("main/a", "success", " Wrote it.\n", facts=(ChangedFile("a.txt", "created", "main/a"),))
    assert report.text() == "[main/a success]\nWrote it.\ncreated: a.txt\nVerify the files yourself."
    assert report.text("zh") == "[main/a 成功]\nWrote it.\n新建: a.txt\n请自己核实文件。"


def test_what_others_changed_meanwhile_is_told_apart() -> None:
    facts = (
        ChangedFile("b.txt", "created", "main/b"),
        ChangedFile("a.txt", "changed", "main/a"),
        ChangedFile("c.txt", "deleted"),
    )
    assert Report("main/a", "failed", facts=facts).text().splitlines() == [
        "[main/a failed]",
        "created (by main/b): b.txt",
        "changed: a.txt",
        "deleted (by unknown): c.txt",
    ]


def test_reasons_stand_before_the_facts() -> None:
    report = Report("main/a", "unverified", "Wrote a.txt.", reasons=("claimed, but not there: a.txt",))
    assert report.text().splitlines()[2] == "claimed, but not there: a.txt"
    assert not report.ok


def test_many_files_and_long_words_stay_short() -> None:
    facts = tuple(ChangedFile(f"file_{number:03}.txt", "created", "main/a") for number in range(500))
    text = Report("main/a", "success", "word " * 5_000, facts=facts).text()
    assert "and 492 more" in text
    assert len(text) < 1_000
