"""The page of the agents tells the truth: its snippets run, in their order."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from cfs.wire import ToolCall
from cfs_agents.tools import Registry
from tests.server.support import Process

PAGE = (Path(__file__).parents[3] / "docs/agents.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"<!-- tested -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_snippet_is_run() -> None:
    """None is left out."""
    assert len(SNIPPETS) == PAGE.count("```python") == 9


def test_the_snippets_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model_server: Process
) -> None:
    """As they stand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFS_URL", model_server.url)
    namespace: dict[str, Any] = {"__name__": "page"}
    for snippet in SNIPPETS:
        exec(compile(snippet, "docs/agents.md", "exec"), namespace)  # noqa: S102 - it is our own page
    shown = capsys.readouterr().out
    assert "'name': 'execute_command'" in shown
    assert "\nhi\n" in shown
    assert namespace["result"].status in (2, 127), "there is nothing to make"
    assert (namespace["written"].text, namespace["calculated"].text) == ("notes.txt is written.", "4")
    assert namespace["place"].read_text() == "hello"
    assert namespace["synchronizer"].name == "sync_context"
    assert "> add" in shown
    assert namespace["settings"].sandbox is not None
    assert namespace["reply"].message.content.strip() in shown
    assert namespace["reply"].usage.completion_tokens > 0
    assert namespace["model"].asked == []
    call = ToolCall(id="1", name="weather", arguments={"place": "Atlantis"})
    told = asyncio.run(Registry([namespace["weather"]]).call(call))
    assert told.text == "Error: there is no weather under water: name a town on land"


def test_the_page_names_every_tool_and_setting() -> None:
    """What can be set and called is told."""
    for name in ("read_file", "write_file", "edit_file", "list_directory", "search_files", "execute_command"):
        assert f"`{name}(" in PAGE
    for name in ("ephemeral", "timeout", "most_characters", "grace", "merge", "keep_variables", "Limits", "user"):
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE), name
