"""An MCP server over standard input and output with 200 tools, one for each warehouse; with `dead` it ends at once."""

import json
import sys
from typing import Any

TOOLS = [
    {
        "name": f"stock_{number}",
        "description": f"Return how many pieces of a part warehouse {number} has in stock, and in which row they lie.",
        "inputSchema": {
            "type": "object",
            "properties": {"part": {"type": "string", "description": "The number of the part, such as P-001."}},
            "required": ["part"],
        },
    }
    for number in range(200)
]


def answer(method: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request; None for a method that is not there."""
    match method:
        case "initialize":
            return {
                "protocolVersion": parameters["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "stock", "version": "1"},
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return {"content": [{"type": "text", "text": "4711 pieces, row 12"}]}
    return None


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params", {}))
        error = {"code": -32601, "message": "there is no such method"}
        body = {"error": error} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}), flush=True)


if __name__ == "__main__":
    if "dead" in sys.argv:
        sys.exit("out of order")
    main()
