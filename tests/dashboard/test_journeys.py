"""Whole journeys by keyboard alone, by touch alone, and by what a screen reader is told (D4)."""

import re

import httpx
from playwright.sync_api import Page, expect

from tests.dashboard.agent import Agent
from tests.dashboard.support import PHONE, Pages, address, messages, row, violations
from tests.server.support import Process


def tab_to(page: Page, name: str) -> None:
    """Press Tab until an element with this name has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate("() => document.activeElement?.ariaLabel || document.activeElement?.textContent || ''")
        if re.fullmatch(name, focused):
            return
    raise AssertionError(f"Tab does not come to {name}")


def test_a_session_from_beginning_to_end_by_keyboard(pages: Pages, server: Process) -> None:
    page = pages.open(server.url)
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.type("Plan a garden")
    page.keyboard.press("Enter")
    expect(messages(page)).to_have_count(2)
    tab_to(page, "Plan a garden")  # the title, which is a button
    page.keyboard.press("Enter")
    page.keyboard.type("Roses")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Roses")).to_be_visible()
    expect(page.get_by_role("button", name="Roses")).to_be_focused()
    tab_to(page, "Conversation")
    page.keyboard.press("ArrowLeft")  # from the first one to the last
    expect(page.get_by_role("tab", name="Settings")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Home")
    expect(page.get_by_role("tab", name="Conversation")).to_be_focused()
    page.get_by_role("tree").focus()
    page.keyboard.press("c")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.type("And a pond")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("with fish")
    page.keyboard.press("Enter")
    expect(messages(page)).to_have_count(4)
    expect(messages(page).nth(2)).to_contain_text("with fish")
    page.keyboard.press("Control+k")
    page.keyboard.type("Roses")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("tree").focus()
    tab_to(page, "Actions of the session")
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    expect(page.get_by_role("menuitem", name="Delete")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("treeitem", name=re.compile("Roses"))).to_have_count(0)


def test_a_conversation_by_touch(pages: Pages, server: Process, client: httpx.Client) -> None:
    with Agent(client, "j-touch") as agent:
        agent.begin("Build it")
        agent.ask("make test")
        page = pages.open(server.url, viewport=PHONE, is_mobile=True, has_touch=True)
        row(page, "j-touch").tap()
        expect(page.get_by_role("group", name="May this command run?")).to_contain_text("make test")
        page.get_by_role("button", name="Deny").tap()
        expect(page.get_by_role("group", name="May this command run?")).to_have_count(0)
        page.get_by_role("textbox", name="Message").tap()
        page.keyboard.type("Stop soon")
        page.get_by_role("button", name="Steer").tap()
        expect(page.locator(".waiting")).to_contain_text("Stop soon")
        page.get_by_role("button", name="Stop", exact=True).tap()
        expect(messages(page).last).to_be_visible()
        page.get_by_role("button", name="Actions of the session").tap()
        page.get_by_role("menuitem", name="Change the title").tap()
        page.get_by_role("textbox", name="Title").fill("Touched")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Touched")).to_be_visible()
        page.get_by_role("button", name="Back").tap()
        expect(row(page, "j-touch")).to_contain_text("Touched")


def test_what_a_screen_reader_is_told(pages: Pages, server: Process, client: httpx.Client) -> None:
    """Landmarks, the tree with its levels and states, the tabs, and what happens meanwhile."""
    with Agent(client, "j-voice") as lead, Agent(client, "j-voice/coder") as coder:
        lead.begin("Build it")
        coder.begin("Write it")
        page = pages.open(server.url, "conversation/j-voice")
        expect(page.get_by_role("main").get_by_role("heading", level=1, name="Build it")).to_be_visible()
        expect(page.get_by_role("navigation", name="Sessions").get_by_role("tree", name="Sessions")).to_be_visible()
        expect(page.get_by_role("tablist", name="Views").get_by_role("tab", selected=True)).to_have_text("Conversation")
        expect(page.get_by_role("tabpanel", name="Conversation")).to_be_visible()
        expect(page.get_by_role("treeitem", name=re.compile(r"^Build it, j-voice, working"), level=1)).to_be_visible()
        tree = page.get_by_role("tree")
        tree.focus()
        expect(tree).to_have_attribute("aria-activedescendant", re.compile("row-"))
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("treeitem", name=re.compile("^coder, working"), level=2)).to_be_visible()
        status = page.locator(".unseen[role=status]").last
        lead.ask("make test")
        expect(status).to_have_text("j-voice asks for permission")
        lead.fail("the disk is full")
        expect(status).to_have_text("j-voice failed: the disk is full")
        expect(page.get_by_role("treeitem", name=re.compile("^Build it, j-voice, failed"), level=1)).to_be_visible()
        assert violations(page) == []
        page.goto(address(server.url, "conversation/j-voice/coder"))
        coder.finish("done")
        expect(status).to_have_text("j-voice/coder has answered")
