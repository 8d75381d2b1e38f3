"""Every way to a session, with and without coroutines, passes one suite (C1, C6)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.async_conformance import AsyncConformance
from tests.client.conformance import Conformance
from tests.client.harness import ClientHarness, HttpHarness, directory_harness


class OverHttp:
    """A real server."""

    @pytest.fixture
    def harness(self, http_harness: HttpHarness) -> ClientHarness:
        return http_harness


class InADirectory:
    """A plain directory in which a thread answers."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[ClientHarness]:
        with directory_harness(tmp_path) as harness:
            yield harness


class TestSessionOverHttp(OverHttp, Conformance):
    pass


class TestAsyncSessionOverHttp(OverHttp, AsyncConformance):
    pass


class TestSessionInADirectory(InADirectory, Conformance):
    pass


class TestAsyncSessionInADirectory(InADirectory, AsyncConformance):
    pass
