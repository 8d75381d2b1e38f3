"""Tools of real MCP servers: programs that behave, and programs that fail in every way."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cfs.wire import ToolCall
from cfs_agents.base.events import ToolResult
from cfs_agents.mcp.config import McpServer
from cfs_agents.mcp.tools import McpTools
from cfs_agents.tools import Registry
from ports import free_port
from tests.fork_server import asyncio_programs, start_variables
from tests.server.support import until

pytestmark = [pytest.mark.external, pytest.mark.server]

ODD = Path(__file__).with_name("odd_server.py")


@pytest.fixture(autouse=True)
def forks() -> Iterator[None]:
    """Start the servers as forks: to import the protocol takes them most of a second."""
    with asyncio_programs():
        yield


def odd(folder: Path, *faults: str, env: Mapping[str, str] = MappingProxyType({}), **settings: Any) -> McpServer:
    """Return the settings of the server with faults."""
    variables = start_variables(os.environ) | dict(env)  # those of Python as here, so that it can be a fork
    return McpServer(command=sys.executable, args=(str(ODD), str(folder), *faults), env=variables, **settings)


class Opened:
    """Servers that have started, and their tools."""

    def __init__(self, mcp: McpTools, warnings: list[str], context: int | None) -> None:
        self.mcp = mcp
        self.warnings = warnings
        self.tools = Registry(mcp.tools(context))

    async def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Call a tool as a model does."""
        return await self.tools.call(ToolCall(id="1", name=tool, arguments=arguments))


@asynccontextmanager
async def opened(
    folder: Path, servers: Mapping[str, McpServer], *, context: int | None = None
) -> AsyncIterator[Opened]:
    warnings: list[str] = []
    async with McpTools(servers, folder, warn=warnings.append) as mcp:
        yield Opened(mcp, warnings, context)


async def test_a_tool_is_described_checked_and_called(tmp_path: Path) -> None:
    async with opened(tmp_path, {"odd": odd(tmp_path)}) as servers:
        assert servers.warnings == []
        assert "mcp__odd__add" in servers.tools.names
        schema = servers.tools.get("mcp__odd__add").schema()["function"]
        assert (schema["description"], schema["parameters"]["required"]) == ("Add two numbers.", ["a", "b"])
        assert (await servers.call("mcp__odd__add", a=17, b=25)).text == "42"
        assert (await servers.call("mcp__odd__add", a="17", b=25)).text == "42"  # a text that is JSON
        wrong = await servers.call("mcp__odd__add", a=1)
        assert (wrong.ok, wrong.text) == (
            False,
            'Error: mcp__odd__add was not run: \'b\' is a required property. The right form: {"a": 1, "b": 1}',
        )
        failed = await servers.call("mcp__odd__fail")
        assert not failed.ok
        assert "there is no such thing" in failed.text


async def test_the_tools_are_the_same_bytes_at_each_start(tmp_path: Path) -> None:
    schemas = []
    for _ in range(2):
        async with opened(tmp_path, {"a": odd(tmp_path), "b": odd(tmp_path)}) as servers:
            schemas.append(json.dumps(servers.tools.schemas()))
    assert schemas[0] == schemas[1]


async def test_a_server_that_dies_during_a_call_is_started_again_by_the_next_one(tmp_path: Path) -> None:
    async with opened(tmp_path, {"odd": odd(tmp_path)}) as servers:
        died = await servers.call("mcp__odd__die")
        assert not died.ok
        assert "ended during the call of die (its last output: 'out of luck')" in died.text
        assert "It is not known whether the call had an effect" in died.text
        assert (await servers.call("mcp__odd__add", a=1, b=2)).text == "3"


async def test_a_cancelled_call_ends_at_the_server_which_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path, {"odd": odd(tmp_path)}) as servers:
        call = asyncio.create_task(servers.call("mcp__odd__hang", name="cancelled"))
        await until(lambda: (tmp_path / "cancelled-begun").exists())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: (tmp_path / "cancelled").exists())
        assert (await servers.call("mcp__odd__add", a=1, b=2)).text == "3"


async def test_a_call_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    async with opened(tmp_path, {"odd": odd(tmp_path, call_seconds=1)}) as servers:
        late = await servers.call("mcp__odd__hang", name="late")
        assert (late.ok, late.text) == (False, "Error: hang took longer than 1 s; the call was ended")
        await until(lambda: (tmp_path / "late").exists())


async def test_servers_that_do_not_start_are_warnings_and_the_others_work(tmp_path: Path) -> None:
    faulty = {
        "never": odd(tmp_path, "never", start_seconds=3),
        "ends": odd(tmp_path, "ends"),
        "missing": McpServer(command="no-such-program-anywhere"),
        "away": McpServer(url=f"http://127.0.0.1:{free_port()}/mcp"),
    }
    async with opened(tmp_path, {**faulty, "odd": odd(tmp_path)}) as servers:
        assert (await servers.call("mcp__odd__add", a=1, b=2)).text == "3"
        never, ends, missing, away = servers.warnings
    assert "'never' did not start within 3 s (its last output: 'waiting for a licence'); its tools" in never
    assert "'ends' could not be started" in ends
    assert "no configuration" in ends
    assert "there is no program 'no-such-program-anywhere'" in missing
    assert "'away' could not be started" in away


async def test_long_texts_and_images_are_files_of_the_workspace(tmp_path: Path) -> None:
    async with opened(tmp_path, {"odd": odd(tmp_path)}) as servers:
        long = await servers.call("mcp__odd__long", characters=10_000_000)
        pictures = [(await servers.call("mcp__odd__picture")).text for _ in range(2)]
    text, picture = sorted((tmp_path / "mcp/odd").iterdir())
    assert len(long.text) < 3_000
    assert f"all of them are in mcp/odd/{text.name}" in long.text
    assert text.stat().st_size == 10_000_000
    assert pictures == [f"[image, 8 bytes, in the file mcp/odd/{picture.name}]"] * 2
    assert (picture.suffix, picture.read_bytes()) == (".png", b"\x89PNG\r\n\x1a\n")


async def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "mcp").symlink_to(outside)
    async with opened(workspace, {"odd": odd(tmp_path)}) as servers:
        result = await servers.call("mcp__odd__picture")
    assert not result.ok
    assert list(outside.iterdir()) == []


async def test_a_server_gets_harmless_variables_and_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFS_TOKEN", "secret")
    async with opened(tmp_path, {"odd": odd(tmp_path, env={"LEVEL": "info"})}) as servers:
        assert (await servers.call("mcp__odd__variable", name="CFS_TOKEN")).text == "not set"
        assert (await servers.call("mcp__odd__variable", name="LEVEL")).text == "info"
        assert (await servers.call("mcp__odd__variable", name="PATH")).text == os.environ["PATH"]


@pytest.mark.parametrize("context", [16_000, 1_000_000, None])
async def test_many_tools_are_searched(tmp_path: Path, context: int | None) -> None:
    async with opened(tmp_path, {"odd": odd(tmp_path, "many")}, context=context) as servers:
        assert servers.tools.names == ["search_tools", "call_tool"]
        assert len(json.dumps(servers.tools.schemas())) < 1_200
        assert '"mcp__odd__numbered_137"' in (await servers.call("search_tools", query="number 137")).text
        called = await servers.call("call_tool", tool="mcp__odd__numbered_137", arguments={"text": "yes"})
        assert called.text == "137: yes"
        unknown = await servers.call("call_tool", tool="mcp__odd__x", arguments={})
        assert "there is no tool 'mcp__odd__x': find its name with search_tools" in unknown.text
        wrong = await servers.call("call_tool", tool="mcp__odd__add", arguments={"a": 1})
        assert "'b' is a required property" in wrong.text
        assert (await servers.call("search_tools", query="zzz")).text.startswith("No tool matches 'zzz'")


async def test_nothing_is_left_of_a_server(tmp_path: Path) -> None:
    async with opened(tmp_path, {"odd": odd(tmp_path)}) as servers:
        pid = int((await servers.call("mcp__odd__pid")).text)
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
