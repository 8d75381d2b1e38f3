"""Runs one task with smolagents: URL DIRECTORY STATE TASK KIND [options]. Exit code 0 when it reports success."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from mcp import StdioServerParameters
from smolagents import CodeAgent, MCPClient, OpenAIModel, ToolCallingAgent, tool

from harness_bench.runners.person import option

url, directory, state, task, kind = sys.argv[1:6]
os.chdir(directory)


@tool  # type: ignore[untyped-decorator]  # the library is not here
def write_file(path: str, content: str) -> str:
    """Write a file.

    Args:
        path: Where to write it.
        content: What to write.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(content, encoding="utf-8")
    return f"wrote {path}"


@tool  # type: ignore[untyped-decorator]  # the library is not here
def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: Which file.
    """
    return Path(path).read_text(encoding="utf-8")


@tool  # type: ignore[untyped-decorator]  # the library is not here
def run_command(command: str) -> str:
    """Run a shell command and return its output.

    Args:
        command: The command.
    """
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)  # noqa: S602
    return done.stdout + done.stderr + (f"\nexit code {done.returncode}" if done.returncode else "")


model = OpenAIModel(model_id="oracle", api_base=f"{url}/v1", api_key="none")
with ExitStack() as stack:
    tools = [write_file, read_file, run_command]
    file = Path(state).parent / "mcp.json"
    if file.exists():
        (server,) = json.loads(file.read_text(encoding="utf-8"))["mcpServers"].values()
        client = MCPClient(StdioServerParameters(**server), structured_output=False)
        tools += stack.enter_context(client)
    made = CodeAgent if kind == "code" else ToolCallingAgent
    names = [name for name in option(sys.argv, "--children").split(",") if name]
    children = [
        made(tools=tools, model=model, verbosity_level=0, name=name, description="works on files") for name in names
    ]
    agent = made(tools=tools, model=model, verbosity_level=0, return_full_result=True, managed_agents=children)
    result = agent.run(task)
sys.exit(0 if result.state == "success" else 1)
