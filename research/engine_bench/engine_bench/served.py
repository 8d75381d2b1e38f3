"""The real server, `cfs serve`, in a process of its own: for what only it does."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from engine_bench import client, processes
from engine_bench.client import Address

WORKER = "cfs_server.engine.worker.worker"
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller of the server, with a token or without."""

    address: Address
    token: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def say(self, session: str, content: str, **settings: Any) -> dict[str, Any]:
        """Post a message; the answer says that it was accepted. Raises `client.RefusedError`."""
        return await self._post(f"/v1/sessions/{session}/messages", content, settings)

    async def reply(self, session: str, content: str, **settings: Any) -> dict[str, Any]:
        """Post a message and wait for the reply."""
        return await self._post(f"/v1/sessions/{session}/messages?wait=true", content, settings)

    async def session(self, session: str) -> dict[str, Any]:
        """Read a session with its history."""
        found: dict[str, Any] = await client.fetch(
            self.address, f"/v1/sessions/{session}", headers={"Accept": "application/json"} | self._headers
        )
        return found

    async def settled(self, session: str, seconds: int = 120) -> dict[str, Any]:
        """Wait until a session is idle, and read it."""
        path = f"/v1/sessions/{session}/wait?timeout={seconds}"
        await client.fetch(self.address, path, headers=self._headers)
        return await self.session(session)

    async def _post(self, path: str, content: str, settings: dict[str, Any]) -> dict[str, Any]:
        body = {"content": content, "settings": self.settings | settings}
        found: dict[str, Any] = await client.fetch(self.address, path, body, headers=self._headers)
        return found


class Served:
    """A running server."""

    def __init__(self, pid: int, address: Address) -> None:
        self.pid = pid
        self.address = address

    def worker(self) -> psutil.Process:
        """The worker process of its engine."""
        return next(process for process in processes.family(self.pid) if WORKER in process.cmdline())


@contextlib.asynccontextmanager
async def serving(model: Path, *flags: str) -> AsyncIterator[Served]:
    """Run `cfs serve` for as long as the block lasts."""
    program = Path(sys.executable).with_name("cfs")
    log = Path(tempfile.gettempdir()) / "cfs-bench-server.log"
    command: list[str | Path] = [program, "serve", "--port", "0", "--log-level", "error", "--model", model, *flags]
    process = await processes.spawn(command, log)
    try:
        async with asyncio.timeout(START_SECONDS):
            line = (await process.stdout.readline()).decode() if process.stdout else ""
        if not line.startswith("listening on "):
            raise RuntimeError(f"the server did not start: {processes.last_line(log)}")
        yield Served(process.pid, Address.of(line.removeprefix("listening on ")))
    finally:
        await processes.end(process, gently=True)
