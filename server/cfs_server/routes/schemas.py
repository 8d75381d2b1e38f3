"""What an answer says of the JSON schema that its request named."""

from typing import Any

from fastapi import Response

from cfs_server.routes.context import Caller

UNKEPT = "X-CFS-Schema-Unkept"
UNKEPT_HEADERS: dict[str, Any] = {
    UNKEPT: {
        "description": "Keywords of the JSON schema that the reply may break, by commas; absent if there are none.",
        "schema": {"type": "string"},
    }
}


async def unkept_of(me: Caller, schema: dict[str, Any] | None) -> dict[str, str]:
    """Make the header for a schema; empty where all of it is kept, and where it is not known."""
    found = await me.completions.unkept(schema) if schema is not None else ()
    return {UNKEPT: ", ".join(found)} if found else {}


def with_headers(response: Response, headers: dict[str, str]) -> Response:
    """Add headers to an answer."""
    response.headers.update(headers)
    return response
