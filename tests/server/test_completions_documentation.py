"""The page about completions tells the truth: its snippets run, in their order, against a real model."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.support import Process

PAGE = (Path(__file__).parent.parent.parent / "docs/completions.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"<!-- tested -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_snippet_is_run() -> None:
    assert len(SNIPPETS) == PAGE.count("```python")


def test_the_snippets_of_the_page_run(
    model_server: Process, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CFS_URL", model_server.url)
    namespace: dict[str, Any] = {"__name__": "page"}
    for snippet in SNIPPETS:
        exec(compile(snippet, "docs/completions.md", "exec"), namespace)  # noqa: S102 - it is our own page
    namespace["client"].close()
    shown = capsys.readouterr().out
    assert "User: My name is Alice.\nAssistant: " in shown


def test_the_numbers_of_the_page_are_right(model_server: Process) -> None:
    command, answer = re.findall(r"    curl .*-d '(.*)'\n    (\{.*\})", PAGE)[0]
    found = httpx.post(f"{model_server.url}/v1/tokens", json=json.loads(command), trust_env=False, timeout=60)
    assert found.json() == json.loads(answer)
