"""Make the pictures of the dashboard in `docs/images`, with a real server, a scripted model, and a real browser.

    tools/make_screenshots.py [--into DIR] [NAME ...]

A tree of agents works on a small shop: it writes files, corrects them, runs commands, fails and asks. Every picture is
taken of what the server then holds. On Debian and Ubuntu, root gets Chromium and the fonts that are missing.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from screenshot_sessions import ROOT, TREE, furnish, running

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--hide-scrollbars"]
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
PATIENCE = 120_000
"""Milliseconds to wait for anything: the machine may be busy."""

Picture = Callable[[Page, str], None]


def at(view: str, ready: str) -> Picture:
    """A picture of a view, taken once some element is there."""

    def take(page: Page, url: str) -> None:
        page.goto(f"{url}/#{quote(view)}" if view else f"{url}/", wait_until="commit")
        page.locator(ready).first.wait_for()

    return take


def diff(page: Page, url: str) -> None:
    """The changes of one file, beside each other."""
    at(f"files/{TREE}", ".choose")(page, url)
    page.get_by_role("treeitem", name="cart.py").first.click()
    page.get_by_role("button", name="Changes").click()
    page.locator(".diff .added").first.wait_for()


def files(page: Page, url: str) -> None:
    """The contents of a file."""
    at(f"files/{TREE}", ".choose")(page, url)
    page.get_by_role("treeitem", name="cart.py").first.click()
    page.locator(".numbered").wait_for()


def timeline(page: Page, url: str) -> None:
    """The timeline with what is said of one call."""
    at(f"timeline/{TREE}", ".track .turn")(page, url)
    page.locator(".lane", has_text="till").locator(".tick").last.hover()
    page.locator(".tip").wait_for()


def share(page: Page, url: str) -> None:
    """The dialog that makes a link to a session."""
    at("conversation/lighthouse", ".message")(page, url)
    page.get_by_role("button", name="Share").click()
    page.get_by_role("dialog").wait_for()


def search(page: Page, url: str) -> None:
    """What is found in messages."""
    at("conversation/lighthouse", ".message")(page, url)
    page.get_by_role("searchbox").first.fill("queue")
    page.locator(".found a").first.wait_for()


def unfolded(page: Page, url: str) -> None:
    """The tree at the side, with all agents."""
    at(f"agents/{TREE}", ".column")(page, url)
    page.locator(f'[role=treeitem][data-session="{TREE}"]').click()
    page.keyboard.press("ArrowRight")
    at(f"agents/{TREE}", ".column")(page, url)


PICTURES: dict[str, tuple[Picture, dict[str, Any]]] = {
    "timeline": (timeline, {}),
    "empty": (at("", "textarea, .nothing"), {}),
    "chat": (at("conversation/lighthouse", ".message"), {}),
    "markdown": (at("conversation/asyncio", ".message"), {}),
    "tree": (unfolded, {}),
    "files": (files, {}),
    "diff": (diff, {"viewport": {"width": 1440, "height": 800}}),
    "search": (search, {}),
    "question": (at("conversation/deploy", ".question"), {}),
    "settings": (at(f"settings/{TREE}", ".settings"), {}),
    "share": (share, {}),
    "branches": (at("conversation/lighthouse-2", ".message"), {}),
    "phone": (at(f"agents/{TREE}", ".column"), {"viewport": PHONE, "has_touch": True, "is_mobile": True}),
    "phone-chat": (at("conversation/asyncio", ".message"), {"viewport": PHONE, "has_touch": True, "is_mobile": True}),
    "dark": (at(f"conversation/{TREE}", ".message"), {"color_scheme": "dark"}),
    "chinese": (at("conversation/灯塔", ".message"), {"locale": "zh-CN"}),
}
"""The pictures by name: what leads to each, and what its browser is like."""


def shoot(browser: Browser, url: str, name: str, into: Path) -> None:
    """Take one picture."""
    take, like = PICTURES[name]
    context = browser.new_context(**{"viewport": DESK, "locale": "en-GB", "reduced_motion": "reduce"} | like)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    take(page, url)
    page.wait_for_timeout(1200)  # markup and fonts
    file = into / f"dashboard-{name}.png"
    page.screenshot(path=file)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
    context.close()


def main() -> int:
    """Make the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(PICTURES)}")
    parser.add_argument("--into", type=Path, default=ROOT / "docs/images")
    parser.add_argument("--hold", action="store_true", help="only serve the sessions, until Enter is pressed")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in PICTURES]:
        parser.error(f"there is no picture {unknown[0]!r}; there are: {', '.join(PICTURES)}")
    fonts = {
        "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc": "fonts-noto-cjk",
        "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf": "fonts-noto-color-emoji",
    }
    packages = [f"{file}:{package}" for file, package in {"chromium": "chromium", **fonts}.items()]
    subprocess.run([ROOT / "scripts/lib/system-packages", *packages], check=True)
    with running() as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        furnish(client)
        if options.hold:
            input(f"{url}\n")
            return 0
        with sync_playwright() as library:
            browser = library.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            for name in options.names or PICTURES:
                shoot(browser, url, name, options.into)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
