"""Tools, context, the file-system agent and Fibre. Agents reach the server by HTTP only.

A name is loaded when it is first used, so importing the package costs next to nothing.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from cfs_agents.agent import Agent
    from cfs_agents.config import AgentConfig
    from cfs_agents.console import ConsoleStreamHandler, IncrementalOutputFormatter, StreamProcessor
    from cfs_agents.context import ContextFileSystem, OffloadPolicy
    from cfs_agents.fibre.agent import FibreAgent
    from cfs_agents.fibre.orchestrator import FibreOrchestrator
    from cfs_agents.fibre.state import SubSessionContext
    from cfs_agents.fibre.sub_agent import FibreSubAgent
    from cfs_agents.file_agent import ContextSynchronizer, FileSystemAgent, OperationLogger
    from cfs_agents.model import CompleteResponse
    from cfs_agents.runtime import AgentRuntime, AsyncAgentRuntime
    from cfs_agents.tools import AsyncPersistentShell, PathManager, PersistentShell, tool

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentRuntime",
    "AsyncAgentRuntime",
    "AsyncPersistentShell",
    "CompleteResponse",
    "ConsoleStreamHandler",
    "ContextFileSystem",
    "ContextSynchronizer",
    "FibreAgent",
    "FibreOrchestrator",
    "FibreSubAgent",
    "FileSystemAgent",
    "IncrementalOutputFormatter",
    "OffloadPolicy",
    "OperationLogger",
    "PathManager",
    "PersistentShell",
    "StreamProcessor",
    "SubSessionContext",
    "tool",
]

_HOMES = {
    "Agent": "agent.Agent",
    "AgentConfig": "config.AgentConfig",
    "AgentRuntime": "runtime.AgentRuntime",
    "AsyncAgentRuntime": "runtime.AsyncAgentRuntime",
    "AsyncPersistentShell": "tools.AsyncPersistentShell",
    "CompleteResponse": "model.CompleteResponse",
    "ConsoleStreamHandler": "console.ConsoleStreamHandler",
    "ContextFileSystem": "context.ContextFileSystem",
    "ContextSynchronizer": "file_agent.ContextSynchronizer",
    "FibreAgent": "fibre.agent.FibreAgent",
    "FibreOrchestrator": "fibre.orchestrator.FibreOrchestrator",
    "FibreSubAgent": "fibre.sub_agent.FibreSubAgent",
    "FileSystemAgent": "file_agent.FileSystemAgent",
    "IncrementalOutputFormatter": "console.IncrementalOutputFormatter",
    "OffloadPolicy": "context.OffloadPolicy",
    "OperationLogger": "file_agent.OperationLogger",
    "PathManager": "tools.PathManager",
    "PersistentShell": "tools.PersistentShell",
    "StreamProcessor": "console.StreamProcessor",
    "SubSessionContext": "fibre.state.SubSessionContext",
    "tool": "tools.tool",
}
"""Where each name is defined."""


def __getattr__(name: str) -> typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].rpartition(".")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
