"""What all tests share, those of the integrations, too: the tiers, the fixtures of `pytest_cfs`, and a model."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from tests.pacing.clock import Clock
from tests.pacing.gate import Gate
from tests.tiers import TIERS, PureGuard, Times, imports_client, order_of, tier_of
from tests.tls import share_certificates

os.environ["CFS_DATA_DIR"] = "temporary"  # servers that tests start keep nothing in this user's data folder
os.environ["CFS_CONNECTIONS"] = "none"  # and use none of this user's models
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each program that a test starts compiles all that it imports,
sys.dont_write_bytecode = False  # and each process of the run all tests
settings.register_profile("quick", deadline=None, max_examples=10)  # an example's time depends on what else runs
settings.register_profile("slow", deadline=None)
pytest_plugins = ["pytester", "pytest_cfs.plugin", "tests.retest"]
_TIER = pytest.StashKey[str]()
_GUARD = pytest.StashKey[PureGuard]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("slow" if config.getoption("--slow") else "quick")
    for ignored, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(ignored) is signal.SIG_IGN:  # a script started this run with `&`; programs inherit that,
            signal.signal(ignored, handler)  # and each shell of an agent would be a fork of this whole process
    _log_plain_tracebacks()
    config.stash[_GUARD] = PureGuard()
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    share_certificates(patch)
    # it keeps the variables that it finds: not before those above
    from tests.fork_server import PROBING, asyncio_programs

    forks = ExitStack()
    forks.enter_context(asyncio_programs())  # engines of this process start their workers by the fork server
    config.add_cleanup(forks.close)
    patch.setattr("cfs_server.engine.llama.probe.subprocess", PROBING)
    if not hasattr(config, "workerinput"):  # xdist's workers report to the process that started them
        config.pluginmanager.register(Times())


def _log_plain_tracebacks() -> None:
    """Leave `rich` out of this process's log: its way to draw a traceback takes longer than most tests."""
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], console])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules and tests out of the collections of garbage: to look through them once takes half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)  # in place of 700: to look for garbage takes a thirtieth of all tests' time
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, object]:
    """Let each process of a run begin with another part of a folder: what one has compiled, the others only read."""
    report = yield
    if isinstance(collector, pytest.Directory) and (worker := getattr(collector.config, "workerinput", None)):
        first = len(report.result) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no libraries of clients for the pure tier, which has no tests that need one."""
    return True if config.getoption("-m") == "not server" and imports_client(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier; the quick tiers come first, and in each the long files."""
    for item in items:
        tier = item.stash[_TIER] = tier_of(item)
        for marker in TIERS[1 : TIERS.index(tier) + 1]:
            item.add_marker(marker)
        item.user_properties.append(("tier", tier))
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: run with --slow"))
    items.sort(key=lambda item: order_of(item.nodeid, item.stash[_TIER]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep pure tests pure."""
    if item.stash[_TIER] == "pure":
        with item.config.stash[_GUARD].watching(item.nodeid):
            return (yield)
    return (yield)


@pytest.fixture
def gate(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate for all workers that the test starts, also those of servers; it is open."""
    gate = Gate(tmp_path_factory.mktemp("pace") / "gate")
    for name, value in gate.environment.items():
        monkeypatch.setenv(name, value)
    return gate


@pytest.fixture(scope="session")
def model_gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """The gate of `model_server`. Who closes it opens it again, as `closed` does."""
    return Gate(tmp_path_factory.mktemp("pace") / "gate")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of this process, which goes on as ever until the test sets it."""
    return Clock(monkeypatch)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A small model that others have trained: SmolLM2-135M-Instruct."""
    import tool_calls

    return Path(tool_calls.smollm2())
