"""The benchmarks that measure the shape of the code: what they count, on small packages and on the real one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from house import House, Room
from tests.fuse.support import reason_to_skip
from walks import WALKS, ask, until

ROOT = Path(__file__).parent.parent
PROJECT = '[tool.hatch.build.targets.wheel]\npackages = ["role/toy"]\n'
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
    (root / "pyproject.toml").write_text(PROJECT)
    return root


def test_arrows_are_seen_wherever_an_import_stands(tmp_path: Path) -> None:
    """In a function, under TYPE_CHECKING, relative or absolute: each pair of modules counts once."""
    house = House(write(tmp_path, TOY))
    assert house.arrows == {
        ("toy", "toy.a"),
        ("toy.a", "toy.b"),
        ("toy.b", "toy.deep.c"),
        ("toy.deep.c", "toy.a"),
        ("toy.deep.c", "toy.b"),
    }
    assert house.circles == [["toy.a", "toy.b", "toy.deep.c"]]


def test_packages_are_no_modules(tmp_path: Path) -> None:
    """The lines of an `__init__.py` belong to its room, which has no module more by it."""
    house = House(write(tmp_path, TOY))
    assert house.rooms() == [Room("role/toy", 2, 10, 4.5, 6), Room("role/toy/deep", 1, 3, 3, 3)]
    figures = house.figures()
    assert (figures["modules"], figures["packages"], figures["lines"]) == (3, 2, 13)


def test_house_prints_its_tables(tmp_path: Path) -> None:
    """The command measures another checkout, and writes what it prints."""
    write(tmp_path, TOY)
    command = [sys.executable, str(ROOT / "bench/house.py"), "--root", str(tmp_path), "--circles"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "found.json")], capture_output=True, text=True, check=True
    )
    assert "| `role/toy/deep` | 1 | 3 | 3 | 3 |" in done.stdout
    assert "| import arrows | 5 |" in done.stdout
    assert "toy.a - toy.b - toy.deep.c" in done.stdout
    assert json.loads((tmp_path / "found.json").read_text())["figures"]["circles"] == 1


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


@pytest.mark.parametrize("name", WALKS)
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
    assert len(walks) == (2 if name == "message" else 1)
    for walk in walks:
        assert set(walk["modules"]) <= House(ROOT).modules.keys()
        assert walk["counts"] == [len(walk["modules"])]
        assert 0 < walk["crossings"][0] < walk["calls"][0]
