"""The folders of the SDK are floors: none reaches itself by imports, wherever in a module they stand."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "client/cfs"


def folder_of(name: str) -> str | None:
    """Return the folder of a dotted name of the SDK; None for a name of another package."""
    if name.split(".")[0] != "cfs":
        return None
    path = PACKAGE.joinpath(*name.split(".")[1:])
    while not path.is_dir():
        path = path.parent
    return path.relative_to(PACKAGE).as_posix()


def names_in(path: Path) -> Iterator[str]:
    """Yield what a module imports, also under TYPE_CHECKING, in functions, and by name with `import_module`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_module(node.value):
            yield node.value


def is_module(name: str) -> bool:
    """Return whether a text is the dotted name of a module of the SDK."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    return name.startswith("cfs.") and path.with_suffix(".py").is_file()


def arrows() -> dict[str, set[str]]:
    """Return the folders that each folder imports from."""
    graph: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        folder = path.parent.relative_to(PACKAGE).as_posix()
        graph.setdefault(folder, set()).update(to for name in names_in(path) if (to := folder_of(name)) is not None)
    return {folder: targets - {folder} for folder, targets in graph.items()}


def test_no_folders_make_a_circle() -> None:
    """Take away the folders that import from none of the others, again and again: all of them go."""
    left = arrows()
    while ground := {folder for folder, targets in left.items() if not targets & left.keys()}:
        left = {folder: targets for folder, targets in left.items() if folder not in ground}
    assert left == {}


def test_the_folders_are_seen() -> None:
    """The reading of imports itself: one in a function, one in a module's head, and one by name."""
    graph = arrows()
    assert "transports" in graph["session"]  # in a function
    assert "cli/actions" in graph["cli"]
    assert {"session", "tree"} <= graph["."]
