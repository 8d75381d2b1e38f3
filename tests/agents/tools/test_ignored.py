"""What git ignores in a folder: the same files as git says, and what agents see of them."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cfs_agents.tools import FileTools
from cfs_agents.tools.ignored import IgnoredFiles
from cfs_agents.tools.paths import agent_grants
from cfs_agents.tree.listing import tree
from cfs_filesystem import DiskFileSystem

FILES = (
    *("a.py", "a.txt", "b.log", "keep.log", "build", "src/build/x.o", "src/build/y.py", "src/deep/er/c.txt"),
    *("src/c.txt", "docs/_build/index.html", "docs/index.md", "foo/bar/baz.txt", "foo/baz.txt", "#hash", "!bang"),
    *("with space .txt", "target/debug/app", "sub/target/app", "node/.hidden", "node/x[1].txt", "trailing "),
    *("UPPER.TXT", "\udcff.log"),
)
"""Names as `os.fsdecode` returns them; the last one is no text."""


def made(root: Path, rules: Mapping[str, str]) -> Path:
    """A repository with all files, and with files of rules."""
    subprocess.run(["git", "init", "-q", root], check=True)
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("hello\n")
    for name, text in rules.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())
    return root


def seen_by_git(folder: Path) -> set[str]:
    command = ["git", "-c", "core.excludesFile=", "ls-files", "-z", "-o", "--exclude-standard"]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


def seen(folder: Path) -> set[str]:
    """The files of a walk that enters no ignored folder."""
    rules, names = IgnoredFiles(folder).now(), set[str]()
    for place, folders, files in os.walk(folder):
        above = Path(place).relative_to(folder).parts
        folders[:] = [name for name in folders if name != ".git" and not rules.ignores((*above, name), folder=True)]
        names |= {"/".join((*above, name)) for name in files if not rules.ignores((*above, name), folder=False)}
    assert all(not rules.hides(name.split("/")) for name in names)
    return names


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {".gitignore": "*.log\n!keep.log\nbuild/\n/target\n"},
        {".gitignore": "*\n!*/\n!*.py\n!.gitignore\n"},
        {".gitignore": "/*\n!/src/\n"},
        {".gitignore": "src/*\n!src/deep\n"},
        {".gitignore": "src/**\n!src/**/\n!src/**/*.py\n"},
        {".gitignore": "foo/**/baz.txt\n**/index.md\n_build\n"},
        {".gitignore": "/foo\n!/foo/\nfoo/bar\n"},
        {".gitignore": "# no rule\n\n\\#hash\n\\!bang\nwith space .txt   \ntrailing\\ \n"},
        {".gitignore": "x\\[1\\].txt\n.hidden\nupper.txt\n"},
        {".gitignore": "node/x[[]*\nUPPER.*\nsrc/[a-c].txt\n"},
        {".gitignore": "*.log\r\nbuild/\r\n"},
        {".gitignore": "\ufeff*.log\n"},
        {".gitignore": "[a-\n/\n!\n*.log\n"},
        {".gitignore": "*.txt\n", "src/.gitignore": "!c.txt\n", "src/deep/.gitignore": "*\n"},
        {".gitignore": "src/build/\n", "src/.gitignore": "!build/\n/deep\n"},
        {".git/info/exclude": "docs\n*.txt\n", ".gitignore": "!a.txt\n"},
    ],
)
def test_the_files_are_those_that_git_sees(tmp_path: Path, rules: dict[str, str]) -> None:
    """In the repository, and in a folder of it."""
    root = made(tmp_path / "repository", rules)
    assert seen(root) == seen_by_git(root)
    assert seen(root / "src") == seen_by_git(root / "src")


def test_a_pattern_that_would_take_forever_is_not_used(tmp_path: Path) -> None:
    """A repository cannot stop the agents that work in it."""
    root = made(tmp_path / "repository", {".gitignore": "a*" * 20 + "b\n**/*.log\n"})
    rules = IgnoredFiles(root).now()
    assert (rules.hides(["a" * 250]), rules.hides(["b.log"])) == (False, True)


def test_a_link_has_no_rules(tmp_path: Path) -> None:
    """As for git: it may lead anywhere."""
    (tmp_path / "rules").write_text("*\n")
    root = made(tmp_path / "repository", {})
    (root / ".gitignore").symlink_to(tmp_path / "rules")
    assert seen(root) - {".gitignore"} == set(FILES)


def test_a_folder_that_the_repository_above_ignores_has_its_own_rules(tmp_path: Path) -> None:
    """A home may be a repository that ignores all but settings; the user works in this folder all the same."""
    root = made(tmp_path / "home/project", {".gitignore": "*.log\n"})
    made(tmp_path / "home", {".gitignore": "*\n"})
    (root / ".git").rename(tmp_path / "elsewhere")
    assert "a.txt" in seen(root)
    assert "b.log" not in seen(root)


def test_rules_that_change_count_at_once(tmp_path: Path) -> None:
    """The decisions by the rules of before are not used."""
    root = made(tmp_path / "repository", {".gitignore": "*.log\n"})
    ignored = IgnoredFiles(root)
    assert ignored.now().hides(["b.log"])
    (root / ".gitignore").write_text("!b.log\n")
    assert not ignored.now().hides(["b.log"])


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[FileTools]:
    """The tools of an agent in a repository with some ignored files."""
    root = made(tmp_path / "workspace", {".gitignore": "*.log\nbuild/\n*.txt\n!a.txt\n"})
    (root / "\udcff.log").unlink()
    disk = DiskFileSystem(tmp_path)
    yield FileTools(disk.create_handle(agent_grants()), ignored=IgnoredFiles(root))
    disk.close()


def test_a_search_passes_over_what_git_ignores(tools: FileTools) -> None:
    """It says so where it finds nothing, and searches what is named."""
    found = tools.search_files("hello")
    assert "/workspace/a.py:1:1: hello" in found
    assert not any(name in found for name in ("b.log", "y.py", "c.txt"))
    assert "/workspace/src/build/y.py:1:1: hello" in tools.search_files("hello", path="src/build")
    assert "/workspace/b.log:1:1: hello" in tools.search_files("hello", path="b.log")
    assert "files that git ignores were not searched" in tools.search_files("nothing")
    assert "git" not in tools.search_files("nothing", path="src/build")


def test_a_search_goes_on_where_it_stopped_in_the_order_of_paths(tools: FileTools, tmp_path: Path) -> None:
    """Folders come where their paths do, also beside names that begin alike."""
    for name in ("m/x.py", "m.py", "m-1.py", "m0.py"):
        (tmp_path / "workspace" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "workspace" / name).write_text("here\n" * 100)
    first = tools.search_files("here")
    paths = list(dict.fromkeys(line.partition(":")[0] for line in first.splitlines()[:-1]))
    assert paths == ["/workspace/m-1.py", "/workspace/m.py"]
    rest = tools.search_files("here", after="/workspace/m.py:100")
    paths = list(dict.fromkeys(line.partition(":")[0] for line in rest.splitlines()[:-1]))
    assert paths == ["/workspace/m/x.py", "/workspace/m0.py"]


def test_a_list_names_ignored_files_apart(tools: FileTools) -> None:
    """So the agent knows that they are there; a folder that it names is listed in full."""
    listed = tools.list_directory()
    assert "\na.txt (6 bytes)\n" in listed
    assert "\nb.log (" not in listed
    assert listed.endswith("[git ignores b.log, keep.log, with space .txt]")
    assert "x.o (6 bytes)" in tools.list_directory("src/build")
    assert tools.read_file("b.log") == "hello\n"


def test_the_prompt_shows_no_ignored_files(tools: FileTools, tmp_path: Path) -> None:
    """Of ignored folders it has the name."""
    root = tmp_path / "workspace"
    lines = tree({"/workspace": root}, IgnoredFiles(root)).splitlines()
    assert " a.txt" in lines
    assert " b.log" not in lines
    assert "  build/" in lines
    assert not any("x.o" in line for line in lines)
