"""llama.cpp's own server: out of a wheel, or compiled from the source that our own build of the library comes from."""

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

from engine_bench import client, processes
from engine_bench.client import Address
from engine_bench.environments import LLAMA_SERVER
from engine_bench.servers import START_SECONDS, ChatServer, log_of, started
from engine_bench.sides import Answer, Setup, SideError, Turn
from engine_bench.source import Source

_SCRIPT = Path(__file__).parents[1] / "peers" / "llama_server.py"
_LOG = "llama-server"


class LlamaServer(ChatServer):
    """llama.cpp's own server: with `source` compiled from it, else out of the xllamacpp wheel."""

    name = "llama.cpp server"
    source: ClassVar[Source | None] = None
    # The one sampler that its users would choose for greedy replies: the others would cost it time for nothing.
    extra: ClassVar[dict[str, Any]] = {"samplers": ["top_k"], "top_k": 1}

    def __init__(self, build: str, process: asyncio.subprocess.Process, address: Address) -> None:
        super().__init__(build, process, address)
        self._evaluated = 0
        self.timings: dict[str, float] = {}

    @classmethod
    async def start(cls, setup: Setup) -> "LlamaServer":
        """Start it; raises `SideError`."""
        return await (cls._from_wheel(setup) if cls.source is None else cls._compiled(setup, cls.source))

    @classmethod
    async def _compiled(cls, setup: Setup, source: Source) -> "LlamaServer":
        program = await asyncio.to_thread(source.llama_server)
        port = processes.free_port()
        flags: dict[str, object] = {
            "model": setup.model,
            "host": "127.0.0.1",
            "port": port,
            "parallel": setup.parallel,
            "ctx-size": setup.pool_tokens,
            "batch-size": setup.batch_tokens,
            "ubatch-size": setup.batch_tokens,
            "threads": setup.threads,
            "threads-batch": setup.threads,
            "cache-ram": setup.memory_mib,
        }
        command = [str(program), "--kv-unified", "--slots", *setup.guess_flags.split()]
        command += [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
        build = f"compiled with our flags from {source.folder.name}: {await asyncio.to_thread(source.system_info)}"
        process = await started(command, port, _LOG, "/health")
        return cls(build, process, Address("127.0.0.1", port))

    @classmethod
    async def _from_wheel(cls, setup: Setup) -> "LlamaServer":
        wanted = {
            "model": str(setup.model),
            "parallel": setup.parallel,
            "pool": setup.pool_tokens,
            "threads": setup.threads,
            "memory_mib": setup.memory_mib,
            "batch": setup.batch_tokens,
        }
        python = await asyncio.to_thread(LLAMA_SERVER.python)
        log = log_of(_LOG)
        process = await processes.spawn([python, _SCRIPT, json.dumps(wanted)], log)
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = json.loads(await process.stdout.readline() if process.stdout else b"")
        except BaseException as error:
            await processes.end(process)
            if not isinstance(error, TimeoutError | ValueError):
                raise
            raise SideError(f"llama.cpp's server did not start: {processes.last_line(log)}") from error
        return cls(ready["build"], process, Address.of(ready["address"]))

    def _body(self, turn: Turn) -> dict[str, Any]:
        body = super()._body(turn) | {"ignore_eos": turn.schema is None}
        if turn.temperature:
            body |= {"samplers": ["temperature"], "temperature": turn.temperature, "seed": turn.seed}
        return body

    def _note(self, event: dict[str, Any], answer: Answer) -> None:
        super()._note(event, answer)
        if timings := event.get("timings"):
            self._evaluated += timings["prompt_n"]
            self.timings = timings

    async def evaluated(self) -> int:
        """Prompt tokens evaluated for the turns that came to their end."""
        return self._evaluated

    async def busy(self) -> int:
        """Slots at work."""
        slots = await client.fetch(self.address, "/slots")
        return sum(slot["is_processing"] for slot in slots)
