"""No import goes against the arrows of docs/architecture.md, which is where this test reads them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from layout import statements

ROOT = Path(__file__).parent.parent
ROLE_FOLDERS = (
    "client",
    "filesystem",
    "webdav",
    "server",
    "fuse_bridge",
    "agent_runtime",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "integrations").glob("*/"))),
)


class Import(NamedTuple):
    """One import statement: who imports what, and where it stands."""

    importer: str
    imported: str
    place: str


def table(name: str) -> list[list[list[str]]]:
    """Rows of a table of docs/architecture.md: each cell as the list of names that it holds in backticks."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- table: {name} -->\n\n(.*?)\n\n", text, re.DOTALL)
    assert found, f"docs/architecture.md has no table {name!r}"
    rows = found[1].splitlines()[2:]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split("|")] for row in rows]


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of ours, by its dotted name."""
    for folder in ROLE_FOLDERS:
        for path in sorted((ROOT / folder).glob("*/**/*.py")):
            if path.relative_to(ROOT / folder).parts[0] == "tests":  # each integration has its own
                continue
            yield ".".join(path.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(".__init__"), path


def imports_of(module: str, source: str, *, is_package: bool = False) -> Iterator[Import]:
    """All imports of a module, also those inside functions; `from a import b` counts as both a and a.b."""
    parts = module.split(".") if is_package else module.split(".")[:-1]
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield Import(module, name, f"{module}:{node.lineno}")


@cache
def all_imports() -> list[Import]:
    """Every import statement in our packages."""
    return [
        statement
        for module, path in modules()
        for statement in imports_of(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")
    ]


def within(name: str, package: str) -> bool:
    """Whether a dotted name is a package or something below it."""
    return name == package or name.startswith(package + ".")


PACKAGES = {row[0][0]: row[1] for row in table("packages")}


def test_the_table_names_every_package() -> None:
    """A new package needs a row before anything in it can be imported."""
    on_disk = {path.parent.name for folder in ROLE_FOLDERS for path in (ROOT / folder).glob("*/__init__.py")}
    assert on_disk == PACKAGES.keys()


def test_role_folders_are_no_packages() -> None:
    """An __init__.py in a role folder would make a second copy of our code importable from the repository's root."""
    assert [folder for folder in ROLE_FOLDERS if (ROOT / folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_what_the_table_allows(package: str) -> None:
    """A package imports itself and what its row names."""
    wrong = [
        f"{position} imports {imported}"
        for importer, imported, position in all_imports()
        if within(importer, package)
        and imported.split(".")[0] in PACKAGES
        and not any(within(imported, allowed) for allowed in [package, *PACKAGES[package]])
    ]
    assert wrong == []


@pytest.mark.parametrize(("libraries", "homes", "banned"), table("libraries"))
def test_library_stays_behind_its_wall(libraries: list[str], homes: list[str], banned: list[str]) -> None:
    """A library that should be easy to replace is imported in one place only."""
    wrong = [
        f"{place} imports {imported}"
        for importer, imported, place in all_imports()
        if imported.split(".")[0] in libraries
        and not (any(within(importer, server) for server in homes) and not any(within(importer, ban) for ban in banned))
    ]
    assert wrong == []


GATED = [
    (name, path)
    for name, path in modules()
    if name.startswith("cfs_server.routes.") and name.rpartition(".")[2] != "health"
]


@pytest.mark.parametrize(("module", "path"), GATED)
def test_a_route_comes_to_the_sessions_through_the_gate_only(module: str, path: Path) -> None:
    """What a route is given knows its caller (G9); only the operator's routes, and what gives, see the store itself."""
    names = set(names_in(path.read_text(encoding="utf-8")))
    assert names & {"SessionStore", "Parts", "Context", "store", "_store", "workspaces", "_parts", "app"} == set()


def names_in(source: str) -> Iterator[str]:
    """Every name and attribute that a module mentions, also in annotations that are strings, and what it imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield from re.findall(r"\w+", f"{node.name} {node.asname}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


def test_names_are_seen_wherever_they_stand() -> None:
    """The reading of names itself."""
    source = "from a.b import c as d\nx: 'E' = f.g(h)\n"
    assert {"a", "b", "c", "d", "x", "E", "f", "g", "h"} - {"a", "b"} <= set(names_in(source))
    assert len(GATED) >= 7


def test_relative_imports_and_imports_in_functions_are_seen() -> None:
    """The reading of imports itself: absolute, relative, nested."""
    source = "import a.b\nfrom . import c\nfrom ..d import e\ndef f():\n    from g import h\n"
    assert [name for _, name, _ in imports_of("p.q.r", source)] == ["a.b", "p.q.c", "p.d.e", "g.h"]
    assert [name for _, name, _ in imports_of("p.q", "from . import c", is_package=True)] == ["p.q.c"]
