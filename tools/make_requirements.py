"""Write docs/requirements.md: each requirement of docs/spec.md, and the tests that cite its number.

`scripts/docs` calls `page`; run by itself this file does the same (`--check` only compares).
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from make_api_docs import table, update

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/requirements.md"
SPEC = ROOT / "docs/spec.md"
TESTS = ROOT / "tests"
HEAD = """# Requirements and their tests

<!-- Made by scripts/docs from the numbers that tests cite in their docstrings; change them there. -->

A module that cites a [requirement](spec.md) in its own docstring stands here with all its tests; otherwise the single
tests are named. A test of a test class is `Class.test`.

"""
NUMBER = r"[SHFWCGAOBDEP]\d{1,2}"
LIST = rf"{NUMBER}(?:-{NUMBER})?(?:, {NUMBER}(?:-{NUMBER})?)*"
CITATION = re.compile(rf"(?<!\w)\(({LIST})(?:[;,][^()]*)?\)")  # "(S3, S14)", "(S2-S8)", "(H3; RFC 9110, 13)"
COMMENT = re.compile(
    rf"# ({LIST})$", re.MULTILINE
)  # where a docstring is shown to users: """Delete a session."""  # S2
TESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def requirements() -> dict[str, str]:
    """Read the titles of all requirements from the specification, by number."""
    sections = re.findall(rf"^### ({NUMBER})\n\n\*\*(.+?)\*\*", SPEC.read_text(encoding="utf-8"), re.MULTILINE)
    return {number: title.rstrip(".") for number, title in sections}


def cited(text: str) -> set[str]:
    """Find the numbers that a docstring or a comment cites; a range counts with all that it spans."""
    found = set()
    for citation in (*CITATION.findall(text), *COMMENT.findall(text)):
        for first, last in re.findall(rf"({NUMBER})(?:-({NUMBER}))?", citation):
            found |= {f"{first[0]}{number}" for number in range(int(first[1:]), int((last or first)[1:]) + 1)}
    return found


def cited_in_module(source: str) -> set[str]:
    """Find the numbers in all comments and strings of a module."""
    if not re.search(rf"\({NUMBER}|# {NUMBER}", source):
        return set()  # most modules; to read their tokens takes long
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    kinds = (tokenize.COMMENT, tokenize.STRING)
    return set[str]().union(*(cited(token.string) for token in tokens if token.type in kinds))


def _tests(node: ast.Module | ast.ClassDef, of: str = "") -> Iterator[tuple[str, set[str]]]:
    """Walk the tests in a module or class, each with the numbers that it or its class cites."""
    for child in node.body:
        if not isinstance(child, TESTED):
            continue
        numbers = cited(ast.get_docstring(child) or "")
        if isinstance(child, ast.ClassDef):
            inside = [(name, numbers | own) for name, own in _tests(child, f"{child.name}.")]
            yield from inside or ([(child.name, numbers)] if child.name.startswith("Test") else [])  # it inherits them
        elif child.name.startswith("test_"):
            yield f"{of}{child.name}", numbers


def modules_with_tests() -> list[Path]:
    """List the modules of the tests, with those of the integrations."""
    return sorted([*TESTS.rglob("*.py"), *(ROOT / "integrations").glob("*/tests/*.py")])


def held_by(path: Path) -> dict[str, list[str]]:
    """Find what the tests of one module hold: by number, the names of the tests, or all of the module."""
    source = path.read_text(encoding="utf-8")
    if not cited(source):
        return {}  # to parse takes longer than to search
    module = ast.parse(source)
    tests = list(_tests(module))
    if not tests:
        return {}
    whole = cited(ast.get_docstring(module) or "")
    found = {number: ["all tests" if len(tests) > 1 else tests[0][0]] for number in whole}
    for name, numbers in tests:
        for number in numbers - whole:
            found.setdefault(number, []).append(name)
    return found


def page() -> str:
    """Write the whole page."""
    cells: dict[str, list[str]] = {number: [] for number in requirements()}
    for path in modules_with_tests():
        name = path.relative_to(TESTS if path.is_relative_to(TESTS) else ROOT)
        for number, tests in held_by(path).items():
            cells.setdefault(number, []).append(f"`{name}`: {', '.join(tests)}")
    titles = requirements()
    rows = [
        (f"[{number}](spec.md#{number.lower()})", titles.get(number, ""), "; ".join(found) or "**none**")
        for number, found in cells.items()
    ]
    return HEAD + table(("requirement", "title", "tests, in `tests/` or `integrations/`"), rows)


if __name__ == "__main__":
    raise SystemExit(update(PAGE, lambda _: page()))
