"""Our engine as a side: `LlamaEngine` in this process, its worker beside it."""

import itertools
import time
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as lib

from cfs.errors import CfsError
from cfs.wire import Settings
from cfs_server.engine.contract.interface import Delta, EngineStats, GenerationRequest
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.contract.reply_options import ReplyOptions
from cfs_server.engine.host.supervisor import LlamaEngine
from engine_bench.sides import Answer, Setup, Side, SideError, Turn


def system_info() -> str:
    """Say what our library was built for."""
    return " ".join(lib.llama_print_system_info().decode().split())


def options_of(setup: Setup) -> WorkerOptions:
    """Translate what all sides are given."""
    return WorkerOptions(
        parallel=setup.parallel,
        pool_tokens=setup.pool_tokens,
        threads=setup.threads,
        parked_bytes=setup.memory_mib << 20,
        step_tokens=setup.batch_tokens,
        speculation=setup.speculation,
    )


class Ours(Side):
    """CFS."""

    name = "CFS"

    def __init__(self, engine: LlamaEngine, pid: int, *, extra_buffers: bool) -> None:
        super().__init__(f"llama-cpp-python {llama_cpp.__version__}: {system_info()}")
        self.engine = engine
        self.extra_buffers = extra_buffers
        """Whether the library's fastest code survives this machine (`probe`)."""
        self._pid = pid
        self._numbers = itertools.count()

    @classmethod
    async def start(cls, setup: Setup, options: WorkerOptions | None = None) -> "Ours":
        """Load the model; raises `ModelLoadError`."""
        engine = LlamaEngine(str(setup.model), options or options_of(setup))
        model = await engine.start()
        return cls(engine, (await engine.stats()).worker_pid or 0, extra_buffers=not model.notes)

    @property
    def pid(self) -> int:
        """The worker."""
        return self._pid

    async def ask(self, turn: Turn, answer: Answer | None = None) -> Answer:
        """Answer a turn; raises `SideError`."""
        answer = answer or Answer()
        wanted: dict[str, Any] = {"temperature": turn.temperature, "max_tokens": turn.tokens, "prompt_style": "chat"}
        if turn.temperature:
            wanted |= {"top_k": 0, "top_p": 1, "min_p": 0, "seed": turn.seed}
        if turn.exact:
            wanted["min_tokens"] = turn.tokens
        request = GenerationRequest(
            f"{turn.session}-{next(self._numbers)}",
            turn.session,
            turn.messages,
            Settings(**wanted),
            ReplyOptions(json_schema=turn.schema),
            owner=turn.owner,
            kind=turn.kind,
        )
        stream = self.engine.generate(request)
        try:
            async for item in stream:
                if isinstance(item, Delta):
                    answer.arrive(item.text, item.tokens)
                else:
                    answer.tokens, answer.prompt_tokens = item.usage.completion_tokens, item.usage.prompt_tokens
                    answer.stopped = item.reason == "stop"
        except CfsError as error:
            raise SideError(error.detail) from error
        finally:
            await stream.aclose()  # type: ignore[attr-defined]  # the protocol promises less than a generator
        answer.ended = time.perf_counter()
        return answer

    async def stats(self) -> EngineStats:
        """Counters and gauges of now."""
        return await self.engine.stats()

    async def evaluated(self) -> int:
        """Prompt tokens evaluated since the start."""
        return (await self.engine.stats()).prompt_tokens_evaluated

    async def busy(self) -> int:
        """Turns that run or wait."""
        stats = await self.engine.stats()
        return stats.running + stats.waiting

    def forget(self, session: str) -> None:
        """Free what is kept for a session."""
        self.engine.forget(session)

    async def stop(self) -> None:
        """End."""
        await self.engine.stop()
