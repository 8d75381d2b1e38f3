"""The page where tokens are on, on a phone, in the dark, and for those who do not see it (D4, G9)."""

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from tests.access.support import make
from tests.dashboard.agent import Agent
from tests.dashboard.support import PHONE, QUIET, Pages, address, messages, row, violations
from tests.server.support import Process, serving

NARROW = {"width": 360, "height": 740}
VIEWS = ("Conversation", "Agents", "Files", "Timeline", "Transcript", "Settings")


def test_a_token_is_asked_for_where_tokens_are_on(pages: Pages, tmp_path: Path) -> None:
    secret = make(tmp_path / "tokens.toml", "alice", "/sessions/mine")
    other = make(tmp_path / "tokens.toml", "bob", "/sessions")
    with serving(*QUIET, "--tokens", str(tmp_path / "tokens.toml")) as server:
        bob = {"Authorization": f"Bearer {other}"}
        for name in ("mine", "his"):
            httpx.post(
                f"{server.url}/v1/sessions", json={"id": name}, headers=bob, trust_env=False, timeout=60
            ).raise_for_status()
        page = pages.open(server.url)
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not valid")
        assert violations(page) == []
        page.get_by_label("Token").fill(secret)
        page.get_by_role("button", name="Log in").click()
        expect(row(page, "mine")).to_be_visible()
        expect(page.get_by_text("1 session", exact=True)).to_be_visible()
        page.reload()
        expect(row(page, "mine")).to_be_visible()
        page.get_by_role("button", name="Menu", exact=True).click()
        page.get_by_role("menuitem", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_focused()
        assert page.evaluate("() => sessionStorage.length + localStorage.length") == 0


def test_the_page_says_nothing_of_sessions_and_lets_no_script_in(server: Process) -> None:
    answer = httpx.get(server.url, headers={"Accept": "text/html"}, trust_env=False, timeout=60)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'; trusted-types cfs-markup" in policy.removesuffix(";")
    assert policy.count("trusted-types ") == 1
    assert httpx.get(server.url, trust_env=False, timeout=60).json()["name"] == "cfs"
    tag = answer.headers["ETag"]
    again = httpx.get(server.url, headers={"Accept": "text/html", "If-None-Match": tag}, trust_env=False, timeout=60)
    assert again.status_code == 304
    assert httpx.get(f"{server.url}/dashboard/nothing.js", trust_env=False, timeout=60).status_code == 404


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_any_view(
    pages: Pages, server: Process, client: httpx.Client, scheme: str
) -> None:
    name = f"a-{scheme}"
    with Agent(client, name) as lead, Agent(client, f"{name}/coder") as coder:
        lead.begin("Create")
        coder.begin("Write it")
        coder.think("How?", "So.")
        coder.write("a.txt", "one\ntwo\n")
        coder.write("a.txt", "one\nthree\n")
        coder.say("and on")
        lead.finish("[Error: no]")
        page = pages.open(server.url, f"conversation/{name}/coder", color_scheme=scheme)
        ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(253, 253, 252)" if scheme == "light" else "rgb(19, 20, 23)")
        expect(page.locator(".message.growing")).to_contain_text("and on")
        assert violations(page) == []
        coder.ask("make test")
        expect(page.get_by_role("button", name="Allow", exact=True)).to_be_visible()
        assert violations(page) == []
        page.goto(address(server.url, f"conversation/{name}"))
        expect(messages(page)).to_have_count(2)
        seen = {
            "Agents": ".column",
            "Files": ".numbered",
            "Timeline": ".turn",
            "Transcript": ".raw",
            "Settings": ".settings",
        }
        for view in VIEWS:
            page.get_by_role("tab", name=view).click()
            expect(page.locator(seen.get(view, ".talk")).first).to_be_visible()
            assert violations(page) == [], view
        page.get_by_role("button", name="Actions of the session").click()
        assert violations(page) == []
        page.get_by_role("menuitem", name="Delete").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert violations(page) == []
        page.keyboard.press("Escape")
        for opener, item in (
            ("Actions of the session", "Rename"),
            ("Actions of the session", "Versions"),
            ("Menu", "Models"),
            ("Menu", "Keyboard shortcuts"),
        ):
            button = page.get_by_role("button", name=opener, exact=True)
            button.focus()
            page.keyboard.press("Enter")
            page.get_by_role("menuitem", name=item).press("Enter")
            expect(page.get_by_role("dialog")).to_be_visible()
            assert violations(page) == [], item
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_be_hidden()
            expect(button).to_be_focused()


def test_a_phone_shows_the_tree_or_a_session(pages: Pages, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions/a-phone/messages", params={"wait": "true"}, json={"content": "hello " * 40})
    page = pages.open(server.url, viewport=PHONE, is_mobile=True, has_touch=True)
    expect(page.get_by_role("tree")).to_be_visible()
    row(page, "a-phone").tap()
    expect(page.get_by_role("tree")).to_be_hidden()
    expect(messages(page).nth(1)).to_be_visible()
    for view in ("Timeline", "Transcript", "Settings", "Conversation"):  # there is nothing in the others
        page.get_by_role("tab", name=view).tap()
        width = page.evaluate("() => document.documentElement.scrollWidth")
        assert width <= PHONE["width"], f"{view} is {width} wide"
    assert violations(page) == []
    page.get_by_role("button", name="Back").tap()
    expect(page.get_by_role("tree")).to_be_visible()
    assert violations(page) == []


def test_a_wide_table_scrolls_on_a_phone(pages: Pages, server: Process, client: httpx.Client) -> None:
    """By touch, in its own frame: the page stays as wide as the phone."""
    columns = [f"Column number {number}" for number in range(12)]
    lines = [columns, ["---"] * 12, [f"`value_{number}_of_a_long_name`" for number in range(12)]]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    said = [{"role": "user", "content": "A table"}, {"role": "assistant", "content": f"So:\n\n{table}\n\nand on"}]
    client.post("/v1/sessions", json={"id": "a-wide", "messages": said}).raise_for_status()
    page = pages.open(server.url, "conversation/a-wide", viewport=NARROW, is_mobile=True, has_touch=True)
    frame = page.get_by_role("region", name="Table", exact=True)
    expect(frame).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= NARROW["width"]
    last = frame.get_by_text("Column number 11")
    expect(last).not_to_be_in_viewport()
    box = frame.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= NARROW["width"]
    devtools = page.context.new_cdp_session(page)
    x, y = box["x"] + box["width"] - 40, box["y"] + box["height"] / 2
    for _ in range(10):
        devtools.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
        for step in range(20, 260, 20):
            points = [{"x": x - step, "y": y}]
            devtools.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": points})
        devtools.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    expect(last).to_be_in_viewport()
    expect(page.get_by_role("columnheader")).to_have_count(12)
    heading = frame.get_by_role("columnheader").first.bounding_box()
    assert heading is not None
    assert heading["height"] < 48  # words are not broken to make the table narrow
