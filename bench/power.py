"""Cut the power of a server at random points, and look for what was lost.

    scripts/bench power [--cuts 300] [--store fast] [--seed N] [--seconds 5] [--docs]

A real `cfs serve` with a store writes under the load of some clients, and a library that is loaded into it records
each write and each `fsync` (`power_recorder.c`). A simulated disk then replays the record up to a random point and
loses what was not synchronised by then: all of it, or some sectors of it (`power_disk`). A server starts on what is
left. Each message and file that was acknowledged before that point must be there; with `--store fast`, which does not
synchronise each commit, a suffix of the last ones may be missing, but nothing in the middle.
"""

import argparse
import asyncio
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from crash import CFS, PAGE, environment
from crash_ledger import Shown, Talk, Write
from crash_load import show
from power_disk import Disk, Operation, Survivors, read_log, recording

_SESSIONS = 8
_SURVIVORS: tuple[Survivors, ...] = ("none", "some", "some", "all")
_FLAGS = ("--engine", "scripted", "--log-level", "error")


@dataclass
class FileWrite:
    """A file of a workspace that was written, by the size of the record before and after it."""

    path: str
    data: bytes
    sent: int
    answered: int | None = None


@dataclass
class Recording:
    """What clients have sent and what was acknowledged, in sizes of the record, and the record itself."""

    root: Path
    operations: list[Operation] = field(default_factory=list)
    writes: dict[str, list[Write]] = field(default_factory=dict)
    files: list[FileWrite] = field(default_factory=list)


@dataclass
class Report:
    """What was found."""

    seed: int
    cuts: int = 0
    acknowledged: int = 0
    lost: int = 0
    """Acknowledged messages that a store without synchronised commits has lost: the last ones."""
    problems: list[str] = field(default_factory=list)


@contextmanager
def serving(data: Path, flags: Sequence[str], **more: str) -> Iterator[str]:
    """Run `cfs serve` until it is killed; its URL."""
    command = [str(CFS), "serve", "--port", "0", *_FLAGS, "--data-dir", str(data), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment() | more)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"the server does not start on {data}")
        yield line.removeprefix("listening on ").strip()
    finally:
        process.kill()
        process.communicate()


def record(folder: Path, seconds: float, flags: Sequence[str], seed: int) -> Recording:
    """Let clients write for some time to a server whose writes are recorded."""
    root, log = folder / "data", folder / "log"
    found = Recording(root)
    with serving(root, [*flags, "--scripted-interval", "0.002"], **recording(root, log)) as url:
        asyncio.run(_load(url, found, lambda: log.stat().st_size, seconds, random.Random(seed)))
    found.operations = list(read_log(log.read_bytes()))
    return found


async def _load(url: str, found: Recording, position: Callable[[], int], seconds: float, draw: random.Random) -> None:
    end = time.monotonic() + seconds

    async def client(number: int, http: httpx.AsyncClient) -> None:
        session, sent = f"s{number}", 0
        writes = found.writes.setdefault(session, [])
        while time.monotonic() < end:
            sent += 1
            if draw.random() < 0.2:
                path = f"/v1/files/workspaces/{session}/{draw.randrange(2)}.txt"
                file = FileWrite(path, f"{number} {sent}\n".encode() * draw.choice((1, 400)), position())
                found.files.append(file)
                (await http.put(path, content=file.data)).raise_for_status()
                file.answered = position()
                continue
            text, wait = f"{session} says {sent}", draw.random() < 0.3
            write = Write(text, position(), "rest", generate=draw.random() < 0.7, expected=text)
            writes.append(write)
            body = {"content": text, "generate": write.generate}
            response = await http.post(f"/v1/sessions/{session}/messages", params={"wait": wait}, json=body)
            response.raise_for_status()
            if wait and write.generate:
                write.reply = response.json()["reply"]
            write.ended("acknowledged", position())

    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        await asyncio.gather(*(client(number, http) for number in range(_SESSIONS)))


def cut(found: Recording, at: int, survivors: Survivors, folder: Path, draw: random.Random) -> None:
    """Write what is left of the server's folder after the power failed at this point."""
    disk = Disk(found.root)
    disk.replay([operation for operation in found.operations if operation.end <= at])
    disk.cut(folder, survivors, draw)


def check(found: Recording, at: int, shown: dict[str, Shown | None], *, fast: bool) -> tuple[list[str], int]:
    """Compare what a server shows after a power failure; return what is wrong, and how many writes were lost."""
    problems, lost, first_lost = list[str](), 0, None
    for session, writes in found.writes.items():
        there = {said.text for said in getattr(shown[session], "history", ())}
        known = [_known(write, at) for write in writes if write.sent <= at]
        if fast:
            missing = [write for write in known if write.outcome == "acknowledged" and write.text not in there]
            lost += len(missing)
            first_lost = min([first_lost or missing[0].sent, missing[0].sent]) if missing else first_lost
            known = [replace(write, outcome="unknown") for write in known]
        talk = Talk([session], exists={True, False} if fast else _exists(known), writes=known)
        problems += talk.check(shown[session])
    for session, writes in found.writes.items():
        there = {said.text for said in getattr(shown[session], "history", ())}
        later = [write for write in writes if write.text in there and first_lost is not None]
        late = next((write for write in later if (write.answered or at) < at and write.sent > (first_lost or 0)), None)
        if late is not None and fast:
            lost_before = [
                write
                for others in found.writes.values()
                for write in others
                if write.answered is not None
                and write.answered < late.sent
                and write.text not in {said.text for said in getattr(shown[write.text.split()[0]], "history", ())}
            ]
            problems += [
                f"{write.text!r} is lost, and {late.text!r}, which came later, is there" for write in lost_before
            ]
    return problems, lost


def _known(write: Write, at: int) -> Write:
    """What was known of a write when the record had this size."""
    if write.answered is not None and write.answered <= at:
        return replace(write)
    return replace(write, outcome="unknown", answered=None, reply=None)


def _exists(writes: Sequence[Write]) -> set[bool]:
    return {True} if any(write.outcome == "acknowledged" for write in writes) else {True, False}


async def _shown(url: str, sessions: Sequence[str]) -> dict[str, Shown | None]:
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        found = {session: await show(http, session, wait=30) for session in sessions}
    return {session: each and each[0] for session, each in found.items()}


def _check_files(url: str, found: Recording, at: int) -> list[str]:
    """Compare the files of the workspaces: each is the last acknowledged one, or one that was sent since."""
    problems = []
    for path in {file.path for file in found.files}:
        writes = [file for file in found.files if file.path == path and file.sent <= at]
        known = max((n for n, file in enumerate(writes) if (file.answered or at + 1) <= at), default=None)
        possible = [file.data for file in writes[known or 0 :]]
        response = httpx.get(f"{url}{path}", trust_env=False)
        content = response.content if response.status_code == 200 else None
        if content not in possible and not (content is None and known is None):
            problems.append(f"{path} has {content and len(content)} bytes that were never written at once")
    return problems


def power(cuts: int, seed: int, flags: Sequence[str], folder: Path, *, seconds: float, fast: bool = False) -> Report:
    """Record a server, and cut its power so many times."""
    report, draw = Report(seed), random.Random(seed)
    found = record(folder, seconds, flags, seed)
    writes = [write for each in found.writes.values() for write in each]
    begin = min(write.sent for write in writes)
    ends = [operation.end for operation in found.operations if operation.end >= begin]
    report.acknowledged = sum(write.outcome == "acknowledged" for write in writes)
    for number in range(cuts):
        at, survivors = draw.choice(ends), draw.choice(_SURVIVORS)
        data = folder / f"cut{number}"
        data.mkdir()
        cut(found, at, survivors, data, draw)
        with serving(data, flags) as url:
            shown = asyncio.run(_shown(url, list(found.writes)))
            problems, lost = check(found, at, shown, fast=fast)
            problems += _check_files(url, found, at)
        report.cuts += 1
        report.lost += lost
        report.problems += [f"cut {number} at {at}, {survivors} survive: {problem}" for problem in problems]
    return report


def table(report: Report, store: str) -> str:
    """Write the row of the documentation."""
    return f"| `{store}` | {report.cuts:,} | {report.acknowledged:,} | {report.lost:,} | {len(report.problems)} |"


def main() -> int:
    """Run, print what was found, and return 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the clients write")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks.md")
    asked = parser.parse_args()
    rows = ["| store | cuts | acknowledged messages | lost, all cuts together | problems |", "|---|--:|--:|--:|--:|"]
    wrong = False
    for store in ("default", "fast"):
        with tempfile.TemporaryDirectory(prefix="cfs-power-") as folder:
            flags = ["--store", store]
            fast = store == "fast"
            report = power(asked.cuts, asked.seed, flags, Path(folder), seconds=asked.seconds, fast=fast)
        for problem in report.problems:
            print(f"PROBLEM, seed {report.seed}: {problem}")
        wrong = wrong or bool(report.problems)
        rows.append(table(report, store))
    print(found := "\n".join(rows))
    if asked.docs:
        page = re.sub(
            r"(?s)(<!-- power -->\n).*?(<!-- /power -->)", lambda m: f"{m[1]}{found}\n{m[2]}", PAGE.read_text()
        )
        PAGE.write_text(page)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
