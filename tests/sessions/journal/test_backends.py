"""All backends of the journal pass the same tests."""

from pathlib import Path

import pytest

from cfs_server.journal.journal import Backend
from cfs_server.journal.memory import MemoryBackend
from cfs_server.journal.postgres import PostgresBackend
from cfs_server.journal.sqlite import SqliteBackend
from tests.postgres import database, postgres
from tests.sessions.journal.conformance import BackendConformance

__all__ = ["database", "postgres"]


class TestMemory(BackendConformance):
    """`--store memory`."""

    keeps = False

    def make(self) -> Backend:
        return MemoryBackend()


class TestSqlite(BackendConformance):
    """`--store PATH`, the default."""

    fast = False

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "data" / "sessions.db"

    def make(self) -> Backend:
        return SqliteBackend(self.path, fast=self.fast)


class TestFastSqlite(TestSqlite):
    """`--store fast`."""

    fast = True


class TestPostgres(BackendConformance):
    """`--store postgresql://…`: one slot of a database."""

    @pytest.fixture(autouse=True)
    def _place(self, database: str) -> None:
        self.url = database

    def make(self) -> Backend:
        return PostgresBackend(self.url)
