"""A database for replicas."""

import pytest

from cfs_server.journal.postgres_database import prepare
from tests.cluster.support import SLOTS
from tests.postgres import PostgresServer, postgres  # noqa: F401 - a fixture


@pytest.fixture
def database(postgres: PostgresServer) -> str:  # noqa: F811
    """The address of a new database with few slots."""
    url = postgres.url(postgres.new_database())
    prepare(url, SLOTS)
    return url
