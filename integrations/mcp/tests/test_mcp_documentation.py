"""The page about MCP tells the truth."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cfs_mcp.prompts import PROMPTS
from cfs_mcp.tools import TOOLS
from pytest_cfs import ScriptedServer
from tests.documentation import ROOT, block

from .conftest import environment

PAGE = "docs/mcp.md"


@pytest.mark.external
def test_the_snippet_of_the_page_runs(cfs_server: ScriptedServer) -> None:
    folder = str(Path(sys.executable).parent)
    variables = environment(CFS_URL=cfs_server.url, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    code = block(PAGE, "mcp")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False)
    assert found.stdout == "Hello!\nUser: Hello!\nAssistant: Hello!\n\n", found.stderr


def test_the_page_names_all_tools_with_their_arguments_and_all_prompts() -> None:
    rows = [
        line.split("|") for line in (ROOT / PAGE).read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    named = {row[1].strip(" `"): {each.strip(" `") for each in row[2].split(",")} for row in rows if len(row) == 5}
    for tool in TOOLS.values():
        assert named[tool.name] == set(tool.arguments.model_fields)
    for prompt in PROMPTS.values():
        assert named[prompt.name] == {argument.name for argument in prompt.shown.arguments or ()}
