"""The peers: servers in processes of their own, all spoken to as OpenAI's chat interface."""

import asyncio
import contextlib
import json
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from engine_bench import client, processes
from engine_bench.client import Address, RefusedError
from engine_bench.environments import BATCH, PACKAGED, cache_folder
from engine_bench.ours import system_info
from engine_bench.sides import Answer, Setup, Side, SideError, Turn
from engine_bench.source import Source

START_SECONDS = 120.0


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
            "interrupt_requests": False,  # else who comes second ends the stream of who came first
            "port": port,
        }
        command = [python, "-m", "llama_cpp.server", *(text for f, v in flags.items() for text in (f"--{f}", str(v)))]
        process = await started([str(part) for part in command], port, "packaged", "/v1/models")
        return cls(f"our own: {system_info()}", process, Address("127.0.0.1", port))

    async def evaluated(self) -> None:
        """It does not say."""
        return

    async def busy(self) -> int:
        """It is not known; a request that is answered says that the ones before it are over."""
        await client.fetch(self.address, "/v1/models")
        return 0


class BatchServer(ChatServer):
    """The batching server among llama-cpp-python's examples, on our own build of the library."""

    name = "batch server"
    source: ClassVar[Source | None] = None

    @classmethod
    async def start(cls, setup: Setup) -> "BatchServer":
        """Start it; raises `SideError`."""
        if cls.source is None:
            raise SideError("it comes with llama-cpp-python's source: name its folder with --source")
        script = cls.source.batch_server()
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
        beside = (await asyncio.to_thread(cls.source.llama_server)).parent
        command = [str(python), str(script), "-C", str(config)]
        pictures = {"MTMD_CPP_LIB": str(beside)}  # it wants that library, which ours is built without
        process = await started(command, port, "batch", "/healthz", pictures)
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


def log_of(name: str) -> Path:
    """Where a peer says what it has to say to people."""
    return Path(tempfile.gettempdir()) / f"cfs-bench-{name}.log"


async def started(
    command: list[str], port: int, name: str, path: str, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start a server, with more in its environment, and wait until it answers; raises `SideError`."""
    log = log_of(name)
    process = await processes.spawn(command, log, quiet=True, environment=environment or {})
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
