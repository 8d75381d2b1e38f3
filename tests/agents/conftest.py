"""Servers that the agents' tests talk to."""

from tests.server.conftest import home, model_server

__all__ = ["home", "model_server"]
