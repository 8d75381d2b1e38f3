"""The pytest plugin of CFS: a real server whose model says what a test tells it.

The fixtures are in `pytest_cfs.plugin`. pytest loads that module in every run, so nothing is imported before a test
asks for a server.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from pytest_cfs.script import Asked, Reply
    from pytest_cfs.server import ScriptedServer

__all__ = ["Asked", "Reply", "ScriptedServer"]


_LATER = {"Asked": "pytest_cfs.script", "Reply": "pytest_cfs.script", "ScriptedServer": "pytest_cfs.server"}


def __getattr__(name: str) -> typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value
