"""Pydantic models of the REST interface, shared by the server and its clients."""

from cfs.contract.wire import *  # noqa: F403 - the public path of the same names
