"""MCP servers in the sandbox of commands (A5)."""

import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cfs.wire import ToolCall
from cfs_agents.mcp.config import McpServer, load_servers
from cfs_agents.mcp.tools import McpTools
from cfs_agents.shell import sandbox_trouble
from cfs_agents.shell.confined import program_paths
from cfs_agents.tools import Registry
from tests.agents.mcp.test_tools import ODD
from tests.client.terminal import cfs, ended
from tests.programs import MCP_SERVERS
from tests.server.support import serving, until

pytestmark = [
    pytest.mark.external,
    pytest.mark.server,
    pytest.mark.skipif(sandbox_trouble() is not None, reason=f"no sandbox here: {sandbox_trouble()}"),
]

WRITER = """
import os, socket, sys
from pathlib import Path
from mcp.server.mcpserver import MCPServer

server = MCPServer("writer")


@server.tool()
def write(path: str) -> str:
    try:
        Path(path).write_text("here")
    except OSError as error:
        return f"refused: {error.strerror}"
    return f"written in {os.getcwd()}"


@server.tool()
def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        return f"refused: {error.strerror}"


@server.tool()
def connect(port: int) -> str:
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError as error:
        return "refused"
    return "connected"


@server.tool()
def process() -> str:
    return str(os.getpid())


server.run()
"""


class Places:
    """A workspace, a secret file outside of it, and a folder with the server's program."""

    def __init__(self, folder: Path) -> None:
        self.workspace, self.secret, self.outside = folder / "workspace", folder / "home/secret", folder / "outside"
        for path in (self.workspace, self.secret.parent, self.outside):
            path.mkdir(parents=True)
        self.secret.write_text("secret")
        self.program = folder / "writer.py"
        self.program.write_text(WRITER)

    @asynccontextmanager
    async def opened(self, *, confined: bool = True, **settings: Any) -> AsyncIterator["Calls"]:
        """Start the server."""
        server = McpServer.model_validate({"command": sys.executable, "args": (str(self.program),), **settings})
        warnings: list[str] = []
        async with McpTools({"w": server}, self.workspace, confined=confined, warn=warnings.append) as mcp:
            assert warnings == []
            yield Calls(Registry(mcp.tools()))


class Calls:
    """Calls tools of the server."""

    def __init__(self, tools: Registry) -> None:
        self._tools = tools

    async def __call__(self, tool: str, **arguments: Any) -> str:
        return (await self._tools.call(ToolCall(id="1", name=f"mcp__w__{tool}", arguments=arguments))).text


async def test_a_confined_server_writes_in_the_workspace_only(tmp_path: Path) -> None:
    """It sees neither other files nor the network; without the sandbox it does."""
    places = Places(tmp_path)
    with serving("--engine", "scripted", "--log-level", "error") as server:
        port = int(server.url.rpartition(":")[2])
        async with places.opened() as call:
            assert await call("write", path="notes.txt") == f"written in {places.workspace}"
            assert (await call("write", path="/workspace/more.txt")).startswith("written")
            for path in (places.outside / "x", Path.home() / "cfs-test-x", "/usr/x", "/etc/x", places.program):
                assert (await call("write", path=str(path))).startswith("refused"), path
            assert (await call("read", path=str(places.secret))).startswith("refused")
            assert await call("connect", port=port) == "refused"
            assert await call("process") == "2", "it has a space of its own for processes"
        assert sorted(path.name for path in places.workspace.iterdir()) == ["more.txt", "notes.txt"]
        assert list(places.outside.iterdir()) == []
        async with places.opened(confined=False) as call:
            assert await call("read", path=str(places.secret)) == "secret"
            assert await call("connect", port=port) == "connected"


async def test_the_file_says_what_more_a_server_may_use(tmp_path: Path) -> None:
    places = Places(tmp_path)
    sandbox = {"read": [str(places.secret.parent)], "write": [str(places.outside)], "network": True}
    with serving("--engine", "scripted", "--log-level", "error") as server:
        async with places.opened(sandbox=sandbox) as call:
            assert await call("read", path=str(places.secret)) == "secret"
            assert (await call("write", path=str(places.secret))).startswith("refused")
            assert (await call("write", path=str(places.outside / "x"))).startswith("written")
            assert await call("connect", port=int(server.url.rpartition(":")[2])) == "connected"
    async with places.opened(sandbox=False) as call:
        assert await call("read", path=str(places.secret)) == "secret"


async def test_nothing_of_a_confined_server_is_left_at_its_end(tmp_path: Path) -> None:
    """Also of one that ignores the end of its input."""
    marks = tmp_path / "marks"
    marks.mkdir()
    server = McpServer.model_validate(
        {"command": sys.executable, "args": (str(ODD), "/workspace"), "sandbox": {"read": [str(ODD.parent)]}}
    )
    async with McpTools({"odd": server}, marks, confined=True) as mcp:
        tools = Registry(mcp.tools())
        assert (await tools.call(ToolCall(id="1", name="mcp__odd__add", arguments={"a": 1, "b": 2}))).text == "3"
        assert processes(str(ODD)) != []
    await until(lambda: processes(str(ODD)) == [])


def processes(word: str) -> list[str]:
    """Return the command lines of this machine's processes with a word."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if word.encode() in line:
            lines.append(line.decode(errors="replace"))
    return lines


async def test_a_reference_server_from_npm_works_in_the_sandbox(tmp_path: Path) -> None:
    """Its installation is found by its program."""
    MCP_SERVERS.install()
    file = tmp_path / "mcp.json"
    entry = {"command": f"{MCP_SERVERS.executables}/mcp-server-filesystem", "args": ["."]}
    file.write_text(json.dumps({"mcpServers": {"filesystem": entry}}))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    warnings: list[str] = []
    async with McpTools(load_servers([file]), workspace, confined=True, warn=warnings.append) as mcp:
        assert warnings == []
        tools = Registry(mcp.tools())
        arguments = {"path": "notes.txt", "content": "bolts"}
        result = await tools.call(ToolCall(id="1", name="mcp__filesystem__write_file", arguments=arguments))
        assert result.ok, result.text
    assert (workspace / "notes.txt").read_text() == "bolts"


async def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    warnings: list[str] = []
    server = McpServer(command="no-such-program")
    async with McpTools({"gone": server}, tmp_path, confined=True, warn=warnings.append):
        (warning,) = warnings
    assert "there is no program 'no-such-program'" in warning


def test_the_option_for_commands_confines_servers(tmp_path: Path) -> None:
    """As a user starts it."""
    places = Places(tmp_path / "places")
    entry = {"command": sys.executable, "args": [str(places.program)]}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"w": entry}}))
    rules = tmp_path / "rules.toml"
    rules.write_text('allow = ["mcp(w)"]')
    call = json.dumps({"name": "mcp__w__write", "arguments": {"path": str(places.outside / "x")}})
    with serving("--engine", "scripted", "--log-level", "error") as server:
        for mode, result in (("bwrap", "refused: "), ("none", "written in ")):
            options = f"--mcp {file} --rules {rules} --root {tmp_path / mode} --commands {mode}"
            done = ended(cfs(server.url, "agent", "run", f"<tool_call>{call}</tool_call>", *shlex.split(options)))
            assert result in done[1], done


def test_the_installation_of_a_program_is_found(tmp_path: Path) -> None:
    """But no home is laid open for a program in it."""
    assert program_paths(["sh", "-c", "true"], tmp_path) == ()
    environment = Path(sys.executable).parent.parent
    assert environment in program_paths([sys.executable, "-m", "x"], tmp_path)
    script = tmp_path / "tool/bin/serve"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o700)
    assert {tmp_path / "tool", environment} <= set(program_paths([str(script)], tmp_path))
