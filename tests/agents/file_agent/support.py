"""What the tests of the file agent share."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cfs.wire import Message
from cfs_agents.base.events import AgentEvent
from cfs_agents.main.testing import Line, ScriptedModel
from cfs_agents.tools import CommandMode
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig

WINDOW = """# Current Task
Count to three.

# Working Memory
Two is done.

# Active Observations

# Next Steps
Three.
"""


def agent(root: Path, *script: Line, **config: Any) -> tuple[FileSystemAgent, ScriptedModel]:
    """Make an agent whose model plays a script; it may run commands unless `config` says otherwise."""
    model = ScriptedModel(script)
    return FileSystemAgent(
        project_root=root, model=model, config=FileSystemAgentConfig(**{"commands": CommandMode.HOST} | config)
    ), model


async def events_of(made: FileSystemAgent, task: str | None) -> list[AgentEvent]:
    """Let it work to the end, and collect what it tells."""
    return [event async for event in made.run_stream(task)]


def operations(root: Path, *names: str) -> list[dict[str, Any]]:
    """Read the operation log: all of it, or the operations of these names."""
    lines = [line for log in sorted((root / "logs").glob("*.jsonl")) for line in log.read_bytes().splitlines()]
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [record for record in records if not names or record["operation"] in names]


def texts(messages: Sequence[Message]) -> str:
    """Put all that a model was told into one text."""
    return "\n".join(message.model_dump_json() for message in messages)


def history(root: Path) -> list[Path]:
    """List the archived windows, the oldest first."""
    return sorted((root / "storage/history").iterdir())


async def until_there(path: Path) -> None:
    """Wait until a file is there, which a command makes."""
    while not path.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.01)
