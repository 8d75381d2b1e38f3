"""The browser, the pages in it, and what every test does with them."""

import shutil
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect

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
PHONE = {"width": 390, "height": 800}
SERIOUS = {"serious", "critical"}
_EXPECTED = (
    "Failed to load resource",
    "net::ERR_",
)  # the browser's own notes of answers like 401, and of a lost server


def chromium() -> str:
    """Find the system's browser."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs Chromium: scripts/test installs it on Debian")
    return found


class Pages:
    """Opens pages, each in a context of its own, and listens to what goes wrong in them."""

    def __init__(self, browser: Browser) -> None:
        self.errors: list[str] = []
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def open(self, url: str, view: str = "", **context: Any) -> Page:
        """Open the dashboard at a view, such as `conversation/main`."""
        made = self._browser.new_context(**{"viewport": DESK} | context)
        self._contexts.append(made)
        host = urlsplit(url).netloc

        def requested(request: Request) -> None:
            if request.url.startswith("http") and urlsplit(request.url).netloc != host:
                self.errors.append(f"asked another host: {request.url}")

        def logged(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not any(each in message.text for each in _EXPECTED):
                self.errors.append(f"{message.type}: {message.text}")

        page = made.new_page()
        page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        page.on("console", logged)
        page.on("request", requested)
        page.goto(address(url, view))
        page.locator("cfs-app, cfs-login").wait_for()  # before that no key does anything
        return page

    def close(self) -> None:
        """Close all of them."""
        for context in self._contexts:
            context.close()


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
