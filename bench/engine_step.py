"""What a step of the engine costs beside the model: CPU time of the engine's thread, in parts.

The real scheduler runs a small model with random weights in this process, on one thread, with 16 streams that all
speak, at several lengths of context, with idle sessions in the prefix tree and with turns that wait. Its frames go
through a socket to another process. Shown are lower deciles over the steps, in microseconds of this thread's CPU time:
neighbours on the machine take caches away and make most steps dearer. `own` is a whole step but for `llama_decode`,
measured without the clocks of the parts, each of which costs some microseconds; `sampling` is the part of it that
chooses tokens.

    scripts/bench engine_step [--steps 200] [--json FILE]
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cfs.wire import Message, Settings
from cfs_server.engine.chat.prompt import PromptBuilder
from cfs_server.engine.contract import protocol
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import load
from cfs_server.engine.worker.request_preparer import RequestPreparer
from cfs_server.engine.worker.scheduler import Scheduler

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import make_random_gguf

STREAMS = 16
CASES = ((100, 0, 0), (1500, 0, 0), (100, 300, 0), (1500, 300, 0), (100, 0, 10_000))
"""Tokens of context, idle sessions, and turns that wait for a place."""
PARTS = {
    "admission and eviction": ("_admit", "_cache.evict_rested"),
    "shares": ("_fitting_shares",),
    "accounts": ("_runner._book",),
    "sampling": ("_runner._choose",),
    "tokens to text": ("_take",),
    "the frame": ("_flush",),
    "sending it": ("_send",),
}
"""Methods of the scheduler, or of what it holds."""


@dataclass
class Clock:
    """Splits the thread's CPU time among parts; a part inside of another one is not counted in that."""

    spent: Counter[str] = field(default_factory=Counter)
    _open: list[str] = field(default_factory=lambda: ["the rest"])
    _since: float = 0.0

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Time a function."""

        def timed(*values: Any, **named: Any) -> Any:
            self.turn(name)
            try:
                return function(*values, **named)
            finally:
                self.turn(None)

        return timed

    def turn(self, name: str | None) -> None:
        """Begin a part, or end the one that was begun last."""
        now = time.thread_time()
        self.spent[self._open[-1]] += int((now - self._since) * 1e9)
        if name is None:
            self._open.pop()
        else:
            self._open.append(name)
        self._since = time.thread_time()

    def step(self, function: Callable[[], None]) -> dict[str, float]:
        """Run one step; returns microseconds of each part."""
        self.spent.clear()
        self._since = time.thread_time()
        function()
        self.turn("end")
        self._open.pop()
        return {name: spent / 1e3 for name, spent in self.spent.items()}


def install(clock: Clock, scheduler: Scheduler, parts: dict[str, tuple[str, ...]]) -> None:
    """Put the clock around parts of a scheduler."""
    for name, methods in parts.items():
        for path in methods:
            *way, last = path.split(".")
            owner: Any = scheduler
            for step in way:
                owner = getattr(owner, step)
            setattr(owner, last, clock.wrap(name, getattr(owner, last)))


@dataclass(frozen=True, slots=True)
class Case:
    """Lower deciles of one case, in microseconds of CPU time."""

    context: int
    idle: int
    waiting: int
    own: float
    decode: float
    parts: dict[str, float]


@contextmanager
def listener() -> Iterator[socket.socket]:
    """Connect to a process that reads whatever is sent."""
    ours, theirs = socket.socketpair()
    with ours, subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL) as reader:
        theirs.close()
        yield ours
        ours.shutdown(socket.SHUT_WR)
        reader.wait()


class Bench:
    """A scheduler in this process, and what it said of its turns."""

    def __init__(self, model: Path, connection: socket.socket) -> None:
        options = protocol.WorkerOptions(parallel=STREAMS, pool_tokens=49_152, threads=1, step_seconds=60.0)
        loaded = load(str(model), options, NativeLog(lambda _level, _text: None), extra_buffers=True)
        self._connection = connection
        self.scheduler = Scheduler(loaded, self._send)
        self._preparer = RequestPreparer(
            loaded, PromptBuilder(loaded.template), self.scheduler.inbox.put, lambda _turn: None
        )
        self.speaking: set[str] = set()
        self.waiting = 0
        self._ended: set[str] = set()
        threading.Thread(target=self._preparer.run_forever, daemon=True).start()

    def begin(self, turns: list[protocol.Generate]) -> None:
        """Hand in turns."""
        for turn in turns:
            self._preparer.put(turn)

    def run(self, turns: list[protocol.Generate]) -> None:
        """Run turns to their end."""
        self.begin(turns)
        while not self._ended >= {turn.id for turn in turns}:
            self.step()

    def step(self) -> None:
        """Do what the worker does again and again."""
        self.scheduler.take_work()
        self.scheduler.step()

    def _send(self, frame: protocol.FromWorker) -> None:
        protocol.send(self._connection, frame)
        if isinstance(frame, protocol.Step):
            self._ended |= {ended.id for ended in frame.ended}
            if len(self.speaking) < STREAMS:
                self.speaking |= {text.id for text in frame.texts if text.id.startswith("turn")}
        elif isinstance(frame, protocol.Stats):
            self.waiting = frame.waiting


def measure(
    model: Path, context: int, idle: int, waiting: int, steps: int, parts: dict[str, tuple[str, ...]]
) -> dict[str, float]:
    """Run one case on a new scheduler; returns the lower deciles of its parts."""
    with listener() as connection:
        bench = Bench(model, connection)
        for number in range(0, idle, STREAMS):
            bench.run([order(f"idle-{turn}", 60, 2) for turn in range(number, min(idle, number + STREAMS))])
        bench.begin([order(f"turn-{number}", context, 2000) for number in range(STREAMS)])
        while len(bench.speaking) < STREAMS:
            bench.step()
        bench.begin([order(f"waiting-{number}", 20, 2) for number in range(waiting)])
        while bench.waiting < waiting:
            bench.scheduler.inbox.put(protocol.AskStats(0))
            bench.step()
        clock = Clock()
        install(clock, bench.scheduler, {"decode": ("_context.decode",)} | parts)
        taken = [clock.step(bench.step) for _ in range(steps)]
    names = {name for spent in taken for name in spent}
    return {name: statistics.quantiles((spent.get(name, 0.0) for spent in taken), n=10)[0] for name in names}


def order(name: str, context: int, tokens: int) -> protocol.Generate:
    """Make a turn of its own whose prompt has about so many tokens, all but the last few shared: it is read faster."""
    content = "".join(f"w{place} " for place in range(context // 4)) + name
    message = Message(role="user", content=content).model_dump(mode="json", exclude_defaults=True)
    settings = Settings(max_tokens=tokens, stop=("User:", "\n\nEND"), seed=1)
    return protocol.Generate(
        id=name, cache_key=name, keep=0, messages=[message], settings=settings.model_dump(mode="json"), account=name
    )


def case(model: Path, context: int, idle: int, waiting: int, steps: int) -> Case:
    """Measure one case twice: the whole, then its parts."""
    whole = measure(model, context, idle, waiting, steps, {})
    parts = measure(model, context, idle, waiting, steps, PARTS)
    decode = parts.pop("decode")
    return Case(context, idle, waiting, whole["the rest"], decode, parts)


def report(cases: list[Case]) -> str:
    """Write the table in Markdown."""
    heads = [f"{case.context} tokens, {case.idle} idle, {case.waiting} wait" for case in cases]
    lines = ["| microseconds | " + " | ".join(heads) + " |", "|---" + "|--:" * len(cases) + "|"]
    rows = {"**own**": [case.own for case in cases]}
    rows |= {name: [case.parts.get(name, 0.0) for case in cases] for name in [*PARTS, "the rest"]}
    rows["`llama_decode`"] = [case.decode for case in cases]
    lines += [f"| {name} | " + " | ".join(f"{value:.0f}" for value in values) + " |" for name, values in rows.items()]
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_random_gguf.make(Path(folder) / "random-small.gguf", "small")
        cases = [case(model, *numbers, arguments.steps) for numbers in CASES]
    print(report(cases))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(case) for case in cases], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
