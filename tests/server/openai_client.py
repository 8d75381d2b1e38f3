"""The official client of the OpenAI API, pointed at a server of ours."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

READ: Any = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["path"],
        },
    },
}
"""A tool as programs describe it."""


@asynccontextmanager
async def speaking(url: str, key: str = "none", **options: Any) -> AsyncIterator[AsyncOpenAI]:
    """Open a client with coroutines; it does not retry by default."""
    async with _client(url, key, **options) as client:
        yield client


def blocking(url: str) -> OpenAI:
    """Make a client without coroutines."""
    http = openai.DefaultHttpxClient(trust_env=False, verify=False)
    return OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http, max_retries=0, timeout=60)


def _client(url: str, key: str, **options: Any) -> AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False, verify=False)
    options = {"max_retries": 0, "timeout": 60} | options
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, http_client=http, **options)


def _warm_up() -> None:
    """Let the client load what it loads late, here where no loop is held up by it."""
    client = _client("http://127.0.0.1:9", "none")
    look: Callable[[], object] = client.platform_headers
    look()
    _ = client.chat.completions, client.models


_warm_up()
