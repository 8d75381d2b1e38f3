"""The documentation as a site: every page is of one kind, can be found, and loads nothing from elsewhere; versions."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from playwright.sync_api import Page, expect, sync_playwright

from tests.dashboard.support import FLAGS, chromium

ROOT = Path(__file__).parent.parent
VERSION = version("cfs-local")
KINDS = ["Tutorial", "How-to guides", "Reference", "Explanation", "Project"]
OLDER = "0.1.0"
Show = Callable[..., None]
"""Calls a function with a new page; other arguments are those of the page."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, in which an older version is already; a warning is an error (a page without a menu, a dead link)."""
    folder = tmp_path_factory.mktemp("site")
    (folder / OLDER).mkdir()
    (folder / OLDER / "index.html").write_text("<title>older</title>")
    done = subprocess.run([ROOT / "scripts/docs", "--site", folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def pages() -> set[str]:
    """The pages of the repository that belong into the site, as it names them."""
    found = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return found | {"changelog.md", "contributing.md"}


def address(page: str) -> str:
    """The file of a page in the site."""
    return re.sub(r"README\.md$", "index.md", page).removesuffix(".md") + ".html"


def flat(menu: Any) -> list[str]:
    """The pages below an entry of the menu."""
    if isinstance(menu, str):
        return [menu]
    return [page for entry in (menu.values() if isinstance(menu, dict) else menu) for page in flat(entry)]


def test_each_page_is_of_one_kind() -> None:
    """Beside the start page, each stands in one place of one of the four kinds, or with what contributors need."""
    start, *menus = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert start == {"Start": "README.md"}
    assert [name for menu in menus for name in menu] == KINDS
    assert sorted([*flat(start), *flat(menus)]) == sorted(pages())


def test_the_site_has_every_page_and_its_search_finds_it(site: Path) -> None:
    built = {path.relative_to(site / VERSION).as_posix() for path in (site / VERSION).rglob("*.html")}
    assert built == {address(page) for page in pages()} | {"404.html"}
    index = json.loads((site / VERSION / "search/search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] or "index.html" for entry in index["docs"] if entry["text"]}
    assert found == built - {"404.html"}


def test_the_site_holds_versions_side_by_side(site: Path) -> None:
    """A build leaves the others as they are, lists all, newest first, and leads to the newest; pages name theirs."""
    assert (site / OLDER / "index.html").read_text() == "<title>older</title>"
    rows = json.loads((site / "versions.json").read_text())
    assert [(row["version"], row["aliases"]) for row in rows] == [(VERSION, ["latest"]), (OLDER, [])]
    assert f'url={VERSION}/index.html"' in (site / "index.html").read_text()
    assert f"CFS {VERSION}" in (site / VERSION / "tutorial.html").read_text(encoding="utf-8")


class Foreign(HTMLParser):
    """Collects what a page loads from other hosts: scripts, styles, fonts, pictures; links may lead anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if tag != "a" and name in ("src", "href") and re.match(r"([a-z]+:)?//", value or ""):
                self.loads.append(f"<{tag} {name}={value}>")


def test_the_site_asks_no_other_host(site: Path) -> None:
    """No font, script or picture comes from elsewhere."""
    loads = []
    for path in site.rglob("*.html"):
        page = Foreign()
        page.feed(path.read_text(encoding="utf-8"))
        loads += page.loads
    assert loads == []


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and writes no log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def in_browser() -> Iterator[Show]:
    """Show the site in Chromium, in a thread of its own; a page may not ask another host."""
    program = chromium()

    def show(visit: Callable[[Page], None], context: dict[str, Any]) -> None:
        asked: list[str] = []
        page = browser.new_page(**context)
        page.on("request", lambda request: asked.append(request.url))
        visit(page)
        page.close()
        assert [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))] == []

    with ThreadPoolExecutor(1) as executor:
        library = executor.submit(lambda: sync_playwright().start()).result()
        executor.submit(expect.set_options, timeout=30_000).result()
        browser = executor.submit(lambda: library.chromium.launch(executable_path=program, args=FLAGS)).result()
        yield lambda visit, **context: executor.submit(show, visit, context).result()
        executor.submit(browser.close).result()
        executor.submit(library.stop).result()


def test_a_reader_searches_and_changes_the_version(served: str, in_browser: Show) -> None:
    """From the address of the site to a page that the search names, and to another version."""

    def visit(page: Page) -> None:
        page.goto(served)
        expect(page).to_have_title(re.compile("CFS"))
        assert page.url == f"{served}/{VERSION}/index.html"
        field = page.get_by_role("textbox", name="Search")
        field.click()
        field.press_sequentially("restore backup")  # the page looks into the field when a key is released
        found = page.locator(".md-search-result__link", has_text="Back up and restore").first
        expect(found).to_be_visible()
        found.click()
        expect(page).to_have_url(re.compile(r"how-to/backup\.html"))
        expect(page.locator(".md-version__current")).to_have_text(VERSION)
        page.locator(".md-version__current").focus()
        page.locator(".md-version__link", has_text=OLDER).click()
        expect(page).to_have_title("older")

    in_browser(visit)


@pytest.mark.parametrize("page_name", ["index", "tutorial", "how-to/nginx", "explanation/durability", "api"])
def test_a_phone_shows_whole_lines(served: str, in_browser: Show, page_name: str) -> None:
    """No page is wider than the screen; wide tables and code scroll by themselves."""

    def visit(page: Page) -> None:
        page.goto(f"{served}/{VERSION}/{page_name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

    in_browser(visit, viewport={"width": 390, "height": 800})
