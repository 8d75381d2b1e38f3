"""One conversation, six clients in turn: each sees what the others wrote (H4, F1)."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import TextResourceContents

from tests.documentation import block
from tests.fuse.support import Stage, mounting, reason_to_skip, staging

PAGE = "docs/protocols.md"

pytestmark = pytest.mark.external


def written(*clients: str) -> list[tuple[str, str]]:
    """Return the messages of these clients and the replies, which repeat them."""
    return [(role, f"I am {client}.") for client in clients for role in ("user", "assistant")]


def given(stage: Stage) -> list[tuple[str, str]]:
    """Return what the model saw last."""
    return [(message.role, message.content) for message in stage.engine.requests[-1].messages]


async def by_mcp(url: str) -> tuple[str, str]:
    """Return what an MCP client reads, and the reply to what it writes then."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CFS_")} | {"CFS_URL": url}
    program = StdioServerParameters(command=sys.executable, args=["-m", "cfs", "mcp"], env=environment)
    async with Client(stdio_client(program)) as client:
        (content,) = (await client.read_resource("cfs:///sessions/shared")).contents
        assert isinstance(content, TextResourceContents)
        sent = await client.call_tool("send_message", {"session": "shared", "message": "I am MCP."})
        result: Any = sent.structured_content
        return content.text, result["reply"]


@pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))
def test_six_clients_hold_one_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the example of the page; nothing is written twice, and nothing is replaced."""
    with staging() as stage, mounting(stage.url, tmp_path / "cfs") as mount:
        monkeypatch.setenv("CFS_URL", stage.url)
        monkeypatch.setenv("NO_PROXY", "*")
        exec(compile(block(PAGE, "one conversation"), PAGE, "exec"), {"__name__": "page"})  # noqa: S102
        four = ("curl", "openai", "anthropic", "ollama")
        assert stage.messages("shared") == written(*four)
        assert [len(request.messages) for request in stage.engine.requests] == [1, 3, 5, 7]
        assert given(stage) == written(*four)[:-1]

        read, reply = asyncio.run(by_mcp(stage.url))
        assert read == "".join(f"{role.capitalize()}: {text}\n" for role, text in written(*four))
        assert reply == "I am MCP."
        assert given(stage) == written(*four, "MCP")[:-1]

        done = mount.shell(f"export MOUNT=$M; {block(PAGE, 'one conversation mount')}")
        everyone = written(*four, "MCP", "the mount")
        assert done.stdout == "".join(f"{role.capitalize()}: {text}\n" for role, text in everyone), done.stderr
        assert given(stage) == everyone[:-1]

        assert stage.messages("shared") == everyone
        kinds = {event.type for event in events_of(stage)}
        assert "history.replaced" not in kinds


def events_of(stage: Stage) -> list[Any]:
    """Return the events of the session."""
    found = stage.server.store.get("shared").log.since(0)
    assert isinstance(found, list)
    return found
