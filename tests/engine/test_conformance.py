"""Both engines that ship pass the same tests."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cfs.errors import EngineError
from cfs_server.engine.contract.interface import Engine, GenerationRequest
from cfs_server.engine.host.scripted import ScriptedEngine, echo
from tests.engine.conformance import EngineConformance
from tests.engine.support import request, running
from tests.pacing.gate import Gate, closed


def play(asked: GenerationRequest) -> Iterable[str]:
    """Answer endlessly, fail, or echo, as the message says."""
    content = asked.messages[-1].content
    if content == "fail":
        raise EngineError("as the script says")
    return ("on " for _ in range(100_000)) if content == "endless" else echo(asked)


class TestScriptedEngine(EngineConformance):
    """The deterministic engine."""

    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        """Play the script above."""
        engine = ScriptedEngine(play)
        await engine.start()
        yield engine
        await engine.stop()

    def failing(self) -> GenerationRequest:
        """Ask for the script's error."""
        return request("fail")


class TestLlamaEngine(EngineConformance):
    """The real one, with random weights: replies have no sense and no end."""

    @pytest.fixture
    async def engine(self, tiny: Path, gate: Gate) -> AsyncIterator[Engine]:
        """Run a worker, and check its books when the test is done."""
        self.gate = gate
        async with running(tiny, flash_attention=False) as engine:
            yield engine

    def held(self) -> AbstractContextManager[object]:
        """Close the gate of the worker."""
        return closed(self.gate)

    def failing(self) -> GenerationRequest:
        """Ask with more than the context holds."""
        return request("too long " * 2000)
