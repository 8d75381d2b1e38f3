"""The reference servers of the protocol, by a file in the usual form; a server by its URL; and `cfs agent`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cfs.wire import ToolCall
from cfs_agents.mcp.config import McpServer, load_servers
from cfs_agents.mcp.tools import McpTools
from cfs_agents.tools import Registry
from ports import free_port
from tests.agents.mcp.test_tools import ODD
from tests.client.terminal import cfs, ended
from tests.programs import MCP_CONFORMANCE, MCP_SERVERS
from tests.server.support import serving

pytestmark = [pytest.mark.external, pytest.mark.server]

CALLS = {
    "mcp__everything__echo": ({"message": "hello"}, "Echo: hello"),
    "mcp__everything__get-sum": ({"a": 17, "b": 25}, "42"),
    "mcp__everything__get-tiny-image": ({}, "in the file mcp/everything/get-tiny-image-"),
    "mcp__everything__get-structured-content": ({"location": "New York"}, '"temperature"'),
    "mcp__filesystem__write_file": ({"path": "notes.txt", "content": "bolts"}, "wrote"),
    "mcp__filesystem__read_text_file": ({"path": "notes.txt"}, "bolts"),
    "mcp__memory__create_entities": (
        {"entities": [{"name": "Ada", "entityType": "person", "observations": ["likes tea"]}]},
        "likes tea",
    ),
    "mcp__memory__search_nodes": ({"query": "Ada"}, "likes tea"),
    "mcp__sequential-thinking__sequentialthinking": (
        {"thought": "first", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
        '"thoughtNumber": 1',
    ),
}


async def test_the_reference_servers_work_with_a_file_in_the_usual_form(tmp_path: Path) -> None:
    MCP_SERVERS.install()
    programs = MCP_SERVERS.executables
    servers = {
        "everything": {"command": f"{programs}/mcp-server-everything"},
        "filesystem": {"command": f"{programs}/mcp-server-filesystem", "args": ["."]},
        "memory": {
            "command": f"{programs}/mcp-server-memory",
            "env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")},
        },
        "sequential-thinking": {"command": f"{programs}/mcp-server-sequential-thinking"},
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    warnings: list[str] = []
    async with McpTools(load_servers([file]), tmp_path, warn=warnings.append) as mcp:
        tools = Registry(mcp.tools())
        for name, (arguments, text) in CALLS.items():
            result = await tools.call(ToolCall(id="1", name=name, arguments=arguments))
            assert (name, result.ok, text in result.text) == (name, True, True), result.text
    assert warnings == []


@contextmanager
def http_server(folder: Path, port: int) -> Iterator[None]:
    """Run the odd server behind a URL."""
    command = [sys.executable, str(ODD), str(folder), "http", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("Uvicorn running" in line for line in process.stdout)
            yield
        finally:
            process.kill()


async def test_a_server_with_a_url_may_end_and_come_back(tmp_path: Path) -> None:
    port = free_port()
    settings = McpServer(url=f"http://127.0.0.1:{port}/mcp", headers={"Authorization": "Bearer x"})
    add = ToolCall(id="1", name="mcp__odd__add", arguments={"a": 1, "b": 2})
    with http_server(tmp_path, port):
        mcp = await McpTools({"odd": settings}, tmp_path).__aenter__()
        tools = Registry(mcp.tools())
        assert (await tools.call(add)).text == "3"
    try:
        away = await tools.call(add)
        assert (away.ok, "'odd'" in away.text) == (False, True), away.text
        with http_server(tmp_path, port):
            assert (await tools.call(add)).text == "3"
    finally:
        await mcp.close()


def test_an_agent_of_the_command_line_calls_a_server_that_a_rule_allows(tmp_path: Path) -> None:
    """Without the rule and without a person, the call is denied, with a reason that the model reads."""
    file, rules = tmp_path / "mcp.json", tmp_path / "rules.toml"
    entry = {"command": sys.executable, "args": [str(ODD), str(tmp_path)]}
    file.write_text(json.dumps({"mcpServers": {"odd": entry, "gone": {"command": "no-such-program"}}}))
    rules.write_text('allow = ["mcp(odd/add)"]')
    arguments = {"tool": "mcp__odd__add", "arguments": {"a": 17, "b": 25}}
    call = json.dumps({"name": "call_tool", "arguments": arguments})
    task = f"<tool_call>{call}</tool_call>"
    with serving("--engine", "scripted") as server:  # its context is too small for the descriptions of all tools
        run = ("agent", "run", task, "--mcp", str(file))
        denied = ended(cfs(server.url, *run, "--root", str(tmp_path / "a"), XDG_CONFIG_HOME=str(tmp_path)))
        done = ended(cfs(server.url, *run, "--root", str(tmp_path / "b"), "--rules", str(rules)))
    assert denied[0] == 1
    assert "no rule allows this call, and no person can be asked" in denied[1]
    assert "'mcp(odd/add)' to `allow` in rules.toml" in denied[1]
    assert (done[0], "there is no program 'no-such-program'; its tools are missing" in done[1] + done[2]) == (0, True)
    assert "< call_tool" in done[1]
    assert "42" in done[1]


def test_a_file_with_a_mistake_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"odd": {}}}')
    code, _, errors = ended(cfs("http://127.0.0.1:1", "agent", "run", "hi", "--mcp", str(file)))
    assert code == 1
    assert errors == (f"cfs: {file}: server 'odd': needs either `command` (a program) or `url` (a running server)\n")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"])
def test_the_conformance_suite_of_the_protocol_passes(scenario: str) -> None:
    """All scenarios for clients but those about OAuth."""
    MCP_CONFORMANCE.install()
    programs = str(MCP_CONFORMANCE.executables)
    client = f"{sys.executable} {ODD.with_name('conformance_client.py')}"
    done = subprocess.run(
        [f"{programs}/conformance", "client", "--command", client, "--scenario", scenario],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "OVERALL: PASSED" in done.stderr) == (0, True), done.stderr
