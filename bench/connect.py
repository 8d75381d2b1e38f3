"""Measure how long a newcomer waits for the first reply of a model after `cfs connect`.

    python bench/connect.py [--gguf FILE ...] [--rounds 3] [--json FILE]

A server runs with the embedded model. In each round, `cfs connect` connects a stub of a model server, or a GGUF file,
and then `cfs send` sends the first message. The seconds are those of each command, its start included. The reply has
at most 16 tokens. After the round the model is disconnected. Without `--gguf` the file is a copy of the embedded model.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cfs_server.engine.host.models import resolve
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import served_aside

_CFS = Path(sys.executable).with_name("cfs")
_MESSAGE = "My name is Alice."


@dataclass(frozen=True, slots=True)
class Result:
    """Median seconds of the two commands for one model, and the longest of the second."""

    model: str
    connect: float
    first_reply: float
    longest_reply: float


class Newcomer:
    """A home, and a server in it."""

    def __init__(self, home: Path) -> None:
        own = {"HOME": str(home), "CFS_CONNECTIONS": str(home / "models.toml"), "CFS_DATA_DIR": str(home / "data")}
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("CFS_")} | own
        self._process = subprocess.Popen(
            [_CFS, "serve", "--port", "0", "--log-level", "error"], stdout=subprocess.PIPE, text=True, env=self._env
        )
        assert self._process.stdout is not None
        self._env["CFS_URL"] = self._process.stdout.readline().removeprefix("listening on ").strip()

    def timed(self, *arguments: str) -> float:
        """Run `cfs` and return its seconds."""
        began = time.monotonic()
        subprocess.run([_CFS, *arguments], env=self._env, check=True, capture_output=True, text=True)
        return time.monotonic() - began

    def end(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.communicate()


def measure(newcomer: Newcomer, title: str, target: str, rounds: int) -> Result:
    """Connect a model several times, and let it answer each time."""
    connects, replies = [], []
    for number in range(rounds):
        connects.append(newcomer.timed("connect", target))
        replies.append(newcomer.timed("send", f"{title}-{number}", "--set", "max_tokens=16", _MESSAGE))
        newcomer.timed("connect", "--remove", "small-1" if target.startswith("http") else Path(target).stem)
    return Result(title, statistics.median(connects), statistics.median(replies), max(replies))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all models and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gguf", type=Path, action="append", default=[], help="a model file; may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy-of-the-embedded-model.gguf"
        shutil.copy(resolve(None).path, copy)
        newcomer = Newcomer(Path(folder))
        try:
            with served_aside(OpenAIStub(key=None)) as url:
                results = [measure(newcomer, "server", url, options.rounds)]
            for file in options.gguf or [copy]:
                results += [measure(newcomer, file.stem, str(file.absolute()), options.rounds)]
        finally:
            newcomer.end()
    for result in results:
        sys.stdout.write(
            f"{result.model:36} cfs connect {result.connect:6.2f} s   first reply {result.first_reply:6.2f} s"
            f" (longest {result.longest_reply:.2f} s)\n"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
