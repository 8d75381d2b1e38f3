"""An MCP server over standard input and output with the faults that its arguments name."""

import os
import signal
import sys
import time
from pathlib import Path

import anyio
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("odd")
marks = Path(sys.argv[1])


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def die() -> str:
    """End the server in the middle of the call."""
    sys.stderr.write("out of luck\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@server.tool()
async def hang(name: str) -> str:
    """Wait until the call is cancelled."""
    (marks / f"{name}-begun").touch()
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        (marks / name).touch()
        raise
    return "never"


@server.tool()
def long(characters: int) -> str:
    """Return a long text."""
    return "x" * characters


@server.tool()
def picture() -> Image:
    """Return an image."""
    return Image(data=b"\x89PNG\r\n\x1a\n", format="png")


@server.tool()
def variable(name: str) -> str:
    """Return an environment variable of the server."""
    return os.environ.get(name, "not set")


@server.tool()
def pid() -> int:
    """Return the number of the server's process."""
    return os.getpid()


@server.tool()
def fail() -> str:
    """Fail with a reason."""
    raise ToolError("there is no such thing")


if "many" in sys.argv:
    for number in range(200):

        def numbered(text: str, number: int = number) -> str:
            return f"{number}: {text}"

        server.add_tool(numbered, name=f"numbered_{number}", description=f"Does the thing with number {number}. " * 5)

if "never" in sys.argv:
    sys.stderr.write("waiting for a licence\n")
    sys.stderr.flush()
    time.sleep(1000)
if "ends" in sys.argv:
    sys.exit("no configuration")
if "http" in sys.argv:
    server.run("streamable-http", port=int(sys.argv[-1]))
else:
    server.run()
