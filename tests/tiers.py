"""The three tiers of the tests, and the guard that keeps the first one pure.

A test's tier follows from the code that it reaches: its own, that of its fixtures, and that of the helpers in `tests/`
and `integrations/` which these mention. Code that mentions a name of `EXTERNAL` starts other programs; code that
mentions one of `SERVER` opens sockets or starts the engine's worker. A test that reaches neither is pure, unless it is
marked by hand. A pure test that opens a socket or starts a process fails.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

TIERS = ("pure", "server", "external")
"""In the order in which they run; the first has no marker, and the last one's tests are marked `server`, too."""

SERVER = frozenset(
    {
        "LlamaEngine",
        "Renderer",
        "ThreadingHTTPServer",
        "Upstream",
        "create_app",
        "free_port",
        "listen",
        "serve",
        "socket",
        "uvicorn",
    }
)
EXTERNAL = frozenset(
    {
        "CommandMode",
        "Lives",
        "Program",
        "ShellSettings",
        "agent_shell",
        "create_subprocess_exec",
        "forkpty",
        "runpytest_subprocess",
        "subprocess",
        "sync_playwright",
    }
)
CLIENTS = (
    "IPython",
    "acp",
    "anthropic",
    "cfs_llm",
    "dask",
    "langchain_anthropic",
    "langchain_core",
    "langchain_openai",
    "langgraph",
    "litellm",
    "llm",
    "mcp",
    "ollama",
    "openai",
    "pydantic_ai",
    "tests.server.openai_client",
)
"""Libraries that speak with servers. A file that imports one is not pure; to import them all takes many seconds."""
_CLIENT_IMPORT = re.compile(rf"^(?:from|import) (?:{'|'.join(map(re.escape, CLIENTS))})\b", re.MULTILINE)
LONG = (
    "tests/cluster/test_file_versions.py",
    "tests/server/test_crash.py",
    "tests/agents/tools/test_shell_endings.py",
    "tests/server/test_rewound_files.py",
    "tests/test_guides.py",
    "tests/engine/test_supervisor.py",
    "tests/cluster/test_access.py",
    "tests/server/test_forked_files.py",
    "tests/dashboard/test_versions.py",
    "tests/cluster/test_failures.py",
    "tests/engine/test_downloads.py",
    "tests/connect/test_reload.py",
    "tests/connect/test_newcomer.py",
    "tests/server/test_merged_files.py",
    "tests/agents/fibre/test_killed.py",
    "tests/deploy/test_replicas.py",
    "tests/test_bench.py",
    "tests/dashboard/test_access.py",
    "tests/agents/test_outages.py",
    "tests/agents/fibre/test_killed_merge.py",
    "tests/dashboard/test_tabs.py",
    "tests/agents/tools/test_shell.py",
    "tests/server/test_postgres_versions.py",
    "tests/cluster/test_faults.py",
    "tests/dashboard/test_connection.py",
    "tests/server/test_memory.py",
    "tests/agents/tools/test_escapes.py",
    "tests/test_readme.py",
    "tests/test_layout.py",
    "tests/dashboard/test_workspace.py",
    "tests/server/test_workspaces.py",
    "tests/cluster/test_upgrade.py",
    "tests/client/test_typing.py",
    "tests/server/test_blamed_lines.py",
    "tests/dashboard/test_markup.py",
    "tests/upstream/test_strict.py",
    "tests/deploy/test_haproxy.py",
    "tests/dashboard/test_sharing.py",
    "tests/sessions/journal/test_postgres_failures.py",
    "tests/webdav/test_davfs2.py",
    "tests/model/test_agent_dialogues.py",
    "tests/test_coding_agents.py",
    "tests/server/test_conversation.py",
    "tests/dashboard/test_embedded_tree.py",
    "tests/server/test_power_loss.py",
    "tests/engine/test_speculation.py",
    "tests/server/test_backup.py",
    "tests/server/test_object_workspaces.py",
    "tests/agents/fibre/test_ends.py",
    "tests/conversations/test_programs.py",
    "tests/cluster/test_agents.py",
    "tests/webdav/test_litmus.py",
    "tests/engine/test_overflow.py",
    "tests/test_picture.py",
    "tests/dashboard/test_connections.py",
    "tests/test_code_blocks.py",
    "tests/engine/test_json_schema.py",
    "tests/agents/file_agent/test_killed.py",
    "tests/server/test_versions.py",
    "tests/test_scripts.py",
    "tests/client/test_cli_chat.py",
    "tests/client/test_cli_doctor.py",
    "integrations/acp/tests/test_acp.py",
    "tests/filesystem/test_objects.py",
    "tests/server/test_start.py",
    "tests/agents/test_damaged_files.py",
    "tests/dashboard/test_tree.py",
    "tests/dashboard/test_writing.py",
    "tests/client/test_cli_archive.py",
    "tests/engine/test_storm.py",
    "tests/server/test_hostile.py",
    "tests/server/test_isolation.py",
    "integrations/mcp/tests/test_mcp_access.py",
    "tests/test_wheel.py",
    "integrations/mcp/tests/test_mcp_server.py",
)
"""The files whose tests take longest, about in this order. The tests of a file share a process: one that began last
would run on alone.
"""
_GUARDED = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
        "socket.bind",
        "socket.connect",
        "subprocess.Popen",
    }
)
"""What a pure test may not do, as Python's audit events name it."""


def order_of(nodeid: str, tier: str) -> tuple[int, int, str]:
    """Return a test's place: by its tier, and in that the long files first. The tests of a file keep their order."""
    file = nodeid.partition("::")[0]
    return TIERS.index(tier), LONG.index(file) if file in LONG else len(LONG), file


@cache
def imports_client(path: Path) -> bool:
    """Return whether a file, or the `conftest.py` of a folder, imports one of `CLIENTS` at its top."""
    file = path / "conftest.py" if path.is_dir() else path
    return file.suffix == ".py" and file.exists() and bool(_CLIENT_IMPORT.search(file.read_text(encoding="utf-8")))


def tier_of(test: pytest.Item) -> str:
    """Return the tier of a test."""
    marked = [level for level, name in enumerate(TIERS) if test.get_closest_marker(name)]
    marked += [TIERS.index("server")] * (imports_client(test.path) or imports_client(test.path.parent))
    return TIERS[max([*marked, *map(_level, _starts(test))], default=0)]


def _starts(test: pytest.Item) -> Iterator[object]:
    """Yield what a test is made of: its function, its class, its parameters and its fixtures."""
    if (cls := getattr(test, "cls", None)) is not None:
        yield cls
    yield getattr(test, "obj", None)
    yield from getattr(getattr(test, "callspec", None), "params", {}).values()
    definitions = getattr(getattr(test, "_fixtureinfo", None), "name2fixturedefs", {})
    yield from (found[-1].func for found in definitions.values())


def _level(start: object) -> int:
    function = getattr(start, "__func__", start)
    return _level_of(function) if isinstance(function, FunctionType | type) else 0


@cache
def _level_of(start: object) -> int:
    """Go through all that `start` reaches; return the highest place in `TIERS` that is found."""
    seen, ahead, level = {start}, [start], 0
    while ahead and level < len(TIERS) - 1:
        own, mentioned = _read(ahead.pop())
        level = max(level, own)
        ahead += mentioned - seen
        seen |= mentioned
    return level


@cache
def _read(found: object) -> tuple[int, frozenset[object]]:
    """Return the place in `TIERS` of the names in a function or class, and what of ours they stand for."""
    level, mentioned = 0, set()
    for function in _functions(found):
        names = set(_names(function.__code__))
        level = max(level, 2 if names & EXTERNAL else 1 if names & SERVER else 0)
        mentioned |= {
            each for each in _mentioned(function, names) if isinstance(each, FunctionType | type) and _is_ours(each)
        }
    return level, frozenset(mentioned)


def _is_ours(found: Any) -> bool:
    return str(found.__module__).startswith(("tests.", "integrations.", "pytest_cfs."))


def _functions(found: object) -> Iterator[FunctionType]:
    """Yield a function without its wrappers, or those of a class and of its bases."""
    if isinstance(found, type):
        members = [member for base in found.__mro__ if _is_ours(base) for member in vars(base).values()]
    else:
        members = [found]
    for member in members:
        bare = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if isinstance(bare, FunctionType):
            yield bare
            inner = getattr(getattr(bare, "hypothesis", None), "inner_test", None) or inspect.unwrap(bare)
            if inner is not bare:
                yield inner


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _mentioned(function: FunctionType, names: Iterable[str]) -> Iterator[object]:
    """Yield what names of a function stand for: globals, what is in tables and modules of ours, and its closure."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    for found in [*(function.__globals__.get(name) for name in names), *cells]:
        if isinstance(found, ModuleType):
            yield from (vars(found).get(name) for name in names)
        elif isinstance(found, dict):
            yield from found.values()
        elif isinstance(found, list | tuple):
            yield from found
        else:
            yield found


class PureGuard:
    """Watches what this process does while a pure test runs."""

    def __init__(self) -> None:
        self._test = ""
        sys.addaudithook(self._heard)

    @contextmanager
    def watching(self, test: str) -> Iterator[None]:
        """Let nothing of `_GUARDED` happen meanwhile."""
        self._test = test
        try:
            yield
        finally:
            self._test = ""

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._test and event in _GUARDED:
            pytest.fail(f"{self._test} is pure and may not do this: {event} {arguments[:2]} (see tests/tiers.py)")


class Times:
    """Counts the tests of each tier, and measures how long it took from its first to its last."""

    def __init__(self) -> None:
        self._tests = dict.fromkeys(TIERS, 0)
        self._spans: dict[str, tuple[float, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a part of a test."""
        tier = dict(report.user_properties).get("tier")
        if not isinstance(tier, str):
            return  # the process crashed: xdist reports the test without what was known of it
        first, last = self._spans.get(tier, (report.start, report.stop))
        self._spans[tier] = min(first, report.start), max(last, report.stop)
        self._tests[tier] += report.when == "setup"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write a line for each tier."""
        if self._spans:
            terminalreporter.section("tiers")
        for tier in filter(self._spans.get, TIERS):
            first, last = self._spans[tier]
            terminalreporter.write_line(f"{tier}: {self._tests[tier]} tests in {last - first:.1f} s")
