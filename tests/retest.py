"""Runs failed tests once more, alone: `--retest`, a plugin of pytest that `scripts/test` uses.

A test that fails beside others and passes alone is unsteady. It does not fail the run, but the run shows it with its
first failure, so that it is mended. Nothing is run again if a file could not be collected, a worker crashed, the run
was stopped, or more than `MOST` tests failed: then something is broken.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

MOST = 20
"""How many failed tests run again at most."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--retest`, and the option of the second run."""
    parser.addoption("--retest", action="store_true", help=f"run failed tests again, alone, if they are at most {MOST}")
    parser.addoption("--retest-outcomes", type=Path, help=argparse.SUPPRESS)


def pytest_configure(config: pytest.Config) -> None:
    """Take part in the process that reports, not in the workers of xdist."""
    if hasattr(config, "workerinput"):
        return
    if config.option.retest_outcomes:
        config.pluginmanager.register(_Outcomes(config.option.retest_outcomes))
    elif config.option.retest and not config.option.usepdb:
        config.pluginmanager.register(Retest(config))


class Retest:
    """Collects the failures of a run, and has their tests run again at its end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed: dict[str, list[pytest.TestReport]] = {}
        self._broken = False
        """Whether a file could not be collected, or a worker crashed."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notice what cannot be collected."""
        self._broken |= report.failed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """Notice a worker of xdist that crashed."""
        self._broken |= error is not None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a part of a test."""
        if report.failed:
            self._failed.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Run the failed ones again when all have run. A run that is stopped leaves by an exception."""
        result = yield
        if self._failed and not self._broken and len(self._failed) <= MOST:
            passed = self._again()
            for test in passed:
                self._mark_unsteady(session, test)
        return result

    def _again(self) -> set[str]:
        """Run the failed tests one after the other in a new process; return those that pass."""
        config, terminal = self._config, self._terminal()
        arguments = [each for each in config.invocation_params.args if each not in config.option.file_or_dir]
        alone = ["-n", "0"] if config.pluginmanager.hasplugin("xdist") else []
        tests = [f"{config.rootpath}/{test}" for test in self._failed]
        terminal.write_line("")
        terminal.section(f"failed tests: {len(tests)}; they run again, alone")
        terminal.flush()
        with tempfile.TemporaryDirectory() as folder:
            outcomes = Path(folder, "outcomes")
            command = [sys.executable, "-m", "pytest", *arguments, *alone, "--retest-outcomes", str(outcomes), *tests]
            subprocess.run(command, check=False)
            found: dict[str, str] = json.loads(outcomes.read_text()) if outcomes.exists() else {}
        return {test for test in self._failed if found.get(test) == "passed"}

    def _mark_unsteady(self, session: pytest.Session, test: str) -> None:
        """Let a test count as unsteady, as nothing else."""
        stats = self._terminal().stats
        session.testsfailed -= len(self._failed[test])
        for name in ("passed", "failed", "error"):
            left = [report for report in stats.pop(name, []) if report.nodeid != test]
            if left:
                stats[name] = left
        stats.setdefault("unsteady", []).append(self._failed[test][0])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the first failure of unsteady tests, and what they wrote; they are named again at the end."""
        unsteady: list[pytest.TestReport] = terminalreporter.stats.get("unsteady", [])
        for first in unsteady:
            terminalreporter.section(f"failed at first: {first.nodeid}", "_")
            for report in self._failed[first.nodeid]:
                report.toterminal(self._config.get_terminal_writer())
                for name, text in report.sections:
                    terminalreporter.section(name, "-")
                    terminalreporter.write_line(text.rstrip())
        if unsteady:
            terminalreporter.section("unsteady: failed beside other tests, passed alone")
        for first in unsteady:
            terminalreporter.write_line(f"UNSTEADY {first.nodeid}")

    def _terminal(self) -> pytest.TerminalReporter:
        found = self._config.pluginmanager.getplugin("terminalreporter")
        assert isinstance(found, pytest.TerminalReporter)
        return found


class _Outcomes:
    """Writes down the outcome of each test of the second run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a part of a test; a test that fails in one has failed."""
        if report.failed or (report.when == "call" and self._found.get(report.nodeid) != "failed"):
            self._found[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        self._path.write_text(json.dumps(self._found))
