"""Servers that the agents' tests talk to."""

from tests.server.conftest import model_server, server
from tests.server.places import bucket, files

__all__ = ["bucket", "files", "model_server", "server"]
