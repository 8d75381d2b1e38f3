"""What a command costs before it does anything: the time to start, and the number of modules that it imports.

Run by `scripts/bench cli [--rounds N] [--json FILE]`. Each command is a process of its own, as in a shell. The commands
take turns, so that a busy machine slows all of them, and the fastest round counts: others only add what the machine did
meanwhile. `python` is Python itself, which does nothing.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BAR_SECONDS = 0.3
CFS = str(Path(sys.executable).with_name("cfs"))
COMMANDS = {
    "python": [sys.executable, "-c", ""],
    "cfs --version": [CFS, "--version"],
    "cfs --help": [CFS, "--help"],
    "cfs send --help": [CFS, "send", "--help"],
    "cfs agent --help": [CFS, "agent", "--help"],
    "cfs serve --help": [CFS, "serve", "--help"],
}


def seconds(command: list[str]) -> tuple[float, float]:
    """Run a command; return the seconds that passed, and those that the processor worked."""
    began, before = time.perf_counter(), _worked()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began, _worked() - before


def _worked() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def modules(command: list[str]) -> int:
    """Count the modules that a command imports."""
    with tempfile.TemporaryFile("w+") as report:
        subprocess.run(
            [sys.executable, "-X", "importtime", *command[command[0] == sys.executable :]],
            stdout=subprocess.DEVNULL,
            stderr=report,
            check=True,
        )
        report.seek(0)
        return sum(line.startswith("import time:") for line in report) - 1  # the first line is a heading


def main() -> int:
    """Measure and print; the status is 1 if `cfs --help` takes longer than its bar."""
    parser = argparse.ArgumentParser(description="Measure the start of commands.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(options.rounds)]
    figures = {
        name: {
            "seconds": min(each[name][0] for each in rounds),
            "cpu_seconds": min(each[name][1] for each in rounds),
            "modules": modules(command),
        }
        for name, command in COMMANDS.items()
    }
    print("| command | seconds | CPU seconds | modules |\n|---|--:|--:|--:|")
    for name, found in figures.items():
        print(f"| `{name}` | {found['seconds']:.2f} | {found['cpu_seconds']:.2f} | {found['modules']} |")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    met = figures["cfs --help"]["seconds"] <= BAR_SECONDS
    print(f"\ncfs --help takes at most {BAR_SECONDS} s: {'met' if met else 'NOT MET'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
