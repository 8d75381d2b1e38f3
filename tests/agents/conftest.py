"""Servers that the agents' tests talk to."""

from tests.server.conftest import model_server, server

__all__ = ["model_server", "server"]
