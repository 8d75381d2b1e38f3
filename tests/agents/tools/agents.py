"""An agent's directory with the tools for it, called as a model calls them."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from cfs.wire import ToolCall
from cfs_agents.tools import FileTools, Registry, ToolResult, agent_grants
from cfs_filesystem import DiskFileSystem


class ToolHarness:
    """The directory of an agent on the disk, and its file tools."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "agent"
        for name in ("workspace", "storage/documents"):
            (self.root / name).mkdir(parents=True)
        (self.root / "guideline.md").write_text("be kind\n")
        (self.root / "context_window_main.md").write_text("# Current Task\n")
        (self.root / "logs").mkdir()
        (self.root / "logs" / "operations.jsonl").write_text("{}\n")
        self.files = DiskFileSystem(self.root)
        self.handle = self.files.create_handle(agent_grants())
        self.registry = Registry(FileTools(self.handle).tools())

    @property
    def workspace(self) -> Path:
        """Where relative paths lead."""
        return self.root / "workspace"

    def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Call a tool as a model does."""
        return asyncio.run(self.registry.call(ToolCall(id="1", name=tool, arguments=arguments)))

    def told(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool that works."""
        result = self.call(tool, **arguments)
        assert result.ok, result.text
        return result.text

    def refused(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool that refuses, and return its reason."""
        result = self.call(tool, **arguments)
        assert not result.ok, result.text
        return result.text.removeprefix("Error: ")

    def close(self) -> None:
        """Remove everything."""
        self.files.close()
        shutil.rmtree(self.root)
