"""Measure the shape of the source: modules, imports between them, circles of imports, and lines of each room.

    scripts/bench house [--root DIR] [--circles] [--json FILE]

Nothing is imported or run, so `--root` may name any checkout. A room is a folder of a package. An arrow is a pair of
modules of which one imports the other, anywhere in its text: in a function and under `TYPE_CHECKING`, too. A circle is
a group of modules that all reach each other along the arrows. An `__init__.py` has its arrows and lines, but is counted
as a package and not as a module.
"""

import argparse
import ast
import json
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Module:
    """One file. `lines` counts all of them, blank ones too."""

    name: str
    path: Path
    room: str
    lines: int

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__.py` of a folder."""
        return self.path.name == "__init__.py"


@dataclass(frozen=True, slots=True)
class Room:
    """The modules of one folder. `lines` has those of its `__init__.py` in it; the median and the longest do not."""

    name: str
    modules: int
    lines: int
    median: float
    longest: int


def packages(root: Path) -> list[Path]:
    """Return the folders of the packages that the wheel of a checkout holds."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return [root / name for name in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


class House:
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
    def arrows(self) -> set[tuple[str, str]]:
        """Pairs of an importing and an imported module, each once."""
        return {(module.name, other) for module in self.modules.values() for other in self._imported(module)}

    def _imported(self, module: Module) -> set[str]:
        above = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
        found = set()
        for node in ast.walk(ast.parse(module.path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                start = above[: len(above) - node.level + 1] if node.level else []
                base = ".".join([*start, *([node.module] if node.module else [])])
                found |= {name if (name := f"{base}.{alias.name}") in self.modules else base for alias in node.names}
        return (found & self.modules.keys()) - {module.name}

    @cached_property
    def circles(self) -> list[list[str]]:
        """Groups of modules that reach each other by imports."""
        ahead: dict[str, set[str]] = {name: set() for name in self.modules}
        for importer, imported in self.arrows:
            ahead[importer].add(imported)
        reach = {name: _reached(name, ahead) for name in ahead}
        groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in ahead}
        return sorted(sorted(group) for group in groups if group)

    def rooms(self) -> list[Room]:
        """Return a row for each folder."""
        found: dict[str, list[Module]] = {}
        for module in self.modules.values():
            found.setdefault(module.room, []).append(module)
        return [_room(name, modules) for name, modules in found.items()]

    def figures(self) -> dict[str, float]:
        """Return what is measured of the whole."""
        whole = _room("", list(self.modules.values()))
        importers = Counter(imported for _, imported in self.arrows)
        tests = sum(_lines(path) for path in (self.root / "tests").rglob("*.py"))
        return {
            "modules": whole.modules,
            "packages": len(self.modules) - whole.modules,
            "lines": whole.lines,
            "median lines of a module": whole.median,
            "lines of the longest": whole.longest,
            "import arrows": len(self.arrows),
            "import arrows per 1,000 lines": round(1000 * len(self.arrows) / whole.lines, 1),
            "modules with one importer": sum(importers[each.name] == 1 for each in self.modules.values()),
            "circles": len(self.circles),
            "lines of tests": tests,
        }


def _room(name: str, modules: Sequence[Module]) -> Room:
    lines = [module.lines for module in modules if not module.is_package]
    every = sum(module.lines for module in modules)
    return Room(name, len(lines), every, statistics.median(lines or [0]), max(lines, default=0))


def _reached(start: str, ahead: Mapping[str, set[str]]) -> set[str]:
    """Return every module that can be reached from one, itself only if a circle leads back to it."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = ahead[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def show(house: House) -> None:
    """Print the tables."""
    print("| room | modules | lines | median | longest |\n|---|--:|--:|--:|--:|")
    for room in house.rooms():
        print(f"| `{room.name}` | {room.modules} | {room.lines:,} | {room.median:g} | {room.longest} |")
    print("\n| all | |\n|---|--:|")
    for name, value in house.figures().items():
        print(f"| {name} | {value:,} |")


def main() -> None:
    """Measure a checkout and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE, help="the checkout to measure (default: this one)")
    parser.add_argument("--circles", action="store_true", help="also list the modules of each circle")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    house = House(options.root.resolve())
    show(house)
    if options.circles:
        for circle in house.circles:
            print(f"\n{' - '.join(circle)}")
    if options.json:
        rooms = [asdict(room) for room in house.rooms()]
        found = {"figures": house.figures(), "rooms": rooms, "circles": house.circles}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
