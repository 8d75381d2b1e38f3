"""Measure the layout of the source: modules, imports, circles of imports, and the lines and floor of each folder.

    scripts/bench layout [--root DIR] [--circles] [--json FILE]

Nothing is imported or run, so `--root` may name any checkout. An import is a pair of modules of which one imports the
other, anywhere in its text: in a function, under `TYPE_CHECKING`, and by a dotted name in a string, too. A circle is a
group of modules, or of folders, that all reach each other by imports. The floor of a folder is one above the highest
folder that it imports from. An `__init__.py` has its imports and lines, but counts as a package and not as a module.
"""

import argparse
import ast
import json
import re
import statistics
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
_OTHERS = ("tests", "research", "bench", "node_modules")
_QUOTED = re.compile(r"""["']([a-z_]+(?:\.[a-z_]+)+)["']""")


@dataclass(frozen=True, slots=True)
class Module:
    """One file. `lines` counts all of them, blank ones too."""

    name: str
    path: Path
    folder: str
    lines: int

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__.py` of a folder."""
        return self.path.name == "__init__.py"


@dataclass(frozen=True, slots=True)
class Folder:
    """The modules of one folder. `lines` has those of its `__init__.py` in it; the median and the longest do not."""

    name: str
    modules: int
    lines: int
    median: float
    longest: int


def packages(root: Path) -> list[Path]:
    """Return the folders of the packages of a checkout, without those of tests."""
    folders = [*root.glob("[!.]*/*/__init__.py"), *root.glob("integrations/*/*/__init__.py")]
    return [path.parent for path in sorted(folders) if not {*path.relative_to(root).parts[:-1]} & {*_OTHERS}]


class Layout:
    """The packages of one checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules = {module.name: module for package in packages(root) for module in self._modules(package)}

    def _modules(self, package: Path) -> Iterator[Module]:
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            lines = len(path.read_text(encoding="utf-8").splitlines())
            yield Module(name, path, path.parent.relative_to(self.root).as_posix(), lines)

    @cached_property
    def imports(self) -> set[tuple[str, str]]:
        """Pairs of an importing and an imported module, each once."""
        return {(module.name, other) for module in self.modules.values() for other in self._imported(module)}

    def _imported(self, module: Module) -> set[str]:
        above = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
        names: set[str] = set()
        source = module.path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        for node in statements(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                start = above[: len(above) - node.level + 1] if node.level else []
                base = ".".join([*start, *([node.module] if node.module else [])])
                names |= {name if (name := f"{base}.{alias.name}") in self.modules else base for alias in node.names}
        if self.modules.keys() & set(_QUOTED.findall(source)):  # few modules; to visit all expressions takes long
            names |= _strings(tree)
        return (names & self.modules.keys()) - {module.name}

    @cached_property
    def circles(self) -> list[list[str]]:
        """Groups of modules that reach each other by imports."""
        return _circles(_graph(self.modules, self.imports))

    @cached_property
    def folder_imports(self) -> dict[str, set[str]]:
        """The folders that each folder imports from, itself left out."""
        folders = {name: module.folder for name, module in self.modules.items()}
        return _graph(folders.values(), {(folders[one], folders[other]) for one, other in self.imports})

    @cached_property
    def folder_circles(self) -> list[list[str]]:
        """Groups of folders that reach each other by imports."""
        return _circles(self.folder_imports)

    def floors(self) -> dict[str, int]:
        """Return the floor of each folder: 1 for one that imports from no other. Raises `ValueError` for a circle."""
        if self.folder_circles:
            raise ValueError(f"these folders import each other: {', '.join(self.folder_circles[0])}")
        floors: dict[str, int] = {}

        def floor(folder: str) -> int:
            if folder not in floors:
                floors[folder] = 1 + max(map(floor, self.folder_imports[folder]), default=0)
            return floors[folder]

        return {folder: floor(folder) for folder in sorted(self.folder_imports)}

    def folders(self) -> list[Folder]:
        """Return a row for each folder."""
        members: dict[str, list[Module]] = {}
        for module in self.modules.values():
            members.setdefault(module.folder, []).append(module)
        return [_folder(name, modules) for name, modules in members.items()]

    def figures(self) -> dict[str, float]:
        """Return the figures of all packages together."""
        whole = _folder("", list(self.modules.values()))
        importers = Counter(imported for _, imported in self.imports)
        tests = sum(_lines(path) for path in (self.root / "tests").rglob("*.py"))
        return {
            "modules": whole.modules,
            "packages": len(self.modules) - whole.modules,
            "lines": whole.lines,
            "median lines of a module": whole.median,
            "lines of the longest": whole.longest,
            "imports between modules": len(self.imports),
            "imports per 1,000 lines": round(1000 * len(self.imports) / whole.lines, 1),
            "imports between folders": sum(map(len, self.folder_imports.values())),
            "modules with one importer": sum(importers[name] == 1 for name in self.modules),
            "circles of modules": len(self.circles),
            "circles of folders": len(self.folder_circles),
            "lines of tests": tests,
        }


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a module wherever they stand, without their expressions."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            if isinstance(inner := getattr(node, field, None), list):
                waiting += inner


def _strings(tree: ast.AST) -> set[str]:
    """Return the strings with dots in a module, without the public names that it gives to classes."""
    nodes = list(ast.walk(tree))
    shown = {node.value for node in nodes if isinstance(node, ast.Assign) and _sets_module(node)}
    strings = {str(node.value) for node in nodes if isinstance(node, ast.Constant) and node not in shown}
    return {text for text in strings if "." in text}


def _sets_module(node: ast.Assign) -> bool:
    """Return whether a statement gives a class the public name of its module, which imports nothing."""
    return any(isinstance(target, ast.Attribute) and target.attr == "__module__" for target in node.targets)


def _folder(name: str, modules: Sequence[Module]) -> Folder:
    lines = [module.lines for module in modules if not module.is_package]
    all_lines = sum(module.lines for module in modules)
    return Folder(name, len(lines), all_lines, statistics.median(lines or [0]), max(lines, default=0))


def _graph(names: Collection[str], pairs: Collection[tuple[str, str]]) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {name: set() for name in names}
    for importer, imported in pairs:
        if importer != imported:
            graph[importer].add(imported)
    return graph


def _circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    reached = {name: _reached(name, graph) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def _reached(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    """Return every name that can be reached from one, itself only if a circle leads back to it."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def show(layout: Layout) -> None:
    """Print the tables."""
    floors = {} if layout.folder_circles else layout.floors()
    print("| folder | floor | modules | lines | median | longest |\n|---|--:|--:|--:|--:|--:|")
    for row in layout.folders():
        floor = floors.get(row.name, "")
        print(f"| `{row.name}` | {floor} | {row.modules} | {row.lines:,} | {row.median:g} | {row.longest} |")
    print("\n| all | |\n|---|--:|")
    for name, value in layout.figures().items():
        print(f"| {name} | {value:,} |")


def main() -> None:
    """Measure a checkout and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE, help="the checkout to measure (default: this one)")
    parser.add_argument("--circles", action="store_true", help="also list the modules and folders of each circle")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    layout = Layout(options.root.resolve())
    show(layout)
    circles = layout.circles + layout.folder_circles
    if options.circles:
        for circle in circles:
            print(f"\n{' - '.join(circle)}")
    if options.json:
        folders = [asdict(folder) for folder in layout.folders()]
        result = {"figures": layout.figures(), "folders": folders, "circles": circles}
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
