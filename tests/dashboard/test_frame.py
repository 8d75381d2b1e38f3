"""The frame of the page: home, sidebar, search, palette, shortcuts, theme and language (D1, D4)."""

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.support import PHONE, Pages, messages, row, violations
from tests.server.support import Process


def test_writing_on_the_first_screen_begins_a_session(page: Page) -> None:
    expect(page.get_by_role("heading", name="What shall we work on?")).to_be_visible()
    field = page.get_by_role("textbox", name="Message")
    expect(field).to_be_focused()
    example = "Compare REST and gRPC in a table."
    page.get_by_role("button", name=example).click()
    expect(field).to_have_value(example)
    field.press("Enter")
    expect(page).to_have_url(re.compile("#conversation/.+"))
    expect(messages(page).first).to_contain_text(example)
    page.keyboard.press("Escape")
    page.get_by_role("link", name="CFS").click()
    expect(page.get_by_role("heading", name="What shall we work on?")).to_be_visible()


def test_newer_sessions_stand_above_older_ones_below_their_day(page: Page, client: httpx.Client) -> None:
    for name in ("f-older", "f-newer"):
        client.post("/v1/sessions", json={"id": name}).raise_for_status()
    expect(row(page, "f-older")).to_be_visible()
    page.mouse.move(900, 400)
    expect(page.locator(".heading").first).to_have_text("Today")

    def tops() -> tuple[float, float]:
        boxes = [row(page, name).bounding_box() for name in ("f-newer", "f-older")]
        assert boxes[0] is not None
        assert boxes[1] is not None
        return boxes[0]["y"], boxes[1]["y"]

    newer, older = tops()
    assert newer < older
    client.post("/v1/sessions/f-older/messages", params={"wait": "true"}, json={"content": "hello"}).raise_for_status()
    script = """([one, other]) => {
        const top = (selector) => document.querySelector(selector).getBoundingClientRect().y;
        return top(one) < top(other);
    }"""
    page.wait_for_function(script, arg=['[data-session="f-older"]', '[data-session="f-newer"]'])


def test_keys_do_what_the_list_of_keys_says(page: Page, client: httpx.Client) -> None:
    for name in ("keys-one", "keys-two"):
        client.post("/v1/sessions", json={"id": name}).raise_for_status()
    expect(row(page, "keys-two")).to_be_visible()
    page.get_by_role("textbox", name="Message").blur()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_contain_text("Command palette")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("keys-")  # letters are text where one writes
    expect(page.get_by_role("searchbox")).to_have_value("keys-")
    expect(row(page, "keys-one")).to_be_visible()
    page.mouse.click(900, 700)
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile("#conversation/keys-two$"))
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile("#conversation/keys-one$"))
    page.keyboard.press("k")
    expect(page).to_have_url(re.compile("#conversation/keys-two$"))
    page.keyboard.press("n")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.get_by_role("textbox", name="Message").blur()
    page.keyboard.press("b")
    expect(page.get_by_role("tree")).to_be_hidden()
    page.keyboard.press("b")
    expect(page.get_by_role("tree")).to_be_visible()


def test_the_palette_finds_sessions_and_actions_by_a_few_letters(page: Page, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "p-holiday-plan"}).raise_for_status()
    expect(row(page, "p-holiday-plan")).to_be_visible()
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox")
    expect(field).to_be_focused()
    assert violations(page) == []
    field.fill("phlpl")
    expect(page.get_by_role("option", selected=True)).to_contain_text("p-holiday-plan")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#conversation/p-holiday-plan$"))
    page.keyboard.press("Control+k")
    field.fill("dark")
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_is_accessible(pages: Pages, server: Process, scheme: str) -> None:
    page = pages.open(server.url, color_scheme=scheme)
    expect(page.get_by_text("Live")).to_be_visible()
    assert violations(page) == []
    menu = page.get_by_role("button", name="Menu", exact=True)
    menu.click()
    expect(page.get_by_role("menuitem", name="Keyboard shortcuts")).to_be_focused()
    assert violations(page) == []
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Command palette")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_be_focused()


def test_a_phone_reaches_every_action_of_the_frame(pages: Pages, server: Process) -> None:
    page = pages.open(server.url, viewport=PHONE, is_mobile=True, has_touch=True)
    page.get_by_role("button", name="New session").tap()
    expect(page.get_by_role("heading", name="What shall we work on?")).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
    small = page.evaluate(
        "() => [...document.querySelectorAll('button, a.button')].filter((each) => each.checkVisibility())"
        ".filter((each) => each.getBoundingClientRect().height < 40).map((each) => each.textContent)"
    )
    assert small == []
    page.get_by_role("button", name="Sessions").tap()
    expect(page.get_by_role("tree")).to_be_visible()
    page.get_by_role("button", name="Menu", exact=True).tap()
    expect(page.get_by_role("menuitemradio", name="Dark theme")).to_be_visible()


def test_the_page_speaks_chinese_where_the_browser_does(pages: Pages, server: Process) -> None:
    page = pages.open(server.url, locale="zh-CN")
    expect(page.get_by_role("heading", name="今天做点什么？")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    page.get_by_role("button", name="菜单").click()
    page.get_by_role("menuitemradio", name="English").click()
    expect(page.get_by_role("heading", name="What shall we work on?")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("lang", "en")


def test_the_page_can_be_installed_as_an_application(page: Page) -> None:
    expect(page.get_by_text("Live")).to_be_visible()
    browser = page.context.new_cdp_session(page)
    manifest = browser.send("Page.getAppManifest")
    assert manifest["errors"] == []
    assert '"CFS"' in manifest["data"]
    errors = [each["errorId"] for each in browser.send("Page.getInstallabilityErrors")["installabilityErrors"]]
    assert [each for each in errors if each != "in-incognito"] == []  # the tests' pages are incognito
