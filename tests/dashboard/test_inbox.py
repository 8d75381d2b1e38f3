"""The inbox: the open questions of all sessions in one place, answered by mouse or keyboard (A5, D2)."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.agent import Agent
from tests.dashboard.support import Pages, address, violations
from tests.server.support import Process


@contextmanager
def agents(client: httpx.Client, *sessions: str) -> Iterator[list[Agent]]:
    """Agents that hold a turn of these sessions each."""
    with ExitStack() as stack:
        yield [stack.enter_context(Agent(client, session)).begin("Work") for session in sessions]


def inbox(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Inbox")


def answer(client: httpx.Client, session: str, question: str) -> str | None:
    answered = client.get(f"/v1/sessions/{session}/questions/{question}").json()["answer"]
    assert answered is None or isinstance(answered, str)
    return answered


def test_questions_of_all_sessions_are_answered_in_one_place(page: Page, server: Process, client: httpx.Client) -> None:
    """Those that were there before the page as well as new ones; a badge says how many."""
    with agents(client, "inbox-a", "inbox-b", "inbox-b/coder") as (first, second, third):
        asked = [first.ask("make a")]
        page.goto(address(server.url, ""))
        button = page.get_by_role("button", name="Inbox: 1 question")
        expect(button).to_have_text("1")
        asked += [second.ask("make b"), third.ask("make c"), third.ask("make d")]
        button = page.get_by_role("button", name="Inbox: 4 questions")
        expect(button).to_have_text("4")
        button.click()
        expect(inbox(page).get_by_role("region").locator("h3 a")).to_have_text(["inbox-a", "inbox-b", "coder"])
        expect(inbox(page).get_by_role("group").locator("code")).to_have_text(["make a", "make b", "make c", "make d"])
        assert violations(page) == []
        inbox(page).get_by_role("region", name="inbox-b", exact=True).get_by_role("button", name="Deny").click()
        expect(inbox(page).get_by_role("group")).to_have_count(3)
        assert answer(client, "inbox-b", asked[1]) == "deny"
        client.post(f"/v1/sessions/inbox-a/questions/{asked[0]}", json={"answer": "allow"}).raise_for_status()
        expect(inbox(page).get_by_role("group")).to_have_count(2)
        fourth = first.ask("make e")
        expect(inbox(page).get_by_role("group").locator("code")).to_have_text(["make e", "make c", "make d"])
        inbox(page).get_by_role("link", name="inbox-a").click()
        expect(inbox(page)).to_have_count(0)
        card = page.get_by_role("main").get_by_role("group", name="May this command run?")
        card.get_by_role("button", name="Allow", exact=True).click()
        expect(page.get_by_role("button", name="Inbox: 2 questions")).to_have_text("2")
        assert answer(client, "inbox-a", fourth) == "allow"


def test_the_keyboard_is_enough(page: Page, server: Process, client: httpx.Client) -> None:
    """A key opens it, the first answer has the focus, and the next one after each answer, whatever comes meanwhile."""
    with agents(client, "inbox-key", "inbox-key-2") as (agent, other):
        asked = [agent.ask(f"make {number}") for number in range(3)]
        page.goto(address(server.url, "timeline/inbox-key"))
        expect(page.get_by_role("button", name="Inbox: 3 questions")).to_be_visible()
        page.keyboard.press("i")
        allow = inbox(page).get_by_role("button", name="Allow", exact=True)
        for number in range(3):
            expect(inbox(page).locator("code").first).to_have_text(f"make {number}")
            expect(allow.first).to_be_focused()
            if number == 1:
                page.keyboard.press("Tab")
                page.keyboard.press("Tab")
                other.ask("make more")
                expect(inbox(page).get_by_role("group")).to_have_count(3)
                expect(inbox(page).get_by_role("button", name="Deny").first).to_be_focused()
            page.keyboard.press("Enter")
        expect(inbox(page).locator("code")).to_have_text(["make more"])
        page.keyboard.press("Enter")
        expect(inbox(page)).to_contain_text("No agent asks anything.")
        expect(inbox(page).get_by_role("button", name="Close")).to_be_focused()
        page.keyboard.press("Escape")
        expect(inbox(page)).to_have_count(0)
        expect(page.get_by_role("button", name=re.compile("^Inbox:"))).to_have_count(0)
        assert [answer(client, "inbox-key", question) for question in asked] == ["allow", "deny", "allow"]


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("write", "May this file be changed?"),
        ("read", "May this file be read?"),
        ("mcp", "May this tool of an MCP server be called?"),
        ("spawn", "May this agent be started?"),
        ("other", "May this tool be called?"),
    ],
)
def test_a_card_says_what_kind_of_call_it_is(
    page: Page, server: Process, client: httpx.Client, kind: str, title: str
) -> None:
    with agents(client, f"inbox-{kind}") as (agent,):
        agent.ask("call {}", kind=kind)
        page.goto(address(server.url, f"conversation/inbox-{kind}"))
        expect(page.get_by_role("main").get_by_role("group", name=title)).to_contain_text("call {}")


def test_it_speaks_chinese(pages: Pages, server: Process, client: httpx.Client) -> None:
    with agents(client, "inbox-zh") as (agent,):
        agent.ask("x", kind="mcp")
        page = pages.open(server.url, locale="zh-CN")
        page.get_by_role("button", name="收件箱：1 个问题").click()
        expect(page.get_by_role("dialog", name="收件箱")).to_contain_text("允许调用 MCP 服务器的此工具吗？")


def test_the_timeline_shows_what_was_decided_about_a_call(page: Page, server: Process, client: httpx.Client) -> None:
    with agents(client, "inbox-decided") as (agent,):
        page.goto(address(server.url, "timeline/inbox-decided"))
        decision = {"tool": "execute_command", "digest": "sha256:0"}
        asked = {
            "call": agent.call("execute_command", command="make"),
            "verdict": "allowed",
            "asked": True,
            "by": "alice",
        }
        agent.decide(**decision, **asked)
        expect(page.locator(".tick")).to_have_attribute("aria-label", re.compile("Allowed by alice"))
        rule = {"rule": "execute_command(git push:*)", "source": "r.toml:1"}
        agent.decide(**decision, **rule, call=agent.call("execute_command", command="git push"), verdict="denied")
        expect(page.locator(".tick").last).to_have_attribute(
            "aria-label", re.compile(r"Denied by a rule: execute_command\(git push:\*\), r.toml:1|2 calls")
        )
