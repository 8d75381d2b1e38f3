"""The page about protocols tells the truth: its snippets run against a real model."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.documentation import block
from tests.server.support import Process, serving

PAGE = "docs/protocols.md"


@pytest.fixture(scope="module")
def model_server() -> Iterator[Process]:
    """A server with the embedded model."""
    with serving() as process:
        yield process


@pytest.mark.parametrize("protocol", ["anthropic", "ollama", "responses"])
def test_the_snippets_of_the_page_run(
    protocol: str, model_server: Process, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CFS_URL", model_server.url)
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(block(PAGE, protocol), PAGE, "exec"), namespace)  # noqa: S102 - it is our own page
    for client in (namespace["client"], namespace.get("recorded")):
        if client is not None:
            client.close()
    assert capsys.readouterr().out.strip()
    recorded = httpx.get(f"{model_server.url}/v1/sessions/from-{protocol}", trust_env=False, timeout=60).json()[
        "history"
    ]
    assert [message["role"] for message in recorded][:2] == ["user", "assistant"]
