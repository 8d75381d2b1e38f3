"""Runs the workloads one after the other, and tells what they found: as text, as JSON, in the documentation."""

import asyncio
import importlib
import json
import os
import platform
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine_bench.bench import Bench, Result
from engine_bench.tables import between_markers, verdicts

WORKLOADS = {
    "W1": "w1_streams",
    "W2": "w2_sessions",
    "W3": "w3_fanout",
    "W4": "w4_gap",
    "W5": "w5_overload",
    "W6": "w6_overflow",
    "W7": "w7_cancel",
    "W8": "w8_crash",
    "W9": "w9_schema",
    "W10": "w10_edits",
    "W11": "w11_agents",
    "turns": "turns",
}
Figures = dict[str, Any]
LONGEST = 5400.0
"""Seconds after which a workload hangs."""


async def measure(bench: Bench, only: str | None) -> Figures:
    """Run what is asked for; raises `SystemExit` for a workload that there is not."""
    wanted = only.split(",") if only else list(WORKLOADS)
    if unknown := set(wanted) - set(WORKLOADS):
        raise SystemExit(f"there is no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    began, load = time.monotonic(), os.getloadavg()[0]
    results = {}
    for name in wanted:
        bench.say(f"{name} begins")
        results[name] = await _one(bench, name)
        bench.say(f"{name}: {results[name]['seconds']} s\n{results[name]['verdicts']}")
    return {
        "smoke": bench.smoke,
        "machine": f"{_processor()}, {os.cpu_count()} cores, {bench.threads} threads for each side",
        "python": platform.python_version(),
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "seconds": round(time.monotonic() - began),
        "builds": bench.builds,
        "results": results,
    }


async def _one(bench: Bench, name: str) -> Figures:
    """Run one workload; what goes wrong in it is told, and the figures of the others are not lost."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(LONGEST):
            result: Result = await importlib.import_module(f"engine_bench.{WORKLOADS[name]}").run(bench)
    except Exception as error:  # noqa: BLE001 - whatever it is, an hour of other figures must not go with it
        traceback.print_exc()
        return {
            "markdown": f"Did not finish: {type(error).__name__}: {error}",
            "verdicts": "",
            "seconds": round(time.monotonic() - started),
            "finished": False,
            "figures": {},
        }
    return {
        "markdown": result.markdown(),
        "verdicts": verdicts(result.verdicts()),
        "seconds": round(time.monotonic() - started),
        "finished": True,
        "figures": asdict(result),  # type: ignore[call-overload]  # each is a dataclass
    }


def read(path: Path) -> Figures:
    """Read what `write` wrote."""
    found: Figures = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(found: Figures, path: Path) -> None:
    """Write all figures as JSON."""
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def markdown(found: Figures) -> str:
    """Tell everything, ready to be pasted."""
    parts = [about(found)]
    for name, result in found["results"].items():
        parts.append("\n\n".join(part for part in (f"### {name}", result["markdown"], result["verdicts"]) if part))
    return "\n\n".join(parts)


def about(found: Figures) -> str:
    """Say on which machine and with which builds."""
    minutes, (before, after) = found["seconds"] / 60, found["load"]
    lines = [
        f"Measured on {found['machine']}, Python {found['python']}, in {minutes:.0f} minutes; load of the machine"
        f" {before} before, {after} after." + (" A smoke test: small models, few of everything." * found["smoke"]),
        "",
        *(f"- {name}: {build}" for name, build in found["builds"].items()),
    ]
    return "\n".join(lines)


def write_docs(found: Figures, page: Path) -> None:
    """Replace what stands between the markers `<!-- engine:NAME -->` and `<!-- /engine:NAME -->`.

    A workload that did not finish leaves what is there.
    """
    text = page.read_text(encoding="utf-8")
    parts = {"about": about(found)} if len(found["results"]) == len(WORKLOADS) else {}
    for name, result in found["results"].items():
        if not result["finished"]:
            continue
        parts[name] = "\n\n".join(part for part in (result["markdown"], result["verdicts"]) if part)
    for name, part in parts.items():
        text = between_markers(text, f"engine:{name}", part)
    page.write_text(text, encoding="utf-8")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
