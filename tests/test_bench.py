"""Benchmarks run and say what they found: their counts hold on any machine, their times are judged by people."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine_bench import report, w10_edits, w11_agents
from engine_bench.sides import Answer
from engine_bench.tables import Verdict, table
from gateway import own_samples
from tests.postgres import programs

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / "research/engine_bench/engine.py"
HARNESS = ROOT / "research/harness_bench/harness.py"


NO_PROGRAMS = {"store_peers.py", "train.py"}  # the first is started by another bench, the second needs PyTorch
HELP = """
import contextlib, io, runpy, sys
for program in sys.argv[1:]:
    sys.argv, shown, code = [program, "--help"], io.StringIO(), None
    with contextlib.redirect_stdout(shown):
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as end:
            code = end.code
    print(program, code, "usage:" in shown.getvalue())
"""


def test_each_benchmark_starts() -> None:
    """All that it imports is there, and it says how it is used. What they find is checked with --slow, and below."""
    files = [*ROOT.glob("bench/*.py"), *ROOT.glob("research/*/*.py")]
    programs = [str(file) for file in files if "__main__" in file.read_text() and file.name not in NO_PROGRAMS]
    assert len(programs) > 40
    paths = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(str(Path(program).parent) for program in programs))}
    command = [sys.executable, "-c", HELP, *programs]
    done = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"{program} 0 True" for program in programs], done.stderr


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a smoke run of two workloads without peers wrote, with a cache folder of its own."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, str(ENGINE), "--smoke", "--peers", "", "--only", "W3,W7"]
    done = subprocess.run(
        [*command, "--json", str(folder / "figures.json")],
        env=os.environ | {"XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "figures.json").read_text())
    return found


def test_fan_out_computes_each_token_once(figures: dict[str, Any]) -> None:
    """W3 without a peer: four kinds of fan-out, none of which computes much more than the distinct tokens."""
    cases = figures["results"]["W3"]["figures"]["cases"]
    assert [case["kind"] for case in cases] == ["cold", "warm", "second level", "parent resumes"]
    assert all(case["evaluated"] <= 1.05 * case["ideal"] and not case["failed"] for case in cases), cases


def test_cancelled_turns_leave_nothing_behind(figures: dict[str, Any]) -> None:
    """W7 without a peer: some turns are cancelled, the others are complete, and at the end the engine owns nothing."""
    (row,) = figures["results"]["W7"]["figures"]["rows"]
    assert row["cancelled"] == round(0.3 * row["turns"])
    assert row["cancelled"] + row["complete"] == row["turns"]
    left = {name: row[name] for name in ("failed", "busy", "cells", "sequences", "nodes", "parked_bytes", "violations")}
    assert left == dict.fromkeys(left, 0)


@pytest.mark.slow
def test_a_day_of_agents_is_replayed(tmp_path: Path) -> None:
    """W11 without a peer: each request of the trace is answered, those of children and the repeated ones as well."""
    [replay] = figures_of("W11", tmp_path)["replays"]
    trace = json.loads(w11_agents.TRACE.read_text())
    agents = trace["agents"][: w11_agents.SMOKE_AGENTS]
    steps = [step for agent in agents for step in steps_of(agent)]
    assert replay["replies"] == sum(1 + step.get("retries", 0) for step in steps)
    assert replay["failed"] == 0
    assert replay["in_time"] + replay["late_first"] + replay["long_gap"] >= replay["replies"]
    assert any("children" in step for step in steps)
    assert any("retries" in step for step in steps)


def figures_of(workload: str, folder: Path) -> Any:
    """Run one workload of the engine's bench without a peer, and return its figures."""
    command = [sys.executable, str(ENGINE), "--smoke", "--peers", "", "--only", workload]
    done = subprocess.run(
        [*command, "--json", str(folder / "figures.json")],
        env=os.environ | {"XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "figures.json").read_text())["results"][workload]["figures"]


def steps_of(agent: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of an agent of a trace and of its children."""
    children = [child for step in agent["steps"] for child in step.get("children", ())]
    return [*agent["steps"], *(step for child in children for step in steps_of(child))]


@pytest.mark.slow
def test_edits_are_guessed_and_stay_the_same(tmp_path: Path) -> None:
    """W10 without a peer: with guesses and without, each kind of work gives as many tokens, and edits the same text."""
    found = figures_of("W10", tmp_path)
    rows = {(row["work"], row["side"]): row for row in found["rows"]}
    sides = (w10_edits.GUESSING, w10_edits.PLAIN)
    assert set(rows) == {(work, side) for work in w10_edits.WORKS for side in sides}
    for side in sides:
        assert rows[w10_edits.EDITS, side]["same"] == rows[w10_edits.EDITS, side]["replies"] == 1
        assert rows[w10_edits.COPIES, side]["tokens"] == w10_edits.COPIED_TOKENS
        assert rows[w10_edits.SAMPLED, side]["tokens"] == w10_edits.SAMPLED_TOKENS
        assert w10_edits.CHARACTERS / 8 < rows[w10_edits.EDITS, side]["tokens"] < w10_edits.MOST_TOKENS


def test_edits_have_their_own_bars() -> None:
    """W10: where text repeats, the bars are those of edits; where nothing does, only our own speed counts."""

    def row(work: str, side: str, ratio: float) -> w10_edits.Row:
        return w10_edits.Row(work, 1, side, 100, 50.0, 2.0, ratio, ratio, 1, 1)

    sides = (w10_edits.GUESSING, w10_edits.PLAIN, w10_edits.THEIR_GUESSING, w10_edits.THEIR_PLAIN)
    rows = [row(work, side, 1.2) for work in (w10_edits.EDITS, w10_edits.SAMPLED) for side in sides]
    found = w10_edits.Edits("a model", 3, [w10_edits.Way("ngram-mod", (70.0, 150.0))], rows, judged=True)
    assert [(verdict.bar, verdict.met) for verdict in found.verdicts()] == [(1.5, False), (1.1, True), (0.98, True)]
    assert "| edits | 1 | CFS, no guesses | 100 | 50 | 2 | 1.20 | 1.20 | 1 of 1 |" in found.markdown()
    assert "| ngram-mod | 70 | 150 |" in found.markdown()
    assert not dataclasses.replace(found, judged=False).verdicts()


def test_tables_go_between_their_markers(figures: dict[str, Any], tmp_path: Path) -> None:
    """Writing the documentation replaces what stood there, and nothing else; twice is the same as once."""
    page = tmp_path / "page.md"
    places = "".join(f"<!-- engine:{name} -->\nstale words\n<!-- /engine:{name} -->\n" for name in ("W3", "W7"))
    page.write_text(f"before\n{places}after\n")
    report.write_docs(figures, page)
    once = page.read_text()
    assert once.startswith("before\n")
    assert once.endswith("after\n")
    assert "stale words" not in once
    assert figures["results"]["W7"]["markdown"] in once
    report.write_docs(figures, page)
    assert page.read_text() == once


def test_page_without_a_place_is_told(figures: dict[str, Any], tmp_path: Path) -> None:
    """A marker that is missing is an error, and the page stays as it is."""
    page = tmp_path / "page.md"
    page.write_text("<!-- engine:W3 -->\n")
    with pytest.raises(SystemExit, match="no place for engine:W3"):
        report.write_docs(figures, page)
    assert page.read_text() == "<!-- engine:W3 -->\n"


def test_documentation_has_a_place_for_each_workload() -> None:
    """`--write-docs` finds all its markers in the page."""
    text = (ROOT / "docs/benchmarks.md").read_text()
    assert set(re.findall(r"<!-- engine:(\w+) -->", text)) == {"about", *report.WORKLOADS}


def test_workload_that_there_is_not_is_told() -> None:
    """A wrong name ends with the right ones."""
    command = [sys.executable, str(ENGINE), "--only", "W77"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no workload W77; there are W1, W2" in done.stderr


@pytest.mark.parametrize(("value", "at_least", "met"), [(1.0, False, True), (1.1, False, False), (0.9, True, False)])
def test_verdict_says_by_how_much_a_bar_is_missed(value: float, *, at_least: bool, met: bool) -> None:
    """A bar is met or missed on its own side."""
    verdict = Verdict("ratio", value, 1.0, at_least=at_least)
    assert verdict.met == met
    assert ("**missed by 0.1**" in str(verdict)) == (not met)


def test_table_is_markdown() -> None:
    """Words to the left, numbers to the right, nothing for what is not known."""
    assert table(["side", "n"], [["a", 1234.4], ["b", None]]).splitlines() == [
        "| side | n |",
        "|---|--:|",
        "| a | 1234 |",
        "| b |  |",
    ]


def test_longest_gap_counts_from_the_request_to_the_end() -> None:
    """A stream that says nothing at the beginning or at the end stood still, too."""
    answer = Answer(arrivals=[1.0, 2.0, 2.5, 9.0])
    assert answer.longest_gap(1.5, 4.0) == 1.5
    assert answer.longest_gap(0.0, 2.6) == 1.0


def harness_runs(folder: Path, *cases: str) -> list[dict[str, Any]]:
    """What the harness bench has found about our agents in these tasks and faults."""
    file = folder / "runs.json"
    command = [sys.executable, str(HARNESS), "--smoke", "--cases", ",".join(cases), "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runs: list[dict[str, Any]] = json.loads(file.read_text())
    return runs


@pytest.mark.slow
def test_our_agents_are_driven_through_tasks_and_faults(tmp_path: Path) -> None:
    """The harness bench with a task, a kill within a command and a broken call: done, and nothing happens twice."""
    cases = ["write and read back", "kill -9 in a command", "broken arguments"]
    runs = harness_runs(tmp_path, *cases)
    assert [(run["side"], run["fault"] or run["task"]) for run in runs] == [
        (side, case) for side in ("CFS file agent", "CFS Fibre") for case in (cases[0], cases[2], cases[1])
    ]
    assert all(run["success"] and run["solved"] and not run["doubled"] for run in runs), runs


@pytest.mark.slow
def test_our_agents_do_the_harder_tasks(tmp_path: Path) -> None:
    """The harness bench with 200 tools, a dead server, a project's text and a skill: done, with no request too long."""
    cases = ["200 MCP tools", "a dead MCP server", "AGENTS.md against the order", "a skill that must be read"]
    runs = harness_runs(tmp_path, *cases)
    assert [run["task"] for run in runs] == cases * 2
    assert all(run["success"] and run["solved"] for run in runs), runs
    assert all(run["longest"] < 16_000 for run in runs), runs


@pytest.mark.slow
def test_our_agents_survive_a_question_a_budget_and_a_shared_file(tmp_path: Path) -> None:
    """The harness bench with a kill while a question is open, a budget of a tree, and eight children at one file."""
    cases = ["a question and a kill", "a budget in a fan-out", "a file that eight children share"]
    runs = {(run["side"], run["task"]): run for run in harness_runs(tmp_path, *cases)}
    assert list(runs) == [("CFS file agent", cases[0]), *(("CFS Fibre", case) for case in cases)]
    assert all(run["solved"] and not run["doubled"] for run in runs.values()), runs
    budget = runs["CFS Fibre", cases[1]]
    assert 0.1 < budget["spent"] <= 0.5
    assert [run["success"] for run in runs.values()] == [run is not budget for run in runs.values()]


@pytest.mark.slow
def test_attacks_are_watched_from_outside(tmp_path: Path) -> None:
    """The hardening bench: an attack on either engine is refused or served, and others are answered meanwhile."""
    command = [sys.executable, str(ROOT / "bench/hardening.py"), "--smoke", "--only", "empty_turns_put", "tokens_flood"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "rows.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    refused, flood = json.loads((tmp_path / "rows.json").read_text())
    assert refused["outcome"] == "3 x 413"
    assert " x 200" in flood["outcome"]
    assert refused["asked"] >= 2
    assert flood["asked"] >= 2
    assert refused["first_p50"] is None
    assert flood["first_p50"] <= flood["first_longest"]


@pytest.mark.slow
def test_the_cost_of_a_store_is_measured_beside_one_in_memory(tmp_path: Path) -> None:
    """The store bench: all kinds of stores are measured, and the tables name the bars."""
    command = [sys.executable, str(ROOT / "bench/store.py"), "--smoke", "--only", "token,start,journal"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "figures.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    for figures in (found["token"], found["start"]["200"]):
        assert set(figures) == {"memory", "fast", "default"}
        assert all(value > 0 for value in figures.values())
    for stores in found["journal"].values():
        assert set(stores) == ({"SQLite", "PostgreSQL"} if programs() else {"SQLite"})
        assert all(row["accepts"] > 0 and row["per_commit"] >= 1 for row in stores.values())
    assert "| first token, ms |" in done.stdout


@pytest.mark.slow
def test_streams_through_a_gateway_are_complete(tmp_path: Path) -> None:
    """The gateway bench: all streams of each side get all their tokens, and the server's processor time is known."""
    command = [sys.executable, str(ROOT / "bench/gateway.py"), "--smoke", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    sides = ("stub alone", "CFS, chat completions", "CFS, messages to sessions")
    assert {row["side"] for row in found["rows"]} == set(found["most"]) == set(sides)
    for row in found["rows"]:
        assert row["found"]["begun"] == row["found"]["complete"] == row["streams"], row
        assert (row["memory"] > 0) == (row["side"] != sides[0])
    assert "| CFS, chat completions | 2 |" in done.stdout


def test_own_samples_are_those_of_the_innermost_function() -> None:
    """The gateway bench reads a profiler's stacks: callers get no samples, and threads that wait are left out."""
    stacks = "main (a/b/c.py);f (x/y/z.py) 3\nmain (a/b/c.py) 1\nThread._bootstrap (threading.py);wait (q.py) 99\n"
    assert own_samples(stacks) == [("`f`, y/z.py", 0.75), ("`main`, b/c.py", 0.25)]


@pytest.mark.slow
def test_a_fleet_of_replicas_is_simulated(tmp_path: Path) -> None:
    """The fleet bench: every part has figures, the invariants hold, and a run is repeated by its seed."""
    command = [sys.executable, str(ROOT / "bench/fleet.py"), "--smoke", "--json"]
    runs = []
    for name in ("one.json", "two.json"):
        done = subprocess.run([*command, str(tmp_path / name)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        runs.append(json.loads((tmp_path / name).read_text()))
    found = runs[0]
    assert runs[1] == found
    assert [row["slots"] for row in found["placement"]] == [16, 64, 256, 1024]
    assert all(row["join"] == row["least join"] for row in found["placement"])
    assert all(row["more than the slots of one that ends"] == 0 for row in found["placement"])
    assert found["faults"]["checks"] > 1000
    assert found["faults"]["violations"] == []
    assert all(row["unowned"] == 0 for row in found["faults"]["rows"])
    changed = [row for row in found["faults"]["rows"] if row["rules"] == "changed"]
    assert [row["name"] for row in changed if row["moves"].get("unjustified")] == []
    assert found["directory"][-1]["statements"] > found["directory"][0]["statements"]
    assert found["merging"][-1]["requests"] == 99
    assert {row["load"] for row in found["latency"]} == {0.6, 0.8, 0.95}
    assert "| crash, back after 5 s | before |" in done.stdout


@pytest.mark.slow
def test_the_enforcement_of_json_schemas_is_measured(tmp_path: Path) -> None:
    """The bench of JSON schemas: llguidance alone lets invalid instances pass, and behind our check none."""
    command = [sys.executable, str(ROOT / "bench/json_schema.py"), "--json", str(tmp_path / "counts.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    alone, behind = json.loads((tmp_path / "counts.json").read_text()).values()
    assert sum(row.get("UNSOUND", 0) for row in alone.values()) > 0
    assert sum(row.get("UNSOUND", 0) for row in behind.values()) == 0
    assert sum(row.get("compiled", 0) for row in behind.values()) >= 230
