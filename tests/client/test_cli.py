"""The program finds its commands through entry points, and says what is missing in one sentence (C10)."""

from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

from cfs.cli import program


def run(*arguments: str, found: list[EntryPoint]) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "400", "TERM": "dumb"}).invoke(program.build(found), arguments)
    return result.exit_code, result.output


MISSING = EntryPoint("fuse", "cfs_no_such_package.cli:app", program.GROUP)


def test_a_missing_extra_is_told_when_a_command_is_not_found() -> None:
    code, output = run("mount", "/x", found=[MISSING])
    assert code == 2
    assert "pip install 'cfs-local[fuse]'" in output


def test_without_a_missing_extra_an_unknown_command_is_just_that() -> None:
    code, output = run("mount", found=[])
    assert (code, "pip install" in output) == (2, False)


@pytest.mark.parametrize("found", [[], [MISSING]])
def test_the_version_needs_no_extra(found: list[EntryPoint]) -> None:
    code, output = run("--version", found=found)
    assert (code, output.startswith("cfs ")) == (0, True)
