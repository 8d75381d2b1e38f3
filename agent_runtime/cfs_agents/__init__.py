"""Tools, context, the file-system agent and Fibre. Agents reach the server by HTTP only.

A name is loaded when it is first used, so importing the package costs next to nothing.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from cfs_agents.context import ContextFileSystem, OffloadPolicy
    from cfs_agents.loop.agent import Agent
    from cfs_agents.loop.config import AgentConfig
    from cfs_agents.loop.model import CompleteResponse
    from cfs_agents.main.blocks import StreamProcessor
    from cfs_agents.main.console import ConsoleStreamHandler, IncrementalOutputFormatter
    from cfs_agents.main.runtime import AgentRuntime, AsyncAgentRuntime
    from cfs_agents.tools import AsyncPersistentShell, PathManager, PersistentShell, tool
    from cfs_agents.tree.fibre import FibreAgent
    from cfs_agents.tree.file_agent import FileSystemAgent
    from cfs_agents.tree.operations import OperationLogger
    from cfs_agents.tree.orchestrator import FibreOrchestrator
    from cfs_agents.tree.session_context import SubSessionContext
    from cfs_agents.tree.sub_agent import FibreSubAgent
    from cfs_agents.tree.sync import ContextSynchronizer

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
    "Agent": "loop.agent.Agent",
    "AgentConfig": "loop.config.AgentConfig",
    "AgentRuntime": "main.runtime.AgentRuntime",
    "AsyncAgentRuntime": "main.runtime.AsyncAgentRuntime",
    "AsyncPersistentShell": "tools.AsyncPersistentShell",
    "CompleteResponse": "loop.model.CompleteResponse",
    "ConsoleStreamHandler": "main.console.ConsoleStreamHandler",
    "ContextFileSystem": "context.ContextFileSystem",
    "ContextSynchronizer": "tree.sync.ContextSynchronizer",
    "FibreAgent": "tree.fibre.FibreAgent",
    "FibreOrchestrator": "tree.orchestrator.FibreOrchestrator",
    "FibreSubAgent": "tree.sub_agent.FibreSubAgent",
    "FileSystemAgent": "tree.file_agent.FileSystemAgent",
    "IncrementalOutputFormatter": "main.console.IncrementalOutputFormatter",
    "OffloadPolicy": "context.OffloadPolicy",
    "OperationLogger": "tree.operations.OperationLogger",
    "PathManager": "tools.PathManager",
    "PersistentShell": "tools.PersistentShell",
    "StreamProcessor": "main.blocks.StreamProcessor",
    "SubSessionContext": "tree.session_context.SubSessionContext",
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
