"""A process that was started: what it says on standard output, and its end."""

import asyncio
import contextlib
import signal
from typing import Self

import typer


class Child:
    """A running program, with a process group of its own, so that a Ctrl-C reaches it through us only.

    Its standard input is a pipe that ends with us.
    """

    def __init__(self, process: asyncio.subprocess.Process, beginning: str) -> None:
        self._process = process
        self._beginning = beginning
        self._said: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, *command: str, beginning: str) -> Self:
        """Start a program, whose standard error is ours; `beginning` is how the line begins that says it is ready."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, process_group=0
        )
        return cls(process, beginning)

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    async def ready(self) -> str | None:
        """Wait for what it says when it is ready, and return the rest of that line; None when it ends before."""
        return await asyncio.shield(self._said)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end, and return its exit code as a shell would."""
        await asyncio.wait([self._reading])
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def end(self) -> int:
        """Ask it to end, and wait until it has."""
        if self.runs:
            self.signal(signal.SIGTERM)
        return await self.ended()

    async def _read(self) -> None:
        """Look for the line that says it is ready, and pass all others on."""
        output = self._process.stdout
        while output and (raw := await output.readline()):
            line = raw.decode(errors="replace")
            if not self._said.done() and line.startswith(self._beginning):
                self._said.set_result(line.removeprefix(self._beginning).strip())
            else:
                typer.echo(line, nl=False)
        if not self._said.done():
            self._said.set_result(None)
