"""Write the generated plan of rooms in docs/architecture.md: each module with the first sentence of its docstring.

`scripts/docs` calls `render`; run by itself this file does the same (`--check` only compares).
"""

import ast
import re
from pathlib import Path

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
NUMBERS = re.compile(r" \([A-Z]\d*(-[A-Z]\d+)?(, [A-Z]\d+(-[A-Z]\d+)?)*\)")


def sentence(path: Path) -> str:
    """Read what a module says of itself first, without requirement numbers."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return NUMBERS.sub("", text.partition("\n\n")[0]).replace("\n", " ")


def rooms() -> str:
    """Write one table for all packages, folder by folder."""
    rows = []
    for package in PACKAGES:
        for folder in sorted({path.parent for path in (ROOT / package).rglob("*.py")}):
            rows.append((f"**`{folder.relative_to(ROOT).as_posix()}/`**", sentence(folder / "__init__.py")))
            modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
            rows += [(f"`{path.stem}`", sentence(path)) for path in modules]
    return table(("room", "what it is"), rows)


def render(page: str) -> str:
    """Return docs/architecture.md with its plan renewed."""
    return fill(page, {"rooms": rooms()})


if __name__ == "__main__":
    raise SystemExit(update(PAGE, render))
