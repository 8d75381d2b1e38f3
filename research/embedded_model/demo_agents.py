"""Examine the embedded model as the mind of agents: real agents, a real server, tasks that training never saw.

    scripts/bench demo_agents [MODEL.gguf] [--count 20] [--temperature 0] [--kinds read,tree] [--failures 5]

A task is right when the files that are left are, byte for byte, and so is the answer. Temperature 0.7 is what
`cfs agent` takes unless told otherwise.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from cfs.transports.async_http import AsyncClient
from cfs_agents.loop.server_model import ModelSettings, ServerModel
from demo_model.agent_examination import TREE, Done, Work, done, right, works
from demo_model.agent_jobs import MAKERS

DEFAULT = Path(__file__).resolve().parents[2] / "server" / "cfs_server" / "models" / "cfs-demo.gguf"
MOST_TOKENS = 300
MEMORY = next((str(place) for place in [Path("/dev/shm")] if place.is_dir()), None)  # noqa: S108 - only for a while


@dataclass(frozen=True)
class Result:
    """How one task went."""

    kind: str
    spoken: str
    task: str
    files: bool
    answer: bool
    wanted: str
    said: str
    seconds: float


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """Run `cfs serve` with a model on a free port; its URL."""
    program = str(Path(sys.executable).with_name("cfs"))
    command = [program, "serve", "--port", "0", "--log-level", "error", "--model", str(model)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.communicate(timeout=30)


async def one(work: Work, model: ServerModel) -> Result:
    """Let an agent do a task."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        wanted: Done = await right(work, Path(folder) / "right")
        start = time.perf_counter()
        came = await done(work, model, Path(folder) / "done")
    same = (came.files == wanted.files, came.answer == wanted.answer)
    seconds = time.perf_counter() - start
    return Result(work.kind, work.spoken, work.job.task, *same, wanted.answer, came.answer, seconds)


async def examine(url: str, settings: ModelSettings, seed: int, count: int, kinds: tuple[str, ...]) -> list[Result]:
    """All tasks, one after the other."""
    async with AsyncClient(url, timeout=120) as client:
        model = ServerModel(client, settings)
        return [await one(work, model) for work in works(seed, count, kinds)]


def table(results: list[Result]) -> str:
    """The figures as docs/benchmarks.md has them."""
    rows: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        rows[result.kind].append(result)
        rows["**all**"].append(result)
    lines = [
        "| task | tasks | files right | answer right | English | Chinese | s a task |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, some in rows.items():
        seconds = sorted(result.seconds for result in some)[len(some) // 2]
        spoken = " | ".join(
            _share([one.files and one.answer for one in some if one.spoken == each]) for each in ("en", "zh")
        )
        files, answers = _share([one.files for one in some]), _share([one.answer for one in some])
        lines.append(f"| {kind} | {len(some)} | {files} | {answers} | {spoken} | {seconds:.2f} |")
    return "\n".join(lines)


def _share(right_ones: list[bool]) -> str:
    return f"{100 * sum(right_ones) / len(right_ones):.0f} %" if right_ones else ""


def main() -> None:
    """Examine a model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=DEFAULT)
    parser.add_argument("--count", type=int, default=20, help="tasks of each kind")
    parser.add_argument("--kinds", default=",".join((*MAKERS, TREE)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--failures", type=int, default=0, help="print so many failures")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    settings = ModelSettings(temperature=arguments.temperature, seed=arguments.seed, max_tokens=MOST_TOKENS)
    kinds = tuple(arguments.kinds.split(","))
    with serving(arguments.model) as url:
        results = asyncio.run(examine(url, settings, arguments.seed, arguments.count, kinds))
    print(table(results))
    wrong = [result for result in results if not (result.files and result.answer)]
    for result in wrong[: arguments.failures]:
        print(
            f"--- {result.kind}: {result.task!r}\nwanted {result.wanted!r}\nsaid   {result.said!r} files {result.files}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
