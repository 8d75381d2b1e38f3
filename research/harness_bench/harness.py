"""Compare our agents with other harnesses: one scripted model drives all of them through the same tasks and faults.

    scripts/bench harness [--smoke] [--only NAME,...] [--cases NAME,...] [--python PATH] [--json FILE] [--write-docs]

The model is a server of chat completions that knows what is to be done (`harness_bench.oracle`), so what differs is the
harness: how much it sends, what it costs beside the model, what it makes of a fault, and whether it reports success
where there is none. The others come from PyPI, each in an environment of its own in the user's cache folder. `--smoke`
runs ours only, `--cases` some of the tasks and faults. `--python` names further interpreters, for harnesses that need a
newer Python than this one.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engine_bench"))

from engine_bench.sides import SideError
from engine_bench.tables import between_markers, table
from harness_bench.dialects import dialect
from harness_bench.oracle import Oracle, Play
from harness_bench.sides import SIDES, Side
from harness_bench.tasks import EFFECTS, FAULTS, HARDER_TASKS, TASKS, Fault, Task

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
_ENVIRONMENT = {
    "OPENAI_API_KEY": "none",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "PYTHONPATH": str(Path(__file__).parent),
}
_HARDER = frozenset(task.name for task in HARDER_TASKS)
QUESTION, LAST_WORDS = "question", "last-words.txt"
"""Files that runners write into the folder of their state."""
LONGEST = 150.0
"""Seconds that one run may take."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one harness did with one task. `success` is what it reported, `solved` what the files say."""

    side: str
    task: str
    fault: str
    success: bool
    solved: bool
    doubled: int
    requests: int
    others: int
    characters: int
    fresh: int
    first: int
    longest: int
    spent: float
    step_ms: float | None
    seconds: float
    timed_out: bool

    @property
    def false_success(self) -> bool:
        """Whether it reported a success that the files do not show."""
        return self.success and not self.solved


def run(oracle: Oracle, side: Side, python: Path, task: Task, fault: Fault | None, number: int) -> Run:
    """Let a harness work on a task from an empty directory."""
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        place = Path(folder)
        work = place / side.directory
        work.mkdir(parents=True)
        (place / "state").mkdir(exist_ok=True)
        task.prepare(work)
        name = f"run-{number}"
        play = oracle.plays[name] = Play(task, fault, dialect(side.name, str(work)))
        began = time.perf_counter()
        code = _work(side, python, oracle.url(name), place, play)
        seconds = time.perf_counter() - began
        return Run(
            side=side.name,
            task=task.name,
            fault=fault.kind if fault else "",
            success=code == 0,
            solved=_stopped(play, place) if task.budget else task.solved(work),
            doubled=task.doubled(work),
            requests=len(play.requests),
            others=play.others,
            characters=play.characters,
            fresh=play.fresh,
            first=len(play.requests[0]) if play.requests else 0,
            longest=max(map(len, play.requests), default=0),
            spent=round(play.spent, 6),
            step_ms=statistics.median(play.gaps) * 1000 if play.gaps else None,
            seconds=round(seconds, 1),
            timed_out=code is None,
        )


def _work(side: Side, python: Path, url: str, place: Path, play: Play) -> int | None:
    """Run the harness to its end, killed and started again where that is the fault; None when it took too long."""
    log = place / "log"
    if play.task.open_question:
        process = _start(side, python, url, place, play, log)
        _until_the_question(process, place / "state" / QUESTION)
        _kill(process)
        return _wait(_start(side, python, url, place, play, log, resume=True), LONGEST)
    if play.fault is None or not play.fault.kind.startswith("kill"):
        return _wait(_start(side, python, url, place, play, log), LONGEST)
    process = _start(side, python, url, place, play, log)
    _until_the_moment(process, place / side.directory / EFFECTS, play)
    _kill(process)
    play.proceed.set()
    return _wait(_start(side, python, url, place, play, log, resume=True), LONGEST)


def _start(
    side: Side, python: Path, url: str, place: Path, play: Play, log: Path, *, resume: bool = False
) -> "subprocess.Popen[bytes]":
    command = side.command(python, url, place, play.task, resume=resume)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=place,
            env=os.environ | _ENVIRONMENT,
        )


def _stopped(play: Play, place: Path) -> bool:
    """Whether a run has stayed within its budget, and its last words say so."""
    words = place / "state" / LAST_WORDS
    said = words.read_text(encoding="utf-8") if words.is_file() else ""
    return play.spent <= play.task.budget and "budget" in said


def _until_the_question(process: "subprocess.Popen[bytes]", question: Path) -> None:
    """Wait until the question is open at which everything is killed."""
    ends = time.monotonic() + LONGEST
    while process.poll() is None and time.monotonic() < ends and not question.exists():
        time.sleep(0.02)


def _until_the_moment(process: "subprocess.Popen[bytes]", effects: Path, play: Play) -> None:
    """Wait for the moment to kill: between two steps, or while the second command runs."""
    ends = time.monotonic() + LONGEST
    between = play.fault is not None and play.fault.kind == "kill -9 between steps"
    while process.poll() is None and time.monotonic() < ends:
        if between and play.reached.wait(0.05):
            return
        if not between and effects.is_file() and "effect-1" in effects.read_text(encoding="utf-8"):
            return
        time.sleep(0.01)


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill(process)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a harness and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def measure(sides: Sequence[Side], cases: Sequence[tuple[Task, Fault | None]], pythons: Sequence[str]) -> list[Run]:
    """Run each case with each side; a side that cannot be set up is left out with a line that says why."""
    runs: list[Run] = []
    with Oracle() as oracle:
        for side in sides:
            try:
                python = side.python(pythons)
            except SideError as error:
                print(f"{side.name}: left out: {error}", file=sys.stderr)
                continue
            if python is None:
                print(f"{side.name}: left out: needs Python {'.'.join(map(str, side.oldest))}", file=sys.stderr)
                continue
            for task, fault in cases:
                if task.needs and task.needs not in side.abilities:
                    continue
                done = run(oracle, side, python, task, fault, len(runs))
                runs.append(done)
                verdict = "timed out" if done.timed_out else f"success={done.success} solved={done.solved}"
                print(
                    f"{side.name}: {done.fault or done.task}: {verdict} doubled={done.doubled} requests={done.requests}"
                    f" characters={done.characters} {done.seconds} s",
                    file=sys.stderr,
                )
    return runs


def tables(runs: Sequence[Run]) -> dict[str, str]:
    """Return what was found as text by its place in the page: tables of the tasks and faults, and of harder tasks."""
    sides = list(dict.fromkeys(run.side for run in runs))
    simple = [run for run in runs if run.task not in _HARDER]
    parts = {"harness": f"{_of_tasks(simple, sides)}\n\n{_of_faults(simple, sides)}\n"} if simple else {}
    if len(simple) < len(runs):
        parts["harness-harder"] = _of_harder_tasks(runs, sides)
    return parts


def _of_tasks(runs: Sequence[Run], sides: Sequence[str]) -> str:
    rows = []
    for side in sides:
        mine = [run for run in runs if run.side == side and not run.fault]
        steps = [run.step_ms for run in mine if run.step_ms is not None]
        rows.append(
            [
                side,
                f"{sum(run.success and run.solved for run in mine)} of {len(mine)}",
                str(sum(run.requests for run in mine)),
                str(sum(run.others for run in mine)),
                f"{sum(run.characters for run in mine):,}",
                f"{sum(run.fresh for run in mine):,}",
                f"{statistics.median(run.first for run in mine):,.0f}" if mine else "",
                f"{statistics.median(steps):.1f}" if steps else "",
            ]
        )
    head = [
        "harness",
        "tasks done",
        "requests",
        "other requests",
        "characters sent",
        "of these new",
        "first request",
        "ms a step",
    ]
    return table(head, rows)


def _of_harder_tasks(runs: Sequence[Run], sides: Sequence[str]) -> str:
    rows = []
    for task in HARDER_TASKS:
        by_side = {run.side: run for run in runs if run.task == task.name}
        if by_side:
            rows.append([task.name, *(_harder_verdict(by_side.get(side)) for side in sides)])
    return table(["harder task", *sides], rows)


def _harder_verdict(run: Run | None) -> str:
    """Return how it went, and the characters of the longest request; "no" where the harness lacks what is needed."""
    if run is None:
        return "no"
    budget = next(task.budget for task in HARDER_TASKS if task.name == run.task)
    if budget:
        verdict = "not ended" if run.timed_out else "done" if run.solved else "**not kept**"
        return f"{verdict}, ${run.spent:.2f} of ${budget:.2f}"
    return f"{_verdict(run)}, {run.longest:,}"


def _of_faults(runs: Sequence[Run], sides: Sequence[str]) -> str:
    rows = []
    for kind in dict.fromkeys(run.fault for run in runs if run.fault):
        found = {run.side: run for run in runs if run.fault == kind}
        rows.append([kind, *(_verdict(found[side]) if side in found else "" for side in sides)])
    faulty = {side: [run for run in runs if run.side == side and run.fault] for side in sides}
    rows.append(["**false successes**", *(str(sum(run.false_success for run in faulty[side])) for side in sides)])
    rows.append(["**effects twice**", *(str(sum(map(_doubled, faulty[side]))) for side in sides)])
    return table(["fault", *sides], rows)


def _doubled(run: Run) -> int:
    """Return how many effects the harness did twice; those that the model itself repeated do not count."""
    return 0 if run.fault.startswith("same") else run.doubled


def _verdict(run: Run) -> str:
    twice = f", {_doubled(run)} effects twice" if _doubled(run) else ""
    if run.timed_out:
        return f"not ended after {LONGEST:.0f} s{twice}"
    if run.false_success:
        return f"**false success**{twice}"
    if run.success:
        return f"done{twice}"
    asked = f" after {run.requests} requests" if run.fault.startswith("same") else ""
    return f"failed, and said so{asked}{twice}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="our own agents only")
    parser.add_argument("--only", default="", help="names of harnesses, separated by commas")
    parser.add_argument("--cases", default="", help="names of tasks and faults, separated by commas")
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="a further interpreter")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args()
    pythons = [sys.executable, *options.python, *(f"python3.{minor}" for minor in range(12, 16))]
    cases = [
        (task, fault)
        for task, fault in [*((task, None) for task in (*TASKS, *HARDER_TASKS)), *FAULTS]
        if not options.cases or (fault.kind if fault else task.name) in options.cases.split(",")
    ]
    sides = [
        side
        for side in SIDES
        if (not options.only or side.name in options.only.split(",")) and not (options.smoke and side.packages)
    ]
    runs = measure(sides, cases, pythons)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in runs], indent=1), encoding="utf-8")
    parts = tables(runs)
    print("\n".join(parts.values()))
    if options.write_docs:
        page = PAGE.read_text(encoding="utf-8")
        for name, text in parts.items():
            page = between_markers(page, name, text)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
