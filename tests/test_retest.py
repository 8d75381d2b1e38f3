"""A test that fails beside others and passes alone is shown, and does not fail the run; all else does."""

from pathlib import Path

import pytest

from tests.retest import MOST

ROOT = Path(__file__).parents[1]
ONCE = """
import os
from pathlib import Path

import pytest

def broken(name):
    path = Path(__file__).with_name(name)
    if path.exists():
        return False
    path.touch()
    return True
"""
UNSTEADY = "def test_unsteady():\n    assert not broken('seen'), 'the first failure'\n"
PASSES = "def test_passes(): pass\n"


class Project:
    """A small project whose tests run as those of `scripts/test` do."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester

    def run(self, *arguments: str, processes: int = 1, **files: str) -> pytest.RunResult:
        """Write files of tests, and run them."""
        self._pytester.makepyfile(**{name: ONCE + text for name, text in files.items()})
        flags = ("-p", "xdist", "-p", "tests.retest", "--retest", "-ra", "-n", str(processes), "--dist", "loadfile")
        return self._pytester.runpytest_subprocess(*flags, *arguments)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project without files, and without plugins that take a second to import."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Project(pytester)


@pytest.mark.parametrize("processes", [0, 2])
def test_what_passes_alone_is_shown_as_unsteady(project: Project, processes: int) -> None:
    done = project.run(processes=processes, test_one=UNSTEADY, test_two=PASSES)
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(
        [
            "*= failed tests: 1; they run again, alone =*",
            "*1 passed in*",
            "*_ failed at first: test_one.py::test_unsteady _*",
            "*AssertionError: the first failure*",
            "*= unsteady: failed beside other tests, passed alone =*",
            "UNSTEADY test_one.py::test_unsteady",
        ]
    )
    assert "1 passed, 1 unsteady in" in done.stdout.lines[-1]
    done.stdout.no_fnmatch_line("FAILED *")


def test_what_fails_again_fails_the_run(project: Project) -> None:
    """What is unsteady is shown, too."""
    done = project.run(test_one=UNSTEADY, test_two="def test_wrong(): assert 1 == 2\n")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*= failed tests: 2; they run again, alone =*", "UNSTEADY *test_unsteady"])
    done.stdout.fnmatch_lines(["FAILED test_two.py::test_wrong - *"])
    assert "1 failed, 1 unsteady in" in done.stdout.lines[-1]


def test_errors_of_fixtures_are_failures_like_others(project: Project) -> None:
    """Before a test and after it; a test that passed before the error counts once."""
    before = "@pytest.fixture\ndef it():\n    assert not broken('seen')\n"
    after = "@pytest.fixture\ndef it():\n    yield\n    assert not broken('seen2')\n"
    wrong = "@pytest.fixture\ndef it():\n    yield\n    assert 1 == 2\n"
    test = "def test_it(it): pass\n"
    done = project.run(test_before=before + test, test_after=after + test, test_wrong=wrong + test)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert "1 passed, 1 error, 2 unsteady in" in done.stdout.lines[-1]


def test_arguments_are_kept_but_for_the_paths(project: Project) -> None:
    """Only what failed runs again: with `-k` and other options, and with a strange id."""
    odd = "@pytest.mark.parametrize('x', ['a/../b::c [d]'])\n"
    odd += "def test_odd(x):\n    assert not broken('seen')\n"
    done = project.run(
        "-k", "odd or passes", "-W", "error", "test_one.py", "test_two.py", test_one=odd, test_two=PASSES
    )
    assert done.ret == pytest.ExitCode.OK
    assert "1 passed, 1 unsteady in" in done.stdout.lines[-1]
    done.stdout.fnmatch_lines(["*they run again*", "*1 passed in*", "*failed at first*"])


def test_what_is_skipped_the_second_time_has_not_passed(project: Project) -> None:
    skips = "def test_it():\n    assert not broken('seen')\n    pytest.skip('later')\n"
    done = project.run(test_one=skips)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert "1 failed in" in done.stdout.lines[-1]


def test_a_second_run_that_dies_repairs_nothing(project: Project) -> None:
    dies = "def test_it():\n    assert not broken('seen')\n    os._exit(0)\n"
    done = project.run(test_one=UNSTEADY.replace("seen", "other"), test_two=dies)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert "2 failed in" in done.stdout.lines[-1]


@pytest.mark.parametrize("count", [MOST, MOST + 1])
def test_many_failures_are_no_bad_luck(project: Project, count: int) -> None:
    many = f"@pytest.mark.parametrize('n', range({count}))\n"
    many += "def test_it(n):\n    assert not broken(f'seen{n}')\n"
    done = project.run(test_one=many)
    again = count == MOST
    assert done.ret == (pytest.ExitCode.OK if again else pytest.ExitCode.TESTS_FAILED)
    assert f"{count} {'unsteady' if again else 'failed'} in" in done.stdout.lines[-1]


@pytest.mark.parametrize("flags", [(), ("--continue-on-collection-errors",)])
def test_what_cannot_be_collected_is_not_repaired(project: Project, flags: tuple[str, ...]) -> None:
    done = project.run(*flags, test_one=UNSTEADY, test_two="import nothing_of_that_name\n")
    assert done.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
    done.stdout.no_fnmatch_line("*run again*")


@pytest.mark.parametrize("processes", [0, 2])
def test_a_run_that_is_stopped_is_not_repaired(project: Project, processes: int) -> None:
    done = project.run("-x", processes=processes, test_one=UNSTEADY, test_two=PASSES)
    assert done.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
    done.stdout.no_fnmatch_line("*run again*")


def test_a_worker_that_crashes_is_not_repaired(project: Project) -> None:
    crash = "def test_it():\n    if broken('seen'):\n        os._exit(3)\n"
    done = project.run(processes=2, test_one=UNSTEADY.replace("seen", "other"), test_two=crash)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert "2 failed" in done.stdout.lines[-1]
    done.stdout.no_fnmatch_line("*run again*")


@pytest.mark.parametrize("script", ["scripts/test", "scripts/lib/covered"])
def test_both_scripts_run_failed_tests_again(script: str) -> None:
    assert ' --retest "$' in (ROOT / script).read_text(encoding="utf-8")
