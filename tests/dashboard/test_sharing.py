"""Sharing a session from the page, and searching the messages (D4, G9)."""

import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.access.support import make
from tests.dashboard.agent import Agent
from tests.dashboard.support import QUIET, Pages, messages, row, violations
from tests.server.support import Process, serving


def test_a_link_shows_one_session_until_it_is_revoked(pages: Pages, tmp_path: Path) -> None:
    secret = make(tmp_path / "tokens.toml", "alice", "/sessions/alice")
    with serving(*QUIET, "--tokens", str(tmp_path / "tokens.toml")) as server:
        with httpx.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {secret}"}, trust_env=False, timeout=60
        ) as alice:
            for name in ("alice/plan", "alice/diary"):
                alice.post("/v1/sessions", json={"id": name}).raise_for_status()
            text = "Meet at the old bridge."
            alice.post("/v1/sessions/alice/plan/messages", params={"wait": "true"}, json={"content": text})
        page = pages.open(server.url, "conversation/alice/plan")
        page.get_by_label("Token").fill(secret)
        page.keyboard.press("Enter")
        expect(messages(page).first).to_contain_text(text)
        page.get_by_role("button", name="Share").click()
        dialog = page.get_by_role("dialog", name="Share plan")
        assert violations(page) == []
        dialog.get_by_role("button", name="Make a link").click()
        field = dialog.get_by_role("textbox", name="Link")
        expect(field).to_be_visible()
        link = field.input_value()

        other = pages.open(server.url)
        other.goto(link)
        expect(messages(other).first).to_contain_text(text)
        assert "share" not in other.url  # the token does not stay in the address
        expect(row(other, "alice/diary")).to_have_count(0)

        dialog.get_by_role("button", name="Revoke").click()
        expect(dialog.get_by_text("Revoked. The link no longer works.")).to_be_visible()
        other.reload()
        expect(other.get_by_label("Token")).to_be_visible()


def test_without_tokens_the_dialog_says_what_a_link_gives(page: Page, client: httpx.Client) -> None:
    """Everything, and how to change that; the link is the address."""
    client.post("/v1/sessions/w-open/messages", params={"wait": "true"}, json={"content": "hello"})
    row(page, "w-open").click()
    page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog", name="Share w-open")
    expect(dialog).to_contain_text("everyone who can reach it may read, change and delete all sessions")
    expect(dialog).to_contain_text("cfs serve --tokens tokens.toml")
    expect(dialog.get_by_label("May")).to_be_hidden()  # there is nothing to choose
    assert violations(page) == []
    dialog.get_by_role("button", name="Make a link").click()
    expect(page.get_by_role("textbox", name="Link")).to_have_value(page.url)


@pytest.mark.parametrize("access", ["read", "write"])
def test_who_came_by_a_link_sees_the_controls_of_its_rights(pages: Pages, tmp_path: Path, access: str) -> None:
    secret = make(tmp_path / "tokens.toml", "alice", "/sessions", "/workspaces")
    with (
        serving(*QUIET, "--tokens", str(tmp_path / "tokens.toml")) as server,
        httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {secret}"}, trust_env=False) as alice,
        Agent(alice, "plan") as agent,
    ):
        agent.begin("Build it")
        agent.ask("make test")
        made = alice.post("/v1/shares", json={"session": "plan", "access": access, "expires": None})
        writes = access == "write"
        page = pages.open(server.url)
        page.goto(f"{server.url}{made.json()['path']}")
        expect(messages(page).first).to_contain_text("Build it")
        question = page.get_by_role("group", name="May this command run?")
        expect(question).to_contain_text("make test")
        expect(question.get_by_role("button")).to_have_count(0)
        expect(page.get_by_role("textbox", name="Message")).to_have_count(int(writes))
        expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(int(writes))
        for name in ("Share", "New session", "Attach files", "Edit in a new branch", "Pause"):
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        title = page.get_by_role("heading", level=1).get_by_role("button")
        (expect(title).to_be_enabled if writes else expect(title).to_be_disabled)()
        page.get_by_role("button", name="Actions of the session").click()
        expect(page.get_by_role("menuitem", name="Export as JSON")).to_be_visible()
        for name in ("Rename", "Delete", "Copy session", "Share", "Pause"):
            expect(page.get_by_role("menuitem", name=name, exact=True)).to_have_count(0)
        expect(page.get_by_role("menuitem", name="Change the title")).to_have_count(int(writes))
        page.keyboard.press("Escape")
        page.get_by_role("tab", name="Settings").click()
        temperature = page.get_by_role("slider", name="Temperature")
        (expect(temperature).to_be_enabled if writes else expect(temperature).to_be_disabled)()
        expect(page.get_by_role("combobox", name="Who answers")).to_be_disabled()
        expect(page.get_by_role("button", name="Save")).to_have_count(int(writes))
        page.get_by_role("tab", name="Transcript").click()
        expect(page.get_by_role("textbox", name="Transcript")).not_to_be_editable()
        expect(page.get_by_role("button", name="Save transcript")).to_have_count(0)
        assert violations(page) == []
        page.keyboard.press("n")
        expect(page).to_have_url(re.compile("#transcript/plan$"))


def test_messages_are_found_and_opened(page: Page, client: httpx.Client, server: Process) -> None:
    words = [f"Message {number} of the long talk" for number in range(300)]
    words[7] = "💎 The <b>treasure</b> lies under the Old Oak."
    history = [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(words)]
    client.post("/v1/sessions", json={"id": "w-search", "messages": history}).raise_for_status()
    page.keyboard.press("Escape")
    field = page.get_by_role("searchbox")
    field.fill("treasure</B>")
    found = page.get_by_role("region", name="Messages found")
    expect(found.locator("mark")).to_have_text("treasure</b")
    assert violations(page) == []
    found.get_by_role("link").click()
    sought = page.locator(".message.sought")
    expect(sought).to_be_in_viewport()
    expect(sought).to_contain_text("lies under the Old Oak")
    field.fill("oak treasu")
    expect(found.locator("mark")).to_have_text(["treasure", "Oak"])
    client.put("/v1/files/workspaces/w-search/maps/island.txt", content=b"here\nlies a kraken").raise_for_status()
    field.fill("kraken")
    expect(found.get_by_role("link")).to_contain_text("w-search/maps/island.txt:2")
    expect(found.get_by_role("link")).to_have_attribute("href", "#files/w-search")
    field.fill("no such words")
    expect(found.get_by_role("heading", name="0 messages")).to_be_visible()
    field.fill("")
    expect(found).to_be_hidden()
