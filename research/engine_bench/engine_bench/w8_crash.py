"""W8: the worker is killed in the middle of its work, behind the real server. What was acknowledged must be there.

Beside it a twin server is left in peace. Sessions that had a turn before the kill go on on both, one after the other:
their greedy replies must be the same. The killed one reads their histories again from text. So the condition is that
the text of a reply is cut into the very tokens that the model had chosen: random models of the plain kind reply so, and
trained ones nearly always. For the rough kind, whose replies are cut differently, the figure is only shown.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from engine_bench.bench import Bench
from engine_bench.client import RefusedError
from engine_bench.served import Caller, Served, serving
from engine_bench.tables import Verdict, table
from engine_bench.waiting import LONGEST

GREEDY = {"temperature": 0, "prompt_style": "chat"}
SPEAKING = 2
"""So many sessions are in the middle of a reply when the worker is killed."""
ERROR = "[Error: "


@dataclass(frozen=True, slots=True)
class Crash:
    """All of W8: messages of the sessions that were at work, and turns of the twins."""

    acknowledged: int
    refused: int
    lost: int
    replied: int
    errors: int
    unanswered: int
    next_turns: int
    next_turns_good: int
    twins: int
    equal: int
    rough_twins: int
    rough_equal: int

    def markdown(self) -> str:
        """Write the table."""
        rows: list[list[object]] = [
            ["messages acknowledged, before and after the kill", self.acknowledged],
            ["messages refused", self.refused],
            ["acknowledged and not in the transcript", self.lost],
            ["answered by a reply", self.replied],
            ["answered by an error in the transcript", self.errors],
            ["not answered", self.unanswered],
            ["next turns that work", f"{self.next_turns_good} of {self.next_turns}"],
            ["replies after the kill equal to the twin's", f"{self.equal} of {self.twins}"],
            ["the same where a reply is cut into other tokens", f"{self.rough_equal} of {self.rough_twins}"],
        ]
        return table(["what", "count"], rows)

    def verdicts(self) -> list[Verdict]:
        """Judge: counts say the same in a smoke test."""
        return [
            Verdict("acknowledged messages lost or without an answer", self.lost + self.unanswered, 0),
            Verdict("next turns that do not work", self.next_turns - self.next_turns_good, 0),
            Verdict("replies after the kill that differ from the twin's", self.twins - self.equal, 0),
        ]


async def run(bench: Bench) -> Crash:
    """Kill the worker of a server with the plain model, and of one with the rough model for the twins alone."""
    busy, twins = (6, 3) if bench.smoke else (24, 12)
    plain, rough = bench.models.small, bench.models.rough_small
    prompts = bench.models.prompts(plain)
    words = {n: prompts.message(f"word{n}", 60).content for n in range(4 * max(busy, twins))}
    async with _pair(plain) as (server, twin):
        await _first_turns(server, twin, twins, words)
        crash = await _crash(server, busy, words)
        equal = await _second_turns(server, twin, twins, words)
    async with _pair(rough) as (server, twin):
        await _first_turns(server, twin, twins, words)
        server.worker().kill()
        rough_equal = await _second_turns(server, twin, twins, words)
    return Crash(**crash, twins=twins, equal=equal, rough_twins=twins, rough_equal=rough_equal)


@contextlib.asynccontextmanager
async def _pair(model: Path) -> AsyncIterator[tuple[Served, Served]]:
    async with serving(model) as server, serving(model) as twin:
        yield server, twin


async def _first_turns(server: Served, twin: Served, twins: int, words: dict[int, str]) -> None:
    """Say the same to both, one session after the other."""
    for n in range(twins):
        for each in (server, twin):
            await Caller(each.address, settings=GREEDY).reply(f"twin{n}", words[n], max_tokens=24)


async def _second_turns(server: Served, twin: Served, twins: int, words: dict[int, str]) -> int:
    """Go on with both, one session after the other; returns how many replies are equal."""
    equal = 0
    for n in range(twins):
        replies = [
            (await Caller(each.address, settings=GREEDY).reply(f"twin{n}", words[twins + n], max_tokens=24))["reply"]
            for each in (server, twin)
        ]
        equal += replies[0] == replies[1]
    return equal


async def _crash(server: Served, busy: int, words: dict[int, str]) -> dict[str, int]:
    """Kill the worker while sessions speak and wait, go on writing, and count what became of every message."""
    caller = Caller(server.address, settings=GREEDY)
    said: dict[str, list[str]] = {f"busy{n}": [] for n in range(busy)}
    refused = 0

    async def say(session: str, content: str) -> None:
        nonlocal refused
        try:
            await caller.say(session, content, max_tokens=120)
            said[session].append(content)
        except RefusedError:
            refused += 1

    for n in range(busy):
        await say(f"busy{n}", words[n] + " first")
    await _speaking(caller, list(said))
    worker = server.worker()
    worker.kill()
    for n in range(busy):  # while no worker can compute
        await say(f"busy{n}", words[busy + n] + " second")
    histories = {session: (await caller.settled(session))["history"] for session in said}
    lost = replied = errors = unanswered = 0
    for session, contents in said.items():
        history = histories[session]
        for content in contents:
            places = [n for n, message in enumerate(history) if message["content"] == content]
            lost += len(places) != 1
            answer = history[places[0] + 1] if places and places[0] + 1 < len(history) else None
            answered = answer is not None and answer["role"] == "assistant"
            failed = answered and answer is not None and answer["content"].startswith(ERROR)
            unanswered += not answered
            errors += failed
            replied += answered and not failed
    good = 0
    for session in said:
        reply = await caller.reply(session, words[2 * busy] + " third", max_tokens=8)
        good += reply["finish_reason"] == "length"
    return {
        "acknowledged": sum(map(len, said.values())),
        "refused": refused,
        "lost": lost,
        "replied": replied,
        "errors": errors,
        "unanswered": unanswered,
        "next_turns": busy,
        "next_turns_good": good,
    }


async def _speaking(caller: Caller, sessions: list[str]) -> None:
    """Wait until some sessions are in the middle of a reply."""
    async with asyncio.timeout(LONGEST):
        speaking = 0
        while speaking < SPEAKING:
            speaking = sum([bool((await caller.session(session))["partial"]) for session in sessions])
