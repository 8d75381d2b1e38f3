"""Write the table of clients and features in docs/protocols.md from the marks of tests (`--check` only compares).

A test says which client proves which features: `@pytest.mark.feature("openai", "chat completions", "chat", "usage")`.
The first word is the client's package, whose version is read from constraints.txt; the second names the interface.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from make_api_docs import fill, table, update

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/protocols.md"
FOLDERS = ("tests", "integrations")
FEATURES = ("chat", "stream", "tools", "forced tool", "schema", "stop", "usage", "error", "cancel", "resume")
PROGRAMS = ("curl",)
"""Clients that are no Python packages; the table names no version of theirs."""


class Mark(NamedTuple):
    """What one mark of a test says, and the file of the test."""

    client: str
    interface: str
    features: tuple[str, ...]
    path: str


def marks_of(path: str, source: str) -> Iterator[Mark]:
    """Yield the marks of a file of tests. Raises `ValueError` for features that the table does not have."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.feature"):
            continue
        words = [ast.literal_eval(argument) for argument in node.args]
        unknown = sorted(set(words[2:]) - set(FEATURES))
        if len(words) < 3 or unknown or node.keywords:
            raise ValueError(f"{path}:{node.lineno}: a mark is (client, interface, feature, ...); unknown: {unknown}")
        yield Mark(words[0], words[1], tuple(words[2:]), path)


def all_marks() -> list[Mark]:
    """Return the marks of all tests, by file."""
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("test_*.py"))
    texts = [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in files]
    return [mark for name, text in texts if "pytest.mark.feature" in text for mark in marks_of(name, text)]


def version_of(client: str, constraints: str) -> str:
    """Return the pinned version of a package. Raises `ValueError` if it is not pinned."""
    if client in PROGRAMS:
        return ""
    found = re.search(rf"^{re.escape(client)}==(\S+)", constraints, re.MULTILINE)
    if found is None:
        raise ValueError(f"constraints.txt has no version of {client!r}")
    return found[1]


def features(marks: list[Mark], constraints: str) -> str:
    """Write the table: a row for each client and interface, and in each cell the tests."""
    rows = []
    for client, interface in sorted({(mark.client, mark.interface) for mark in marks}):
        own = [mark for mark in marks if (mark.client, mark.interface) == (client, interface)]
        cells = [_cell([mark.path for mark in own if feature in mark.features]) for feature in FEATURES]
        rows.append((f"`{client}`", version_of(client, constraints), interface, *cells))
    return table(("client", "version", "interface", *FEATURES), rows)


def _cell(paths: list[str]) -> str:
    return f"[yes](../{paths[0]})" if paths else ""


def render(page: str) -> str:
    """Return docs/protocols.md with its table renewed."""
    return fill(page, {"features": features(all_marks(), (ROOT / "constraints.txt").read_text(encoding="utf-8"))})


if __name__ == "__main__":
    raise SystemExit(update(PAGE, render))
