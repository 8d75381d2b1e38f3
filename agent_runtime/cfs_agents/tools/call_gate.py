"""The gate that every call of a tool passes before it happens (A5).

`Registry` awaits the gate of its agent for each call, after the arguments are checked and before the tool runs. Reads
and writes of files, commands, and the tools that start other agents all pass here, and only here.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from cfs.wire import ToolCall
from cfs_agents.tools.definition import Tool


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that is about to run: `values` are its arguments, checked and complete."""

    call: ToolCall
    tool: Tool
    values: Mapping[str, Any]


CallGate: TypeAlias = Callable[[PendingCall], Awaitable[None]]
"""Returns if the call may run; raises `ToolError` with the reason for the model if it may not.

It may wait for a person: the time limit of the tool begins afterwards.
"""
