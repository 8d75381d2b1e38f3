"""What every workload is given: sizes, models, and the sides that can be had on this machine."""

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine_bench.llama_server import LlamaServer
from engine_bench.models import Models
from engine_bench.ours import Ours
from engine_bench.servers import BatchServer, PackagedServer
from engine_bench.sides import Setup, Side, SideError
from engine_bench.tables import Verdict

Starter = Callable[[Setup], Coroutine[Any, Any, Side]]
PEERS: dict[str, Starter] = {
    "llama-server": LlamaServer.start,
    "packaged": PackagedServer.start,
    "batch": BatchServer.start,
}


class Result(Protocol):
    """What a workload found; a frozen dataclass."""

    def markdown(self) -> str:
        """Write the tables."""
        ...

    def verdicts(self) -> list[Verdict]:
        """Judge by the bars; none where a smoke test has nothing to say."""
        ...


@dataclass
class Bench:
    """One run of the command."""

    models: Models
    smoke: bool
    threads: int
    peers: tuple[str, ...] = ()
    rounds: int = 3
    builds: dict[str, str] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Tell how far it is, on standard error."""
        print(text, file=sys.stderr, flush=True)

    @contextlib.asynccontextmanager
    async def ours(self, setup: Setup) -> AsyncIterator[Ours]:
        """Our engine, for as long as the block lasts."""
        side = await Ours.start(setup)
        self.builds[side.name] = side.build
        try:
            yield side
        finally:
            await side.stop()

    @contextlib.asynccontextmanager
    async def peer(self, name: str, setup: Setup) -> AsyncIterator[Side | None]:
        """A peer for as long as the block lasts; None, and a line that says why, if it cannot be had."""
        side = None
        if name in self.peers:
            try:
                side = await PEERS[name](setup)
                self.builds[side.name] = side.build
            except (SideError, OSError) as error:
                self.say(f"going on without {name}: {error}")
                self.peers = tuple(peer for peer in self.peers if peer != name)
        try:
            yield side
        finally:
            if side is not None:
                await side.stop()

    async def sides(self, setup: Setup, *peers: str) -> AsyncIterator[Side]:
        """Yield ours and then those peers that are asked for and can be had, each alone on the machine."""
        async with self.ours(setup) as ours:
            yield ours
        for name in peers:
            async with self.peer(name, setup) as side:
                if side is not None:
                    yield side

    @contextlib.asynccontextmanager
    async def together(self, setup: Setup, *peers: str) -> AsyncIterator[list[Side]]:
        """Ours and the peers side by side, for rounds that take turns."""
        async with contextlib.AsyncExitStack() as stack:
            sides: list[Side] = [await stack.enter_async_context(self.ours(setup))]
            for name in peers:
                side = await stack.enter_async_context(self.peer(name, setup))
                if side is not None:
                    sides.append(side)
            yield sides
