"""Engines that run elsewhere do what every engine does (E4)."""

from collections.abc import AsyncIterator

import pytest

from cfs_server.engine.contract.interface import Engine, GenerationRequest, UpstreamKind
from tests.engine.conformance import EngineConformance
from tests.engine.support import request
from tests.upstream.support import pair


class _Upstream(EngineConformance):
    KIND: UpstreamKind

    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        """Run an engine; in the end its server has nobody left to talk to."""
        async with pair(self.KIND) as both:
            yield both.engine
            stats = await both.settled()
            assert (stats.running, stats.waiting) == (0, 0)

    def failing(self) -> GenerationRequest:
        """Ask with more than the model takes."""
        return request("too long " * 3000)


class TestOpenAIEngine(_Upstream):
    """Behind it a server that speaks as OpenAI does."""

    KIND = "openai"


class TestAnthropicEngine(_Upstream):
    """Behind it a server that speaks as Anthropic does."""

    KIND = "anthropic"
