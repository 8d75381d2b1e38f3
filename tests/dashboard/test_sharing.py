"""Sharing a session from the page, and searching the messages (D4, G9)."""

from pathlib import Path

import httpx
from playwright.sync_api import Page, expect

from tests.access.support import make
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


def test_without_tokens_the_link_is_the_address(page: Page, client: httpx.Client) -> None:
    client.post("/v1/sessions/w-open/messages", params={"wait": "true"}, json={"content": "hello"})
    row(page, "w-open").click()
    page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name="Make a link").click()
    expect(page.get_by_role("textbox", name="Link")).to_have_value(page.url)
    expect(page.get_by_text("This server asks for no tokens")).to_be_visible()


def test_messages_are_found_and_opened(page: Page, client: httpx.Client, server: Process) -> None:
    words = [f"Message {number} of the long talk" for number in range(300)]
    words[7] = "💎 The <b>treasure</b> lies under the Old Oak."
    history = [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(words)]
    client.post("/v1/sessions", json={"id": "w-search", "messages": history}).raise_for_status()
    page.keyboard.press("Escape")
    field = page.get_by_role("searchbox")
    field.fill("treasure</B>")
    found = page.get_by_role("region", name="Messages found")
    expect(found.locator("mark")).to_have_text("treasure</b>")
    assert violations(page) == []
    found.get_by_role("link").click()
    sought = page.locator(".message.sought")
    expect(sought).to_be_in_viewport()
    expect(sought).to_contain_text("lies under the Old Oak")
    field.fill("no such words")
    expect(found.get_by_role("heading", name="0 messages")).to_be_visible()
    field.fill("")
    expect(found).to_be_hidden()
