"""`--tools FILE`: agents call the tools of a user's Python file, in one task and in a tree."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cfs.errors import InvalidRequest
from cfs_agents.main.own_tools import load_tools
from tests.client.terminal import Running, cfs, ended
from tests.server.support import serving
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import MODEL, Act, Speech, served_aside

STOCK = '''
from dataclasses import dataclass
from cfs_agents.tools import tool

@dataclass
class Shelf:
    bolts: int

@tool()
def count_bolts(shelf: str) -> str:
    """Count the bolts on a shelf."""
    return f"{Shelf(42).bolts} bolts on shelf {shelf}"
'''
CALL = Speech((), calls=(("count_bolts", ('{"shelf": "B"}',)),))
RESULT = "42 bolts on shelf B"


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[str, OpenAIStub]]:
    """A server, and the stub that is its model."""
    stub = OpenAIStub(key=None)
    with served_aside(stub) as url, serving("--upstream", url, "--upstream-model", MODEL) as server:
        yield server.url, stub


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """A file with a tool, whose class is looked up by its module."""
    path = tmp_path / "stock.py"
    path.write_text(STOCK)
    return path


def acts(stub: OpenAIStub) -> None:
    """Let the model call the tool, then answer."""
    script: list[Act] = [CALL, Speech(("There are 42.",))]
    stub.acts.extend(script)


def test_an_agent_calls_a_tool_of_the_user(upstream: tuple[str, OpenAIStub], stock: Path, tmp_path: Path) -> None:
    url, stub = upstream
    acts(stub)
    done = ended(cfs(url, "agent", "run", "How many?", "--tools", str(stock), "--root", str(tmp_path / "root")))
    assert done[0] == 0, done
    assert RESULT in str(stub.bodies[-1])


def test_a_tree_calls_a_tool_of_the_user(upstream: tuple[str, OpenAIStub], stock: Path, tmp_path: Path) -> None:
    url, stub = upstream
    with Running(
        url, "agent", "serve", "--session", "stock", "--tools", str(stock), "--root", str(tmp_path)
    ) as running:
        while cfs(url, "agent", "tree", "stock").returncode != 0:  # it is not attached yet
            assert running.process.poll() is None
        acts(stub)
        code, reply, _ = ended(cfs(url, "send", "stock", "How many?"))
    assert (code, "There are 42." in reply) == (0, True)
    assert RESULT in ended(cfs(url, "cat", "stock"))[1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("x = 1", "has no tool"),
        ("\ndef (", "line 2"),
        ("\n\nimport missing_module", "line 3: ModuleNotFoundError"),
        (STOCK.replace("count_bolts", "read_file"), "another tool called read_file"),
        (STOCK.replace("count_bolts", "sys_wait_agent"), "another tool called sys_wait_agent"),
        (STOCK.replace("shelf: str", "shelf"), "has no type"),
    ],
)
def test_a_file_that_gives_no_tools_is_refused(text: str | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidRequest, match=reason) as refused:
        load_tools([path])
    assert refused.value.detail.startswith(str(path))


def test_a_refused_file_is_one_line_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "missing.py"
    done = ended(cfs("http://127.0.0.1:9", "agent", "run", "hi", "--tools", str(path)))
    assert done == (1, "", f"cfs: {path} cannot be read: No such file or directory\n")


def test_two_files_with_one_name_are_refused(stock: Path, tmp_path: Path) -> None:
    other = tmp_path / "more" / stock.name
    other.parent.mkdir()
    other.write_text(STOCK)
    with pytest.raises(InvalidRequest, match="another tool called count_bolts"):
        load_tools([stock, other])
    assert [tool.name for tool in load_tools([stock])] == ["count_bolts"]
