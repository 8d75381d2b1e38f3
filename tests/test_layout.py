"""The layout of the code, and the benchmarks that measure it: on small packages and on the real one."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from layout import Folder, Layout, statements
from tests.fuse.support import reason_to_skip
from walks import WALKS
from watched import ask, until

ROOT = Path(__file__).parent.parent
TOY = {
    "__init__.py": "from toy.a import go\n",
    "a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy import b\n",
    "b.py": "def f():\n    from .deep.c import g\n    return g\n\n\n\n",
    "deep/__init__.py": "",
    "deep/c.py": "import json\nfrom .. import a\nimport toy.b\n",
}


def write(root: Path, files: dict[str, str]) -> Path:
    """Lay a checkout with one package out."""
    for name, text in files.items():
        path = root / "role/toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_imports_are_seen_wherever_they_stand(tmp_path: Path) -> None:
    """In a function, under TYPE_CHECKING, relative or absolute: each pair of modules counts once."""
    layout = Layout(write(tmp_path, TOY))
    assert layout.imports == {
        ("toy", "toy.a"),
        ("toy.a", "toy.b"),
        ("toy.b", "toy.deep.c"),
        ("toy.deep.c", "toy.a"),
        ("toy.deep.c", "toy.b"),
    }
    assert layout.circles == [["toy.a", "toy.b", "toy.deep.c"]]


def test_packages_are_no_modules(tmp_path: Path) -> None:
    """The lines of an `__init__.py` belong to its folder, which has no module more by it."""
    layout = Layout(write(tmp_path, TOY))
    assert layout.folders() == [Folder("role/toy", 2, 10, 4.5, 6), Folder("role/toy/deep", 1, 3, 3, 3)]
    figures = layout.figures()
    assert (figures["modules"], figures["packages"], figures["lines"]) == (3, 2, 13)


def test_layout_prints_its_tables(tmp_path: Path) -> None:
    """The command measures another checkout, and writes what it prints."""
    write(tmp_path, TOY)
    command = [sys.executable, str(ROOT / "bench/layout.py"), "--root", str(tmp_path), "--circles"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "found.json")], capture_output=True, text=True, check=True
    )
    assert "| `role/toy/deep` |  | 1 | 3 | 3 | 3 |" in done.stdout
    assert "| imports between modules | 5 |" in done.stdout
    assert "toy.a - toy.b - toy.deep.c" in done.stdout
    assert "role/toy - role/toy/deep" in done.stdout
    figures = json.loads((tmp_path / "found.json").read_text())["figures"]
    assert (figures["circles of modules"], figures["circles of folders"]) == (1, 1)


def test_a_folder_stands_above_what_it_imports(tmp_path: Path) -> None:
    """A string that names a module counts as an import: of plugins, say."""
    files = {"__init__.py": "", "low/__init__.py": "", "low/a.py": "", "high/b.py": "import toy.low.a\n"}
    layout = Layout(write(tmp_path, files | {"top/c.py": "PLUGIN = 'toy.high.b'\n"}))
    assert layout.floors() == {"role/toy": 1, "role/toy/low": 1, "role/toy/high": 2, "role/toy/top": 3}
    (tmp_path / "role/toy/low/a.py").write_text("def f():\n    from toy.top import c\n")
    with pytest.raises(ValueError, match="role/toy/high, role/toy/low, role/toy/top"):
        Layout(tmp_path).floors()


@cache
def ours() -> Layout:
    """Read the code once."""
    return Layout(ROOT)


def test_imports_go_down_only() -> None:
    """No folder of ours imports from one that reaches it; imports in functions and under TYPE_CHECKING count."""
    assert ours().folder_circles == []


def test_no_modules_make_a_circle() -> None:
    """No modules of ours import each other."""
    assert ours().circles == []


SHARED = {
    "public names": {"Asked", "FileChanges", "Finished", "Reply", "Session", "SessionState", "Tool", "ToolResult"},
    "a value and how it goes over the wire, or is stored": {"Author", "Question", "TurnState"},
    "protocols of other programs": {
        *("FunctionTool", "_Block", "_Event", "_Line", "_Message", "_Meta", "_Part", "_Usage"),
    },
    "the mount and WebDAV, which never meet": {
        *("Family", "NewFile", "NewFiles", "QuestionPath", "Root", "Scratch", "ScratchFiles", "ScratchPath"),
        *("SessionPath", "SessionQuestions"),
    },
}
"""The names that more than one class has, and why they may."""


def test_a_class_has_a_name_of_its_own() -> None:
    """A reader who meets a name need not look which of several classes is meant."""
    names: Counter[str] = Counter()
    for module in ours().modules.values():
        tree = ast.parse(module.path.read_text(encoding="utf-8"))
        names.update(node.name for node in statements(tree) if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} == set[str]().union(*SHARED.values())


PROGRAM = """
import toy.a
print("ready", flush=True)
input()
toy.a.go()
print("done", flush=True)
input()
"""
CALLS = {
    "__init__.py": "",
    "a.py": """
import asyncio, ctypes, json, threading
from toy import b

def go():
    asyncio.run(wait())
    json.dumps({1: object()}, indent=1, default=b.text)
    threading.Thread(target=b.work).start()
    ctypes.CFUNCTYPE(ctypes.c_int)(b.work)()

async def wait():
    await b.sleep()
""",
    "b.py": """
import asyncio

async def sleep():
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    inner()

def inner(): pass
def text(_): return ""
def work():
    from toy import late
    return 0
""",
    "late.py": "def f(): pass\nf()\n",
}


def test_calls_are_counted_when_they_begin(tmp_path: Path) -> None:
    """A coroutine counts once, a library between two modules does not hide the caller, an import is no call."""
    write(tmp_path, CALLS)
    shutil.copy(ROOT / "bench/crossings.py", tmp_path / "sitecustomize.py")
    toy = tmp_path / "role/toy"
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(toy.parent)]), "WALKS_PACKAGES": str(toy)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        until((tmp_path / str(process.pid)).exists, "a recorder")
        assert ask(tmp_path, process.pid, "start") == []
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        steps = ask(tmp_path, process.pid, "stop")
        process.communicate("\n")
    assert [(caller, module) for _, caller, module in steps] == [
        ("", "toy.a"),
        ("", "toy.a"),
        ("toy.a", "toy.b"),
        ("toy.b", "toy.b"),
        ("toy.a", "toy.b"),
        ("", "toy.b"),
        ("toy.a", "toy.b"),
    ]
    assert [moment for moment, _, _ in steps] == sorted(moment for moment, _, _ in steps)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "message" else pytest.mark.slow) for name in WALKS]
)
def test_path_through_the_real_thing_is_counted(name: str, tmp_path: Path) -> None:
    """Each path passes modules that there are, by calls from one into another."""
    if name == "fuse" and (reason := reason_to_skip()):
        pytest.skip(reason)
    command = [sys.executable, str(ROOT / "bench/walks.py"), "--only", name, "--rounds", "1"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "found.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    walks = json.loads((tmp_path / "found.json").read_text())
    assert len(walks) == (2 if name in ("message", "child") else 1)
    for walk in walks:
        assert set(walk["modules"]) <= ours().modules.keys()
        assert walk["counts"] == [len(walk["modules"])]
        assert 0 < walk["crossings"][0] < walk["calls"][0]
