"""A server with models that cost something, in front of stubs of upstreams."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.models.support import KEY_VARIABLE, models_file, upstream
from tests.server.support import Process, serving
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import KEY, served_aside

PRICE = "10000, 1000, 50000 USD"
"""A token of a prompt costs a cent, a cached one a tenth of that, and one of a reply five cents."""


def cost_of(usage: dict[str, Any]) -> float:
    """Return what a usage costs at `PRICE`, in dollars."""
    new = usage["prompt_tokens"] - usage["cached_tokens"]
    cost: float = round(new * 0.01 + usage["cached_tokens"] * 0.001 + usage["completion_tokens"] * 0.05, 9)
    return cost


@dataclass
class Priced:
    """A server, its upstream, its file of models, and a client."""

    process: Process
    stub: OpenAIStub
    file: Path
    client: httpx.Client

    def say(self, session: str, text: str, **headers: str) -> httpx.Response:
        """Send a message and wait for the reply."""
        path = f"/v1/sessions/{session}/messages"
        return self.client.post(path, params={"wait": "true"}, content=text.encode(), headers=headers)

    def costs(self) -> list[dict[str, Any]]:
        """Return all that was spent."""
        found: list[dict[str, Any]] = self.client.get("/v1/costs").raise_for_status().json()["costs"]
        return found


@contextmanager
def priced_models(folder: Path, stub: OpenAIStub, price: str = PRICE) -> Iterator[Path]:
    """Serve a stub, and write a file of models: `paid`, `free` without a price, and `foreign` in euros."""
    with served_aside(stub) as url:
        names: tuple[tuple[str, dict[str, Any]], ...] = (
            ("paid", {"price": price}),
            ("free", {}),
            ("foreign", {"price": "1, 2 EUR"}),
        )
        yield models_file(folder, *(upstream(name, url, **keys) for name, keys in names))


@contextmanager
def priced_server(
    folder: Path, *flags: str, token: str | None = None, stub: OpenAIStub | None = None, price: str = PRICE
) -> Iterator[Priced]:
    """Run a server whose default model has a price."""
    stub = stub or OpenAIStub()
    with ExitStack() as stack:
        file = stack.enter_context(priced_models(folder, stub, price))
        process = stack.enter_context(serving("--models", str(file), *flags, **{KEY_VARIABLE: KEY}))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.Client(base_url=process.url, headers=headers, timeout=60, trust_env=False)
        yield Priced(process, stub, file, stack.enter_context(client))
