"""The peers: servers in processes of their own, all spoken to as OpenAI's chat interface."""

import asyncio
import contextlib
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

from engine_bench import client, processes
from engine_bench.client import Address, RefusedError
from engine_bench.environments import BATCH, LLAMA_SERVER, PACKAGED, cache_folder
from engine_bench.ours import system_info
from engine_bench.sides import Answer, Setup, Side, SideError, Turn

START_SECONDS = 120.0
_LLAMA_SERVER = Path(__file__).parents[1] / "peers" / "llama_server.py"


class ChatServer(Side):
    """A server behind `/v1/chat/completions`. It finds what it knows of a session by likeness."""

    extra: ClassVar[dict[str, Any]] = {}
    """What its requests say beside the usual."""

    def __init__(self, build: str, process: asyncio.subprocess.Process, address: Address) -> None:
        super().__init__(build)
        self.address = address
        self._process = process

    @property
    def pid(self) -> int:
        """The server."""
        return self._process.pid

    async def ask(self, turn: Turn, answer: Answer | None = None) -> Answer:
        """Answer a turn; raises `SideError`."""
        answer = answer or Answer()
        try:
            async for event in client.events(self.address, "/v1/chat/completions", self._body(turn)):
                self._note(event, answer)
        except RefusedError as error:
            raise SideError(str(error)) from error
        except (OSError, EOFError, ValueError) as error:
            raise SideError(f"{type(error).__name__} {error}") from error
        answer.ended = time.perf_counter()
        return answer

    async def stop(self) -> None:
        """End."""
        await processes.end(self._process)

    def _body(self, turn: Turn) -> dict[str, Any]:
        body = {
            "messages": [{"role": message.role, "content": message.content} for message in turn.messages],
            "max_tokens": turn.tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if turn.schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": turn.schema}}
        return body | self.extra

    def _note(self, event: dict[str, Any], answer: Answer) -> None:
        if "error" in event:
            raise SideError(str(event["error"])[:300])
        for choice in event.get("choices", ()):
            if text := choice.get("delta", {}).get("content"):
                answer.arrive(text)
            answer.stopped = answer.stopped or choice.get("finish_reason") == "stop"
        if usage := event.get("usage"):
            answer.tokens, answer.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]


class LlamaServer(ChatServer):
    """llama.cpp's own server, out of the xllamacpp wheel."""

    name = "llama.cpp server"
    # The one sampler that its users would choose for greedy replies: the others would cost it time for nothing.
    extra: ClassVar[dict[str, Any]] = {"samplers": ["top_k"], "top_k": 1}

    def __init__(self, build: str, process: asyncio.subprocess.Process, address: Address) -> None:
        super().__init__(build, process, address)
        self._evaluated = 0
        self.timings: dict[str, float] = {}

    @classmethod
    async def start(cls, setup: Setup) -> "LlamaServer":
        """Start it; raises `SideError`."""
        wanted = {
            "model": str(setup.model),
            "parallel": setup.parallel,
            "pool": setup.pool_tokens,
            "threads": setup.threads,
            "memory_mib": setup.memory_mib,
            "batch": setup.batch_tokens,
        }
        python = await asyncio.to_thread(LLAMA_SERVER.python)
        log = _log_of("llama-server")
        process = await processes.spawn([python, _LLAMA_SERVER, json.dumps(wanted)], log)
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = json.loads(await _line(process))
        except BaseException as error:
            await processes.end(process)
            if not isinstance(error, TimeoutError | ValueError):
                raise
            raise SideError(f"llama.cpp's server did not start: {processes.last_line(log)}") from error
        return cls(ready["build"], process, Address.of(ready["address"]))

    def _body(self, turn: Turn) -> dict[str, Any]:
        return super()._body(turn) | {"ignore_eos": turn.schema is None}

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


class PackagedServer(ChatServer):
    """llama-cpp-python's packaged server, on our own build of the library. It serves one request at a time."""

    name = "packaged server"

    @classmethod
    async def start(cls, setup: Setup) -> "PackagedServer":
        """Start it; raises `SideError`."""
        python = await asyncio.to_thread(PACKAGED.python)
        port = processes.free_port()
        flags: dict[str, object] = {
            "model": setup.model,
            "n_ctx": setup.pool_tokens,
            "n_batch": setup.batch_tokens,
            "n_ubatch": setup.batch_tokens,
            "n_threads": setup.threads,
            "n_threads_batch": setup.threads,
            "flash_attn": True,
            "logits_all": False,
            "cache": True,
            "cache_size": setup.memory_mib << 20,
            "verbose": False,
            "port": port,
        }
        command = [python, "-m", "llama_cpp.server", *(text for f, v in flags.items() for text in (f"--{f}", str(v)))]
        process = await _started([str(part) for part in command], port, "packaged", "/v1/models")
        return cls(f"our own: {system_info()}", process, Address("127.0.0.1", port))

    async def evaluated(self) -> None:
        """It does not say."""
        return

    async def busy(self) -> int:
        """Nobody can tell; a request that is answered says that the ones before it are over."""
        await client.fetch(self.address, "/v1/models")
        return 0


class BatchServer(ChatServer):
    """The batching server among llama-cpp-python's examples, on our own build of the library."""

    name = "batch server"
    source: ClassVar[Path | None] = None
    """The unpacked source distribution that holds it."""

    @classmethod
    async def start(cls, setup: Setup) -> "BatchServer":
        """Start it; raises `SideError`."""
        script = cls.source / "examples" / "server" / "server.py" if cls.source else None
        if script is None or not script.is_file():
            raise SideError("there is no examples/server/server.py: name the source distribution with --batch-server")
        python = await asyncio.to_thread(BATCH.python)
        port = processes.free_port()
        model = {
            "path": str(setup.model),
            "n_ctx": setup.pool_tokens,
            "n_batch": setup.batch_tokens,
            "n_ubatch": setup.batch_tokens,
            "n_seq_max": setup.parallel,
            "threads": setup.threads,
            "threads_batch": setup.threads,
            "flash_attn": True,
            "kv_unified": True,
            "store_logits": False,
        }
        config = _write({"server": {"port": port}, "model": model}, cache_folder() / "batch.json")
        process = await _started([str(python), str(script), "-C", str(config)], port, "batch", "/healthz")
        return cls(f"our own: {system_info()}", process, Address("127.0.0.1", port))

    async def evaluated(self) -> int:
        """Prompt tokens evaluated since the start."""
        return await self._metric("prompt_tokens_total")

    async def busy(self) -> int:
        """Turns at work."""
        return await self._metric("requests_processing")

    async def _metric(self, name: str) -> int:
        text = await client.fetch(self.address, "/metrics")
        found = re.search(rf"^\w*:?{name}(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.MULTILINE)
        if found is None:
            raise SideError(f"the batch server has no metric {name}")
        return int(float(found[1]))


def _write(config: dict[str, Any], path: Path) -> Path:
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def _log_of(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"cfs-bench-{name}.log"


async def _line(process: asyncio.subprocess.Process) -> bytes:
    return await process.stdout.readline() if process.stdout else b""


async def _started(command: list[str], port: int, name: str, path: str) -> asyncio.subprocess.Process:
    """Start a server and wait until it answers; raises `SideError`."""
    log = _log_of(name)
    process = await processes.spawn(command, log, quiet=True)
    deadline = time.monotonic() + START_SECONDS
    try:
        while process.returncode is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError, EOFError, RefusedError):
                await client.fetch(Address("127.0.0.1", port), path)
                return process
            await asyncio.sleep(0.1)
    except BaseException:
        await processes.end(process)
        raise
    await processes.end(process)
    raise SideError(f"the {name} server did not start: {processes.last_line(log)}")
