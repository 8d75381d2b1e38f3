"""W3: many sessions that begin alike. Counts the prompt tokens that are evaluated; noise cannot touch them.

Four kinds of fan-out from a prompt of some 2,000 tokens: cold (nobody was there before), warm (the next children of the
same prompt), a second level (children of one of the children), and the first parent's next turn after all of them.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx
import numpy as np

from cfs.wire import Message, Settings
from cfs_server.engine.chat.templates import PromptBuilder
from cfs_server.engine.frames import Options
from cfs_server.engine.interface import Finished, GenerationRequest
from cfs_server.engine.llama.loading import LoadedModel, NativeLog, load
from cfs_server.engine.prefixes.tree import PrefixTree, Tokens
from cfs_server.engine.supervisor import LlamaEngine

SHARED = "".join(f"Rule {number}: keep to the point of all the rules. " for number in range(52))
"""Some 2,000 tokens of the random models' vocabulary."""
TOKENS = 6
BAR = 1.05
POOL = Options(parallel=8, pool_tokens=32_768, threads=2)


def user(content: str) -> Message:
    """Make a user's message."""
    return Message(role="user", content=content)


def task(shared: str, number: int) -> list[Message]:
    """A child's history: what it shares with its siblings, and a task of some fifty tokens."""
    return [Message(role="system", content=shared), user(f"task {number}: " + f"do part {number} now " * 3)]


@dataclass
class Ideal:
    """Counts each distinct token once: prompts in a tree of their own."""

    model: LoadedModel
    tree: PrefixTree = field(default_factory=PrefixTree)

    @classmethod
    def of(cls, path: Path) -> "Ideal":
        """Read the model for its tokenizer."""
        log = NativeLog(lambda _level, _text: None)
        return cls(load(str(path), Options(parallel=1, pool_tokens=256, threads=1), log, extra_buffers=True))

    def add(self, history: Sequence[Message]) -> int:
        """Add a prompt; returns how many of its tokens are new."""
        tokens = self._prompt(history)
        known = self.tree.match("", tokens).length
        self.tree.insert("", tokens)
        return len(tokens) - known

    def answer(self, history: Sequence[Message], reply: str) -> None:
        """Add a reply, but for its last token: that was chosen, and nothing was computed from it."""
        said = self.model.vocabulary.tokenize(reply, special=False)[:-1]
        self.tree.insert("", np.concatenate([self._prompt(history), said]))

    def _prompt(self, history: Sequence[Message]) -> Tokens:
        vocabulary = self.model.vocabulary
        builder = PromptBuilder(self.model.template, special=vocabulary.special_text)
        pieces = builder.build(history, Settings(prompt_style="chat")).pieces
        return np.concatenate([vocabulary.tokenize(piece.text, special=piece.trusted) for piece in pieces])


@dataclass(frozen=True, slots=True)
class Case:
    """One fan-out with one engine."""

    engine: str
    children: int
    kind: str
    evaluated: int
    ideal: int
    seconds: float


class Server(Protocol):
    """What answers: the engine itself, or a peer behind HTTP."""

    name: str

    async def ask(self, key: str, history: Sequence[Message]) -> str:
        """Answer a turn, greedily, with `TOKENS` tokens."""
        ...

    async def evaluated(self) -> int:
        """Prompt tokens evaluated since the start."""
        ...

    async def stop(self) -> None:
        """End."""
        ...


class Ours:
    """Our engine."""

    name = "CFS"

    def __init__(self, engine: LlamaEngine) -> None:
        self._engine = engine
        self._number = 0

    @classmethod
    async def start(cls, model: Path) -> "Ours":
        """Load the model."""
        engine = LlamaEngine(str(model), POOL)
        await engine.start()
        return cls(engine)

    async def ask(self, key: str, history: Sequence[Message]) -> str:
        """Answer a turn."""
        self._number += 1
        settings = Settings(temperature=0, max_tokens=TOKENS)
        request = GenerationRequest(f"{key}-{self._number}", key, tuple(history), settings)
        items = [item async for item in self._engine.generate(request)]
        return "".join(item.text for item in items if not isinstance(item, Finished))

    async def evaluated(self) -> int:
        """Prompt tokens evaluated since the start."""
        return (await self._engine.stats()).prompt_tokens_evaluated

    async def stop(self) -> None:
        """End."""
        await self._engine.stop()


class LlamaServer:
    """llama.cpp's server, in a process of its own."""

    name = "llama.cpp server"

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self._client = httpx.AsyncClient(base_url=address, timeout=600)
        self._evaluated = 0

    @classmethod
    async def start(cls, model: Path, python: Path) -> "LlamaServer":
        """Start it with the same file, pool, threads and memory for idle state as ours."""
        wanted = {
            "model": str(model),
            "parallel": POOL.parallel,
            "pool": POOL.pool_tokens,
            "threads": POOL.threads,
            "memory_mib": POOL.parked_bytes >> 20,
        }
        command = [str(python), str(Path(__file__).parent / "peers" / "llama_server.py"), json.dumps(wanted)]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=nothing)
        line = await process.stdout.readline() if process.stdout else b""
        if not line:
            raise RuntimeError(f"{python} cannot run llama.cpp's server: does it have xllamacpp?")
        return cls(process, json.loads(line))

    async def ask(self, key: str, history: Sequence[Message]) -> str:
        """Answer a turn; the server finds a slot for it by likeness, it knows no sessions."""
        body = {
            "messages": [{"role": message.role, "content": message.content} for message in history],
            "max_tokens": TOKENS,
            "temperature": 0,
            "user": key,
        }
        reply = await self._client.post("/v1/chat/completions", json=body)
        answer = reply.json()
        if reply.status_code != 200:
            raise RuntimeError(f"{self.name}: {reply.status_code} {reply.text[:500]}")
        self._evaluated += answer["timings"]["prompt_n"]
        return str(answer["choices"][0]["message"]["content"])

    async def evaluated(self) -> int:
        """Prompt tokens evaluated since the start."""
        return self._evaluated

    async def stop(self) -> None:
        """End."""
        await self._client.aclose()
        self._process.kill()
        await self._process.wait()


async def fan_out(server: Server, ideal: Ideal, children: int) -> list[Case]:
    """Run the four kinds, one after the other, on one server."""
    cases = []

    async def measure(kind: str, turns: dict[str, list[Message]]) -> list[str]:
        wanted = sum(ideal.add(history) for history in turns.values())
        before, began = await server.evaluated(), time.perf_counter()
        replies = await asyncio.gather(*(server.ask(key, history) for key, history in turns.items()))
        seconds = time.perf_counter() - began
        cases.append(Case(server.name, children, kind, await server.evaluated() - before, wanted, round(seconds, 3)))
        print(cases[-1], file=sys.stderr)
        return list(replies)

    await measure("cold", {f"cold{n}": task(SHARED, n) for n in range(children)})
    warm = {f"warm{n}": task(SHARED, 100 + n) for n in range(children)}
    replies = await measure("warm", warm)
    grown = [*warm["warm0"], Message(role="assistant", content=replies[0])]
    ideal.answer(warm["warm0"], replies[0])
    middle = [*grown, user("split this: " + "into small parts " * 30)]
    await measure("second level", {f"deep{n}": [*middle, *task("", n)[1:]] for n in range(children)})
    await measure("parent resumes", {"warm0": [*grown, user("what came of it? " * 4)]})
    return cases


async def measure(model: Path, peer: Path | None, *, smoke: bool) -> list[Case]:
    """Run all cases with each engine, fresh for each number of children."""
    cases: list[Case] = []
    for children in (4,) if smoke else (4, 16):
        servers: list[Server] = [await Ours.start(model)]
        if peer is not None:
            servers.append(await LlamaServer.start(model, peer))
        for server in servers:
            try:
                cases += await fan_out(server, Ideal.of(model), children)
            finally:
                await server.stop()
    return cases


def report(cases: Sequence[Case]) -> str:
    """Write a table in Markdown, and whether the bar is met."""
    lines = ["| engine | children | case | evaluated | ideal | ratio | seconds |", "|---|--:|---|--:|--:|--:|--:|"]
    lines += [
        f"| {case.engine} | {case.children} | {case.kind} | {case.evaluated} | {case.ideal}"
        f" | {case.evaluated / case.ideal:.2f} | {case.seconds:.2f} |"
        for case in cases
    ]
    ours = [case for case in cases if case.engine == Ours.name]
    met = all(case.evaluated <= BAR * case.ideal for case in ours)
    return "\n".join([*lines, "", f"Bar: at most {BAR} times the ideal in each case: {'met' if met else 'MISSED'}."])
