"""Every way to a session, with and without coroutines, passes one suite (C1, C6)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.async_conformance import AsyncConformance
from tests.client.conformance import Conformance
from tests.client.doors import Door, HttpDoor, directory_door


class OverHttp:
    """A real server."""

    @pytest.fixture
    def door(self, http_door: HttpDoor) -> Door:
        return http_door


class InADirectory:
    """A plain directory in which a thread answers."""

    @pytest.fixture
    def door(self, tmp_path: Path) -> Iterator[Door]:
        with directory_door(tmp_path) as door:
            yield door


class TestSessionOverHttp(OverHttp, Conformance):
    pass


class TestAsyncSessionOverHttp(OverHttp, AsyncConformance):
    pass


class TestSessionInADirectory(InADirectory, Conformance):
    pass


class TestAsyncSessionInADirectory(InADirectory, AsyncConformance):
    pass
