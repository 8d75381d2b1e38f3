"""Many tabs of one browser share one stream of events, and no event is lost when the tab that reads it goes (D1)."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import httpx
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from tests.dashboard.agent import Agent
from tests.dashboard.support import address, row
from tests.server.support import Process

TABS = 8
"""More than the six connections that browsers allow to a server."""
HASTE = """
const real = setTimeout;
globalThis.setTimeout = (work, delay, ...rest) => real(work, delay >= 60_000 ? 2_000 : delay, ...rest);
"""
"""The minute after which a silent reader is given up takes two seconds."""


class Tabs:
    """Tabs of one browser that show the same session, and the streams that they read."""

    def __init__(self, context: BrowserContext, url: str, session: str) -> None:
        self.pages: list[Page] = []
        self.streams: list[tuple[Page, str | None]] = []
        """Who began to read the stream, and after which event."""
        self.context = context
        self._address = address(url, f"conversation/{session}")

    def open(self, count: int) -> None:
        """Open more tabs, each after the one before is up to date."""
        for _ in range(count):
            page = self.context.new_page()
            page.on("request", partial(self._asked, page))
            page.goto(self._address)
            expect(page.locator(".connection")).to_have_attribute("data-state", "live")
            self.pages.append(page)

    def _asked(self, page: Page, request: Request) -> None:
        if request.url.endswith("/v1/events"):
            self.streams.append((page, request.headers.get("last-event-id")))

    @property
    def leader(self) -> Page:
        """The tab that reads the stream."""
        return self.streams[-1][0]

    def remove_leader(self) -> Page:
        """Forget the tab that reads the stream, which the test is about to stop."""
        leader = self.leader
        self.pages.remove(leader)
        return leader

    def show(self, text: str) -> None:
        """All tabs show the reply as far as it has come."""
        for page in self.pages:
            expect(page.locator(".message.growing .text").last).to_have_text(text)


@contextmanager
def stopped(page: Page) -> Iterator[None]:
    """Run none of a page's code for a while."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Debugger.enable")
    devtools.send("Debugger.pause")
    yield
    devtools.send("Debugger.disable")


@contextmanager
def tabs(browser: Browser, url: str, session: str) -> Iterator[Tabs]:
    with browser.new_context() as context:
        yield Tabs(context, url, session)


def counted(end: int) -> str:
    return " ".join(map(str, range(end)))


def say(agent: Agent, begin: int, end: int) -> None:
    for number in range(begin, end):
        agent.say(f" {number}" if number else "0")


def test_eight_tabs_read_one_stream_and_go_on_when_its_reader_is_closed(
    browser: Browser, server: Process, client: httpx.Client
) -> None:
    with Agent(client, "tabs-close") as agent, tabs(browser, server.url, "tabs-close") as shown:
        agent.begin("Count")
        shown.open(TABS)
        say(agent, 0, 50)
        shown.show(counted(50))
        assert len(shown.streams) == 1
        leader = shown.remove_leader()
        say(agent, 50, 75)
        leader.close()
        say(agent, 75, 100)
        shown.show(counted(100))
        reader, cursor = shown.streams[-1]
        assert reader in shown.pages
        assert cursor is not None
        client.post("/v1/sessions", json={"id": "tabs-close/new"}).raise_for_status()
        for page in shown.pages:
            expect(row(page, "tabs-close/new")).to_be_visible()
        assert len(shown.streams) == 2
        agent.finish("done")
        for page in shown.pages:
            expect(row(page, "tabs-close")).to_have_attribute("data-state", "idle")


def test_a_crashed_reader_is_replaced(browser: Browser, server: Process, client: httpx.Client) -> None:
    with Agent(client, "tabs-crash") as agent, tabs(browser, server.url, "tabs-crash") as shown:
        agent.begin("Count")
        shown.open(3)
        say(agent, 0, 20)
        shown.show(counted(20))
        leader = shown.remove_leader()
        with leader.expect_event("crash"):
            leader.context.new_cdp_session(leader).send("Page.navigate", {"url": "chrome://crash"})
        say(agent, 20, 40)
        shown.show(counted(40))
        assert shown.leader in shown.pages


def test_a_frozen_reader_is_replaced_and_catches_up(browser: Browser, server: Process, client: httpx.Client) -> None:
    """Browsers freeze pages that nobody looks at. They tell the page before, and when it goes on."""
    with Agent(client, "tabs-freeze") as agent, tabs(browser, server.url, "tabs-freeze") as shown:
        agent.begin("Count")
        shown.open(3)
        say(agent, 0, 20)
        shown.show(counted(20))
        leader = shown.remove_leader()
        leader.evaluate("() => { document.dispatchEvent(new Event('freeze')) }")  # Chromium freezes no visible page
        with stopped(leader):
            say(agent, 20, 40)
            shown.show(counted(40))
            assert shown.leader in shown.pages
        leader.evaluate("() => { document.dispatchEvent(new Event('resume')) }")
        shown.pages.append(leader)
        say(agent, 40, 60)
        shown.show(counted(60))


def test_a_reader_that_hangs_is_replaced(browser: Browser, server: Process, client: httpx.Client) -> None:
    """It does not say that it stops: the others notice that it has been silent for too long."""
    with Agent(client, "tabs-hang") as agent, tabs(browser, server.url, "tabs-hang") as shown:
        agent.begin("Count")
        shown.context.add_init_script(HASTE)
        shown.open(3)
        say(agent, 0, 20)
        shown.show(counted(20))
        leader = shown.remove_leader()
        with stopped(leader):
            say(agent, 20, 40)
            shown.show(counted(40))
            assert shown.leader in shown.pages
        shown.pages.append(leader)
        say(agent, 40, 60)
        shown.show(counted(60))
