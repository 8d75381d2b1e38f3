"""The page of the SDK tells the truth: its snippets run, in their order, against a real model."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cfs import Session, Tree
from tests.server.support import CFS, Process, environment, serving

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/sdk.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"<!-- tested -->\n```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server with the embedded model, and an agent that answers in `main`."""
    root = tmp_path_factory.mktemp("agents")
    with serving() as process:
        command = [str(CFS), "agent", "serve", "--session", "main", "--root", str(root), "--temperature", "0"]
        agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(CFS_URL=process.url))
        try:
            assert agent.stderr is not None
            assert "answers in main" in agent.stderr.readline()
            yield process
        finally:
            agent.terminate()
            agent.communicate()


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
    assert "main/writer_2: write_file" in shown
    assert "finished The agents wrote the files a.txt and b.txt." in shown
    assert re.search(r"^a\.txt 5 \S+ b'hello'$", shown, re.MULTILINE)
    assert namespace["notes"] == {"notes.txt": "hello"}, "the embedded model calls the tools of the example"


def test_the_page_names_every_method() -> None:
    public = {name for kind in (Session, Tree) for name in vars(kind) if not name.startswith("_")} - {"id", "session"}
    assert [name for name in sorted(public) if f"{name}(" not in PAGE and f"`{name}`" not in PAGE] == []
