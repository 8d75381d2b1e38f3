"""Write the table of modules in docs/architecture.md, and the picture of the floors, docs/images/floors.svg.

Each module has the first sentence of its docstring. `--check` only compares.
"""

import ast
import re
from pathlib import Path

from layout import Layout
from make_api_docs import fill, table, update

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/architecture.md"
PACKAGES = (
    "client/cfs",
    "filesystem/cfs_filesystem",
    "webdav/cfs_webdav",
    "server/cfs_server",
    "fuse_bridge/cfs_fuse",
    "agent_runtime/cfs_agents",
    *(path.parent.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("integrations/*/*/__init__.py"))),
)
PICTURE = ROOT / "docs/images/floors.svg"
DRAWN = ("agent_runtime/cfs_agents", "server/cfs_server", "client/cfs")
COLUMN, ROW, GAP, MARGIN = 380, 26, 6, 24
STYLE = (
    "<style>rect{fill:#e8eef7;stroke:#5b7bb0}text{font-size:11px;text-anchor:middle;fill:#1a2b45}"
    ".title{font-size:15px;font-weight:bold;fill:#5b7bb0}</style>"
)
NUMBERS = re.compile(r" \([A-Z]\d*(-[A-Z]\d+)?(, [A-Z]\d+(-[A-Z]\d+)?)*\)")


def sentence(path: Path) -> str:
    """Read what a module says of itself first, without requirement numbers."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return NUMBERS.sub("", text.partition("\n\n")[0]).replace("\n", " ")


def modules() -> str:
    """Write one table for all packages, folder by folder."""
    rows = []
    for package in PACKAGES:
        for folder in sorted({path.parent for path in (ROOT / package).rglob("*.py")}):
            rows.append((f"**`{folder.relative_to(ROOT).as_posix()}/`**", sentence(folder / "__init__.py")))
            modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
            rows += [(f"`{path.stem}`", sentence(path)) for path in modules]
    return table(("module", "what it is"), rows)


def render(page: str) -> str:
    """Return docs/architecture.md with its table renewed."""
    return fill(page, {"modules": modules()})


def picture(_: str = "") -> str:
    """Draw the floors of the packages that have several, one column for each package."""
    folders = {name: floor for name, floor in Layout(ROOT).floors().items() if name.startswith(DRAWN)}
    rows = sorted(set(folders.values()), reverse=True)
    boxes = []
    for index, package in enumerate(DRAWN):
        x = MARGIN + index * (COLUMN + MARGIN)
        boxes.append(f'<text class="title" x="{x + COLUMN / 2:g}" y="{MARGIN}">{Path(package).name}</text>')
        for row, floor in enumerate(rows):
            names = sorted(name for name in folders if _is_below(name, package) and folders[name] == floor)
            width = (COLUMN - GAP * (len(names) - 1)) / len(names) if names else 0
            for position, name in enumerate(names):
                left, top = x + position * (width + GAP), 2 * MARGIN + row * (ROW + GAP)
                label = name.removeprefix(package).lstrip("/") or Path(package).name
                boxes += [
                    f'<rect x="{left:g}" y="{top}" width="{width:g}" height="{ROW}" rx="4"/>',
                    f'<text x="{left + width / 2:g}" y="{top + ROW / 2 + 4:g}">{label}</text>',
                ]
    width, height = MARGIN + len(DRAWN) * (COLUMN + MARGIN), 2 * MARGIN + len(rows) * (ROW + GAP) + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    return "\n".join([head, STYLE, *boxes, "</svg>", ""])


def _is_below(name: str, package: str) -> bool:
    return name == package or name.startswith(package + "/")


if __name__ == "__main__":
    raise SystemExit(update(PAGE, render) or update(PICTURE, picture))
