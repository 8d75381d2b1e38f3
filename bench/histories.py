"""What the forms of a history cost: to make them, and in front of an upstream, beside another version of CFS.

    scripts/bench histories [--other PROGRAM] [--rounds 40] [--smoke]

A history of 200 messages is put into each form: one of questions, calls, results and answers, and an odd one, with
system messages in the middle and questions without an answer. Then `cfs serve --upstream` streams replies of 2,000
tokens to chat completions that have this history. The upstream is the stub of `scripts/bench gateway`. `--other` is the
program `cfs` of another version. Both versions run at the same time and are asked in turns, so that other work on the
machine slows both; the order changes with each round. Figures are medians, also those of the ratios of each round;
processor time is a mean.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil

from cfs.wire import Message, ToolCall
from cfs_server.engine.contract.history_forms import HistoryForm, in_form
from gateway import started
from gateway_load import MODEL, allow_files

BENCH = Path(__file__).parent
MESSAGES = 200
TOKENS = 2000
_RATE = 50_000
"""Tokens a second of the stub: more than a server passes on, so that its own speed counts."""
_THIS, _OTHER = "this version", "the other"
_FLAGS = ("--store=memory", "--log-level=error")


def history(*, odd: bool) -> list[Message]:
    """Make a history of an agent."""
    messages: list[Message] = []
    number = 0
    while len(messages) < MESSAGES:
        number += 1
        messages.append(Message(role="user", content=f"Question {number}. " * 10))
        if number % 2:
            call = ToolCall(id=f"call_{number:024d}", name="read_file", arguments={"path": f"notes/{number}.txt"})
            messages.append(Message(role="assistant", content="", tool_calls=(call,)))
            messages.append(Message(role="tool", content="A line. " * 60, tool_call_id=call.id, name=call.name))
        if not odd or number % 5:
            messages.append(Message(role="assistant", content="An answer. " * 20))
        if odd and not number % 7:
            messages.append(Message(role="system", content="Be brief."))
    return [*messages[: MESSAGES - 1], Message(role="user", content="And now?")]


def median_ms(act: Callable[[], object], rounds: int) -> float:
    """Return the median time of an act in milliseconds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def row_of(message: Message) -> dict[str, object]:
    """Write a message as a client of OpenAI's protocol does."""
    if message.role == "tool":
        return {"role": "tool", "content": message.content, "tool_call_id": message.tool_call_id}
    row: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        row["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
            for c in message.tool_calls
        ]
    return row


@contextmanager
def streamed(client: httpx.Client, body: dict[str, object]) -> Iterator[list[float]]:
    """Ask for a reply; the value is when its pieces came, in seconds since the request."""
    began = time.perf_counter()
    times = []
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        times = [time.perf_counter() - began for data in answer.iter_raw() if b"~" in data]
    yield times


def ask(client: httpx.Client, body: dict[str, object]) -> tuple[float, float]:
    """Return the time to the first token in milliseconds, and the tokens per second after it."""
    with streamed(client, body) as times:
        return 1000 * times[0], (TOKENS - 1) / max(times[-1] - times[0], 1e-6)


Figures = dict[tuple[str, str], list[tuple[float, float, float]]]
"""Times to the first token, rates, and processor time of the server, of all rounds, by history and version."""


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def compare(programs: dict[str, str], rounds: int) -> Figures:
    """Ask all versions in turns."""
    figures: Figures = defaultdict(list)
    stub = (sys.executable, "-c", f"import gateway_load; gateway_load.serve_stub({_RATE})")
    messages = [row_of(message) for message in history(odd=False)]
    bodies = {
        str(len(rows)): {"model": MODEL, "stream": True, "max_tokens": TOKENS, "messages": rows}
        for rows in (messages[-1:], messages)
    }
    with ExitStack() as stack:
        upstream, _ = stack.enter_context(started(*stub, folder=BENCH))
        clients, processes = {}, {}
        for name, program in programs.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            flags = ("--port=0", f"--upstream={upstream}/v1", *_FLAGS)
            url, processes[name] = stack.enter_context(started(program, "serve", *flags, folder=folder))
            clients[name] = stack.enter_context(httpx.Client(base_url=url, timeout=60, trust_env=False))
            for body in bodies.values():
                ask(clients[name], body)
        for number in range(rounds):
            names = list(clients) if number % 2 else list(reversed(clients))
            for kind, body in bodies.items():
                for name in names:
                    spent = _cpu(processes[name])
                    first, rate = ask(clients[name], body)
                    figures[kind, name].append((first, rate, 1000 * (_cpu(processes[name]) - spent)))
    return figures


def shown(figures: Figures) -> str:
    """Write the table; the ratios are those of this version to the other."""
    lines = [
        "| messages | version | ms to the first token | tokens/s | CPU ms of a reply | ratios |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for (kind, name), values in figures.items():
        first, rate, _ = (statistics.median(column) for column in zip(*values, strict=True))
        cpu = statistics.mean(spent for _, _, spent in values)  # its clock is coarse
        others = figures.get((kind, _OTHER), []) if name != _OTHER else []
        ratios = [
            statistics.median(mine[column] / theirs[column] for mine, theirs in zip(values, others, strict=True))
            for column in ((0, 1) if others else ())
        ]
        ratios += [cpu / statistics.mean(spent for _, _, spent in others)] if others else []
        text = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        lines.append(f"| {kind} | {name} | {first:.1f} | {rate:,.0f} | {cpu:.0f} | {text} |")
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", help="program `cfs` of another version, to compare with")
    parser.add_argument("--rounds", type=int, default=40, help="how often each version is asked")
    parser.add_argument("--smoke", action="store_true", help="a few rounds: does it work at all?")
    options = parser.parse_args()
    rounds = 2 if options.smoke else options.rounds
    print("| form | ms for 200 messages | of an odd history |\n|---|--:|--:|")
    for form in HistoryForm:
        usual, odd = (
            median_ms(lambda m=messages, f=form: in_form(m, f), 10 * rounds)  # type: ignore[misc]
            for messages in (history(odd=False), history(odd=True))
        )
        print(f"| {form.name.lower()} | {usual:.2f} | {odd:.2f} |")
    allow_files()
    programs = {_THIS: str(Path(sys.executable).with_name("cfs"))}
    if options.other:
        programs[_OTHER] = options.other
    print(f"\n{shown(compare(programs, rounds))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
