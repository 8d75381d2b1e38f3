"""One server and one real Chromium for all tests of the dashboard; both end with them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.dashboard.support import FLAGS, QUIET, Pages, Tab, chromium
from tests.server.support import Process, serving

SECONDS = 30


@pytest.fixture(scope="package")
def stage() -> Iterator[ThreadPoolExecutor]:
    """The one thread in which the browser is spoken to: its library has an event loop that never lets go of it."""
    with ThreadPoolExecutor(1, "stage") as executor:
        yield executor


def stage_of(test: pytest.Function) -> ThreadPoolExecutor:
    """The stage on which a test plays."""
    found = test.funcargs["stage"]
    assert isinstance(found, ThreadPoolExecutor)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the tests of this room where the browser is."""
    if "stage" not in pyfuncitem.fixturenames:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    test: Callable[..., None] = pyfuncitem.obj
    stage_of(pyfuncitem).submit(test, **arguments).result()
    return True


@pytest.fixture(scope="package")
def browser(stage: ThreadPoolExecutor) -> Iterator[Browser]:
    """Chromium, without a window."""

    program = chromium()

    def open_it() -> tuple[Any, Browser]:
        expect.set_options(timeout=SECONDS * 1000)
        library = sync_playwright().start()
        return library, library.chromium.launch(executable_path=program, args=FLAGS)

    library, found = stage.submit(open_it).result()
    yield found
    stage.submit(found.close).result()
    stage.submit(library.stop).result()


@pytest.fixture(scope="package")
def tab(browser: Browser) -> Tab:
    """The page that tests share; the browser closes it."""
    return Tab(browser)


@pytest.fixture
def pages(stage: ThreadPoolExecutor, browser: Browser, tab: Tab) -> Iterator[Pages]:
    """Opens pages; in the end none of them may have met an error, or have asked another host for anything."""
    made = Pages(browser, tab)
    yield made
    stage.submit(made.close).result()
    assert made.errors == []


@pytest.fixture
def page(stage: ThreadPoolExecutor, pages: Pages, server: Process) -> Page:
    """The dashboard of the common server, on a screen of a usual size, as if it were opened for the first time."""
    return stage.submit(lambda: pages.reopen(server.url)).result()


@pytest.fixture(scope="package")
def server() -> Iterator[Process]:
    """A server without a model: agents that tests play answer, or the echo."""
    with serving(*QUIET) as process:
        yield process


@pytest.fixture
def client(server: Process) -> Iterator[httpx.Client]:
    """The common server's API."""
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as found:
        yield found
