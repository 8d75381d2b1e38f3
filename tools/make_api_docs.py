"""Write the generated tables of docs/api.md: routes from the OpenAPI document, errors from the table in cfs.errors.

`scripts/docs` calls `render`; run by itself this file does the same for docs/api.md alone (`--check` only compares).
"""

import argparse
import errno
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cfs.errors import TABLE
from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.host.scripted import ScriptedEngine

PAGE = Path(__file__).parent.parent / "docs/api.md"
EVERYWHERE = {"400", "401", "403", "429", "500"}


def fill(page: str, tables: dict[str, str]) -> str:
    """Put each table between its two marks in a page; raises `ValueError` when the page has no such marks."""
    for name, text in tables.items():
        before, start, rest = page.partition(f"<!-- generated: {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        if not end:
            raise ValueError(f"the page has no marks for the table {name!r}")
        page = f"{before}{start}\n{text}\n{end}{after}"
    return page


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Write a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines)


def routes(document: dict[str, Any], tag: str) -> str:
    """Write the table of the routes that carry a tag."""
    rows = [
        (
            f"`{method.upper()} {path}{_query(operation)}`",
            operation["description"].partition("\n\n")[0].replace("\n", " "),
            ", ".join(media for media in operation.get("requestBody", {}).get("content", {})),
            " ".join(status for status in sorted(operation["responses"]) if status not in EVERYWHERE),
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if tag in operation["tags"]
    ]
    return table(("route", "meaning", "body", "answers"), rows)


def _query(operation: dict[str, Any]) -> str:
    names = [parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "query"]
    return f"?{'&'.join(f'{name}=' for name in names)}" if names else ""


def errors() -> str:
    """Write the table of errors: name, status, errno and meaning."""
    rows = [
        (
            f"`{row.slug}`",
            str(row.status),
            f"`{_errno_name(row.errno)}`",
            re.sub(r" \([A-Z]\d+\)", "", str(kind.__doc__).partition("\n")[0]),
        )
        for kind, row in TABLE.items()
    ]
    return table(("`type`: `urn:cfs:error:` and", "status", "errno", "meaning"), rows)


def _errno_name(number: int) -> str:
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode[number]  # Linux has two names for it


def render(page: str) -> str:
    """Return docs/api.md with its generated tables renewed."""
    document = create_app(ServerSettings(), ScriptedEngine()).openapi()
    tags = sorted({tag for methods in document["paths"].values() for way in methods.values() for tag in way["tags"]})
    return fill(page, {f"routes {tag}": routes(document, tag) for tag in tags} | {"errors": errors()})


def update(path: Path, render: Callable[[str], str]) -> int:
    """Renew a page, or with `--check` on the command line only compare it; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the page is out of date")
    check = parser.parse_args().check
    old = path.read_text(encoding="utf-8")
    new = render(old)
    if new == old:
        return 0
    if check:
        print(f"{path.parent.name}/{path.name} is out of date: run scripts/docs", file=sys.stderr)
        return 1
    path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(update(PAGE, render))
