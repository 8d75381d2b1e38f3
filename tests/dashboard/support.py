"""The browser, the pages in it, and what every test does with them."""

import shutil
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect
from playwright.sync_api import Error as PlaywrightError

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
QUIET = ("--engine", "scripted", "--log-level", "error")  # nobody reads the log, and a full pipe stops its writer
DESK = {"width": 1280, "height": 800}
SCREEN: dict[str, Any] = {"viewport": DESK}
PHONE = {"width": 390, "height": 800}
SERIOUS = {"serious", "critical"}
_EXPECTED = (
    "Failed to load resource",
    "net::ERR_",
)  # the browser's own notes of answers like 401, and of a lost server


def chromium() -> str:
    """Find the system's browser. The one that can have no window needs two thirds of the processor time."""
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("needs Chromium: scripts/test installs it on Debian")


class Tab:
    """One page for many tests, each of which finds it as if it were new.

    A new page is a new process of the browser, which loads and compiles all of the dashboard.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._context: BrowserContext | None = None

    def page(self) -> Page:
        """Return the page."""
        if self._context is None:
            self._context = self._browser.new_context(**SCREEN)
            self._context.new_page()
        return self._context.pages[0]

    def empty(self, url: str) -> None:
        """Leave the dashboard at an address, and forget what it has kept; a page that cannot is closed."""
        context, self._context = self._context, None
        if context is None or len(context.pages) != 1:
            return self._close(context)
        page = context.pages[0]
        try:
            page.unroute_all(behavior="ignoreErrors")
            page.goto(f"{url}/dashboard/icon.svg")
            page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
            context.clear_cookies()
            page.mouse.move(0, 0)
        except PlaywrightError:
            return self._close(context)
        self._context = context
        return None

    def _close(self, context: BrowserContext | None) -> None:
        if context is not None:
            context.close()


class Pages:
    """Opens pages, each in a context of its own, and listens to what goes wrong in them."""

    def __init__(self, browser: Browser, tab: Tab) -> None:
        self.errors: list[str] = []
        self._browser = browser
        self._tab = tab
        self._closing: list[Callable[[], object]] = []

    def open(self, url: str, view: str = "", **context: Any) -> Page:
        """Open the dashboard at a view, such as `conversation/main`."""
        made = self._browser.new_context(**SCREEN | context)
        self._closing.append(made.close)
        page = made.new_page()
        self._listen(page, url)
        return _shown(page, address(url, view))

    def reopen(self, url: str) -> Page:
        """Open the dashboard in the tab that tests share."""
        page = self._tab.page()
        listeners = self._listen(page, url)

        def leave() -> None:
            for name, listener in listeners.items():
                page.remove_listener(name, listener)
            self._tab.empty(url)

        self._closing.append(leave)
        return _shown(page, address(url, ""))

    def _listen(self, page: Page, url: str) -> dict[Any, Callable[[Any], None]]:
        host = urlsplit(url).netloc

        def requested(request: Request) -> None:
            if request.url.startswith("http") and urlsplit(request.url).netloc != host:
                self.errors.append(f"asked another host: {request.url}")

        def logged(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not any(each in message.text for each in _EXPECTED):
                self.errors.append(f"{message.type}: {message.text}")

        listeners: dict[Any, Callable[[Any], None]] = {
            "pageerror": lambda error: self.errors.append(f"error: {error}"),
            "console": logged,
            "request": requested,
        }
        for name, listener in listeners.items():
            page.on(name, listener)
        return listeners

    def close(self) -> None:
        """Close all of them."""
        for close in self._closing:
            close()


def _shown(page: Page, url: str) -> Page:
    page.goto(url)
    page.locator("cfs-app, cfs-login").wait_for()  # before that no key does anything
    return page


def address(url: str, view: str) -> str:
    """Write the address of a view."""
    return f"{url}/#{quote(view)}" if view else f"{url}/"


def row(page: Page, session: str) -> Locator:
    """The row of a session in the tree."""
    return page.locator(f'[role=treeitem][data-session="{session}"]')


def messages(page: Page) -> Locator:
    """The messages that are shown."""
    return page.locator(".talk li.message")


def send(page: Page, text: str) -> None:
    """Write a message and send it by the Enter key."""
    field = page.get_by_role("textbox", name="Message")
    expect(field).to_be_enabled()
    field.fill(text)
    field.press("Enter")


def violations(page: Page) -> list[str]:
    """Serious violations of the rules for accessible pages that axe finds on a page, each with the elements."""
    page.evaluate(AXE_SCRIPT)  # by the debugger's way, which the page's own policy does not reach
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html'][:200]}: {node.get('failureSummary', '')[:300]}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]
