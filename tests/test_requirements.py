"""The requirements of docs/spec.md: what cites one cites one that exists, and users are not bothered with numbers."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.host.scripted import ScriptedEngine
from make_requirements import CITATION, cited, cited_in_module, held_by, modules_with_tests, requirements

ROOT = Path(__file__).parent.parent
LISTED = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "*.py"]
MODULES = subprocess.run(LISTED, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_each_requirement_has_a_heading_and_a_title_of_its_own() -> None:
    """`spec.md#s14` leads to S14, and each area counts from 1 without a gap."""
    headings = re.findall(r"^### (\S+)$", (ROOT / "docs/spec.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = requirements()
    assert headings == list(found)
    assert len(set(found)) == len(headings)
    assert all(found.values())


def test_each_number_that_code_cites_is_a_requirement() -> None:
    """Comments and docstrings cite what a stranger can look up."""
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in MODULES if (ROOT / name).is_file()}
    cited_in_text = {(name, number) for name, text in texts.items() for number in cited(text)}
    assert len(cited_in_text) > 500
    known = requirements()
    suspects = {name for name, number in cited_in_text if number not in known}  # code can look like a citation, too
    assert {name: wrong for name in suspects if (wrong := cited_in_module(texts[name]) - known.keys())} == {}


def test_the_openapi_document_holds_no_number_of_a_requirement() -> None:
    """Descriptions are for users of the interface, who have no use for our numbers."""
    document = json.dumps(create_app(ServerSettings(), ScriptedEngine()).openapi())
    assert CITATION.findall(document) == []
    assert re.findall(r"\b[SHFWCGAOBDEP]\d{1,2}\b", document) == []


def test_every_requirement_is_tested() -> None:
    """The generated table names tests for each requirement, in `tests/` or with an integration."""
    tested = {number for path in modules_with_tests() for number in held_by(path)}
    assert requirements().keys() - tested == set()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("A rule (S14).", {"S14"}),
        ("Two (S3, C10) and more (H3; RFC 9110, 13).", {"S3", "C10", "H3"}),
        ("A range (S2-S4, S12).", {"S2", "S3", "S4", "S12"}),
        ('"""Delete a session."""  # S2, S14', {"S2", "S14"}),
        ("A workload W3, a call f(S3), a machine (x86-64), an example (such as A4 paper).", set[str]()),
    ],
)
def test_citations_are_told_from_other_words(text: str, numbers: set[str]) -> None:
    assert cited(text) == numbers


def test_each_term_has_one_line_in_the_glossary() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \|$", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) == len(set(rows)) >= 40
    assert {"session", "turn", "principal", "grant", "lease", "prefix cache", "sub-agent"} <= set(rows)


def test_a_module_is_about_what_its_docstring_cites(tmp_path: Path) -> None:
    """Its tests stand in the table together; what single tests cite stands there by name."""
    module = tmp_path / "test_x.py"
    module.write_text(
        '"""About (S1)."""\n'
        'def test_a():\n    """Also (S2)."""\n'
        'class TestB(Kit):\n    """By inheritance (S3)."""\n'
        'def helper():\n    """No test (S4)."""\n'
    )
    assert held_by(module) == {"S1": ["all tests"], "S2": ["test_a"], "S3": ["TestB"]}
