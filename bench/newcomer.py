"""Play a newcomer in a bare Debian container: from `git clone` to the first reply of SmolLM2.

    python bench/newcomer.py [--image debian:12] [--pip-cache DIR] [--limit 120] [--json FILE]

The machine of the newcomer has git and nothing else. The newcomer types three commands: `git clone`,
`scripts/up --model smollm2`, and, in another terminal, `cfs send`. The measured seconds end with the reply. The build
is what `scripts/up` does until the packages are installed: system packages, a Python environment, the compilation of
llama.cpp. It depends on the processor and is measured apart; with `--pip-cache` it takes what this machine's pip has
already built. The exit code is 1 if the rest takes longer than the limit.

The container gets this environment's variables of pip and of proxies, by name, and no other configuration.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = (
    "git clone --quiet /cfs.git cfs",
    "cd cfs && scripts/up --no-mount --model smollm2",
    "cfs/.venv/bin/cfs send first 'Write a haiku about the sea.'",
)
_INSTALLED = ("Successfully installed", "is installed in .venv")
_READY = "CFS is ready on"
_PASSED_ON = re.compile(r"PIP_\w+|(https?|all|no)_proxy", re.IGNORECASE)
_ALIVE_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of each step, and the reply. `after_build` is all but the build."""

    clone: float
    build: float
    download_and_start: float
    first_reply: float
    after_build: float
    reply: str


@contextmanager
def container(image: str, clone: Path, pip_cache: Path | None) -> Iterator[str]:
    """Run a container that has git, with a bare clone of this repository as `/cfs.git`."""
    mounts = [f"{clone}:/cfs.git:ro", *([f"{pip_cache}:/pip-cache"] if pip_cache else [])]
    options = [part for mount in mounts for part in ("--volume", mount)]
    options += [part for name in os.environ if _PASSED_ON.fullmatch(name) for part in ("--env", name)]
    if pip_cache:
        options += ["--env", "PIP_CACHE_DIR=/pip-cache"]
    name = f"cfs-newcomer-{os.getpid()}"
    command = ["docker", "run", "--detach", "--rm", "--init", "--name", name, "--workdir", "/root", *options, image]
    subprocess.run([*command, "sleep", str(_ALIVE_SECONDS)], check=True, stdout=subprocess.DEVNULL)
    try:
        git = "apt-get update -qq && apt-get install -y -qq --no-install-recommends git ca-certificates >/dev/null 2>&1"
        subprocess.run(["docker", "exec", name, "sh", "-c", git], check=True)
        yield name
    finally:
        subprocess.run(["docker", "kill", name], check=True, stdout=subprocess.DEVNULL)


def play(name: str) -> Result:
    """Type the three commands, and return when the reply is there."""
    typed = [["docker", "exec", name, "bash", "-c", command] for command in COMMANDS]
    began = time.monotonic()
    _echo(COMMANDS[0])
    subprocess.run(typed[0], check=True)
    cloned = time.monotonic()
    _echo(COMMANDS[1])
    with subprocess.Popen(typed[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as up:
        assert up.stdout is not None
        installed = ready = 0.0
        for line in up.stdout:
            print(f"{time.monotonic() - began:7.1f}  {line}", end="", flush=True)
            if not installed and any(mark in line for mark in _INSTALLED):
                installed = time.monotonic()
            if line.startswith(_READY):
                ready = time.monotonic()
                break
        if not ready:
            raise SystemExit("scripts/up ended before it was ready")
        _echo(COMMANDS[2])
        reply = subprocess.run(typed[2], check=True, capture_output=True, text=True).stdout.strip()
        replied = time.monotonic()
        print(reply, flush=True)
        up.kill()  # the server ends with its container
    return Result(
        clone=round(cloned - began, 1),
        build=round(installed - cloned, 1),
        download_and_start=round(ready - installed, 1),
        first_reply=round(replied - ready, 1),
        after_build=round(replied - installed + cloned - began, 1),
        reply=reply,
    )


def _echo(command: str) -> None:
    print(f"\n$ {command}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="debian:12")
    parser.add_argument("--pip-cache", type=Path)
    parser.add_argument("--limit", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "cfs.git")
        subprocess.run(["git", "clone", "--quiet", "--bare", ROOT, clone], check=True)
        with container(options.image, clone, options.pip_cache) as name:
            result = play(name)
    print("\n| step | seconds |\n|---|--:|")
    for step, value in asdict(result).items():
        if step != "reply":
            print(f"| {step.replace('_', ' ')} | {value} |")
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=1) + "\n")
    return int(result.after_build > options.limit)


if __name__ == "__main__":
    sys.exit(main())
