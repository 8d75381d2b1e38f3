"""The tree of sessions is there and is kept up to date (D1)."""

import re
from datetime import UTC, datetime, timedelta

import httpx
from playwright.sync_api import Page, expect

from tests.dashboard.agent import Agent
from tests.dashboard.support import QUIET, Pages, address, row, send, violations
from tests.server.support import Process, serving


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
        expect(below.locator(".dot")).to_be_visible()
        expect(below).to_have_attribute("aria-level", "2")
        expect(below).to_contain_text("write_file")
        coder.finish("done", prompt_tokens=900, completion_tokens=300)
        expect(below).to_have_attribute("data-state", "idle")
        expect(below).to_have_attribute("data-ended", "")
        expect(below.locator(".sign svg")).to_be_visible()  # and not the dot of one that works
        expect(below.locator(".dot")).to_be_hidden()
        expect(below).to_have_attribute("title", re.compile("3 messages\n1200 tokens"))
        expect(below).not_to_contain_text("write_file")
        expect(top).to_have_attribute("title", re.compile("1 sub-session"))
        page.reload()  # who looks later sees the same
        top.locator(".twist").click()
        expect(below).to_have_attribute("title", re.compile("1200 tokens"))


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


def test_failed_and_asking_sessions_are_marked(page: Page, server: Process, client: httpx.Client) -> None:
    """By a sign and in words, in the sidebar and above the conversation, also for those who look later."""
    with Agent(client, "t-fails") as failing, Agent(client, "t-asks") as asking:
        failing.begin("Do it").fail("the model is out of memory")
        asking.begin("Run it").ask("make test")
        page.goto(address(server.url, "conversation/t-fails"))
        for look in (1, 2):
            failed, asks = row(page, "t-fails"), row(page, "t-asks")
            expect(failed).to_have_attribute("data-state", "failed")
            expect(failed.locator(".sign svg")).to_be_visible()
            expect(failed).to_contain_text("failed")
            expect(failed).to_have_attribute("aria-label", re.compile("Do it, t-fails, failed"))
            expect(page.locator("header .badge")).to_have_text("failed")
            expect(asks).to_have_attribute("data-state", "asking")
            expect(asks.locator(".sign svg")).to_be_visible()
            expect(asks).to_contain_text("1 question")
            assert violations(page) == []
            if look == 1:
                page.reload()
        failing.begin("Once more").finish("done")
        expect(row(page, "t-fails")).to_have_attribute("data-state", "idle")


def test_a_failed_reply_of_the_model_is_not_called_idle(page: Page, server: Process, client: httpx.Client) -> None:
    transcript = "User: hello\nAssistant: [Error: the model is out of memory]\n"
    client.post("/v1/sessions", json={"id": "t-model", "transcript": transcript}).raise_for_status()
    page.goto(address(server.url, "conversation/t-model"))
    expect(page.locator("header .badge")).to_have_text("failed")
    expect(row(page, "t-model")).to_have_attribute("data-state", "failed")
    send(page, "Once more")
    expect(page.locator("header .badge")).to_have_text("idle")
    expect(row(page, "t-model")).to_have_attribute("data-state", "idle")


def test_the_chosen_session_is_in_sight(pages: Pages) -> None:
    """After the page has loaded, and when keys go to the next one."""
    with serving(*QUIET) as server, httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        for number in range(60):
            client.post("/v1/sessions", json={"id": f"s{number:02}"}).raise_for_status()
        page = pages.open(server.url, "conversation/s00")  # the oldest one
        expect(row(page, "s00")).to_be_in_viewport(ratio=1)
        page.get_by_role("heading", name="s00").click()
        page.keyboard.press("Escape")
        page.goto(address(server.url, "conversation/s30"))
        expect(row(page, "s30")).to_be_in_viewport(ratio=1)
        page.get_by_text("60 sessions").click()
        for number in range(29, 9, -1):
            page.keyboard.press("j")
            expect(row(page, f"s{number:02}")).to_be_in_viewport(ratio=1)


def test_an_entry_has_two_lines_and_the_whole_title(page: Page, client: httpx.Client) -> None:
    """Numbers are shown to those who point at it."""
    title = "Please explain the number seventeen in a way that a child can follow"
    client.post("/v1/sessions/t-lines/messages", params={"wait": "true"}, json={"content": title}).raise_for_status()
    entry = row(page, "t-lines")
    name = entry.locator(".name")
    expect(name).to_contain_text(title)
    assert name.evaluate("(element) => [element.scrollHeight, element.clientHeight]") == [40, 40]
    assert "token" not in entry.inner_text()
    entry.hover()
    expect(entry).to_have_attribute("title", re.compile(f"{title}\nt-lines\n2 messages\n\\d+ tokens"))


def test_times_are_written_as_the_language_does(pages: Pages, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions/t-time/messages", params={"wait": "true"}, json={"content": "hello"}).raise_for_status()
    later = datetime.now(UTC) + timedelta(minutes=5, seconds=30)
    for locale, short, long in (("en-GB", "5m", "changed 5 minutes ago"), ("zh-CN", "5分钟前", "5分钟前更新")):
        page = pages.open(server.url, locale=locale)
        page.clock.set_fixed_time(later)
        expect(row(page, "t-time").locator(".age")).to_have_text(re.compile(short))
        expect(row(page, "t-time")).to_have_attribute("aria-label", re.compile(long))
