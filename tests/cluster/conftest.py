"""Databases and replicas for these tests."""

from collections.abc import Iterator

import pytest

from cfs_server.journal.postgres_database import prepare
from tests.cluster.support import SLOTS, Replicas, replicas
from tests.fork_server import FORKING
from tests.postgres import PostgresServer, postgres, running_postgres  # noqa: F401 - a fixture
from tests.server.places import bucket, files  # noqa: F401 - fixtures


@pytest.fixture
def database(postgres: PostgresServer) -> str:  # noqa: F811
    """The address of a new database with few slots."""
    url = postgres.url(postgres.new_database())
    prepare(url, SLOTS)
    return url


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the replicas of the bench as forks."""
    monkeypatch.setattr("replica_set.subprocess", FORKING)


@pytest.fixture(scope="module")
def three() -> Iterator[Replicas]:
    """Three replicas for the tests of a module, which leave them running."""
    with running_postgres() as server:
        url = server.url(server.new_database())
        prepare(url, SLOTS)
        with replicas(3, url) as found:
            yield found
