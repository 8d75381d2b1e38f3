"""A uvicorn that ends as soon as a test tells it to."""

import asyncio
import contextlib
import socket

import uvicorn


class PromptServer(uvicorn.Server):
    """Ends at once, and not at the next of uvicorn's ticks, of which there are ten a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    def exit_at_once(self) -> None:
        """Tell it to end."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        """Tick until told to end."""
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), 0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all; uvicorn's pause of a tenth of a second is for connections that are still in use."""
        for listener in self.servers:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # a connection without a request is gone after that
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        else:
            await self.lifespan.shutdown()
