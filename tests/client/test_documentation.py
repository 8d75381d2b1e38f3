"""The page of the SDK tells the truth: its snippets run, in their order, against a real model."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cfs import Session
from tests.server.support import Process, serving

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/sdk.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"<!-- tested -->\n```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with serving() as process:
        yield process


def test_every_snippet_is_run() -> None:
    assert len(SNIPPETS) == PAGE.count("```python")


def test_the_snippets_of_the_page_run(
    server: Process, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CFS_URL", server.url)
    namespace: dict[str, Any] = {"__name__": "page"}
    for snippet in SNIPPETS:
        exec(compile(snippet, "docs/sdk.md", "exec"), namespace)  # noqa: S102 - it is our own page
    shown = capsys.readouterr().out
    assert "Assistant: " in shown
    assert "Unreachable no server answers at" in shown
    assert namespace["answer"].parsed.mood in ("good", "bad")
    assert namespace["notes"] == {"notes.txt": "hello"}, "the embedded model calls the tools of the example"


def test_the_page_names_every_method() -> None:
    public = {name for name in vars(Session) if not name.startswith("_")} - {"id"}
    assert [name for name in sorted(public) if f"{name}(" not in PAGE and f"`{name}`" not in PAGE] == []
