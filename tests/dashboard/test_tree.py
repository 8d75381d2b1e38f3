"""The tree of sessions is there and is kept up to date (D1)."""

import re

import httpx
from playwright.sync_api import Page, expect

from tests.dashboard.agent import Agent
from tests.dashboard.support import QUIET, Pages, row
from tests.server.support import serving


def test_sessions_appear_and_go_while_one_looks(page: Page, client: httpx.Client) -> None:
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(row(page, "t-appear")).to_have_count(0)
    client.post("/v1/sessions", json={"id": "t-appear"}).raise_for_status()
    expect(row(page, "t-appear")).to_be_visible()
    client.delete("/v1/sessions/t-appear").raise_for_status()
    expect(row(page, "t-appear")).to_have_count(0)


def test_sub_sessions_are_folded_and_say_what_works(page: Page, client: httpx.Client) -> None:
    with Agent(client, "t-team") as lead, Agent(client, "t-team/coder") as coder:
        lead.begin("Create")
        coder.begin("Write it")
        top = row(page, "t-team")
        expect(top).to_contain_text("1 of 1 working")
        coder.call("write_file", path="a.txt", content="a")  # the page reads events from now on: listings have no calls
        expect(top).to_have_attribute("aria-expanded", "false")
        expect(row(page, "t-team/coder")).to_have_count(0)
        top.locator(".twist").click()
        below = row(page, "t-team/coder")
        expect(below).to_have_attribute("data-state", "generating")
        expect(below).to_have_attribute("aria-level", "2")
        expect(below).to_contain_text("write_file")
        coder.finish("done", prompt_tokens=900, completion_tokens=300)
        expect(below).to_have_attribute("data-state", "idle")
        expect(below).to_contain_text("1.2k")
        expect(below).not_to_contain_text("write_file")
        expect(top).to_contain_text("1 below")
        page.reload()  # who looks later sees the same
        top.locator(".twist").click()
        expect(below).to_contain_text("1.2k")


def test_the_keyboard_moves_through_the_tree(page: Page, client: httpx.Client) -> None:
    for name in ("t-keys", "t-keys/a", "t-keys/a/b", "t-keys/c"):
        client.post("/v1/sessions", json={"id": name}).raise_for_status()
    page.get_by_role("searchbox").fill("t-keys")
    expect(row(page, "t-keys/a/b")).to_be_visible()  # what is found is unfolded
    page.get_by_role("searchbox").fill("")
    tree = page.get_by_role("tree")
    row(page, "t-keys").click()
    expect(page.get_by_role("heading", name="t-keys")).to_be_visible()
    tree.focus()
    expect(row(page, "t-keys/c")).to_be_visible()  # the chosen one is unfolded
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(row(page, "t-keys/a/b")).to_have_attribute("data-active", "")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#conversation/t-keys/a/b$"))
    tree.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(row(page, "t-keys/a/b")).to_have_count(0)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#conversation/t-keys/c$"))


def test_a_thousand_sessions_are_there_and_few_are_elements(pages: Pages) -> None:
    with serving(*QUIET) as server, httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        for number in range(990):
            client.post("/v1/sessions", json={"id": f"s{number:04}"}).raise_for_status()
        client.post("/v1/sessions", json={"id": "/".join(["deep", *"abcdefghi"])}).raise_for_status()
        page = pages.open(server.url)
        expect(page.get_by_text("1000 sessions")).to_be_visible()
        assert page.get_by_role("treeitem").count() < 60
        page.get_by_role("tree").focus()
        page.keyboard.press("End")  # the newest is at the top
        expect(row(page, "s0000")).to_be_visible()
        expect(row(page, "s0000")).to_have_attribute("aria-posinset", "991")
        expect(row(page, "s0000")).to_have_attribute("aria-setsize", "991")
        page.get_by_role("searchbox").fill("deep/a/b/c/d/e/f/g/h/i")
        expect(row(page, "deep/a/b/c/d/e/f/g/h/i")).to_have_attribute("aria-level", "10")
        row(page, "deep/a/b/c/d/e/f/g/h/i").click()
        expect(page.get_by_role("navigation", name="Path")).to_have_text("deep/a/b/c/d/e/f/g/h/i")
