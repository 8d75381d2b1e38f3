"""Questions of a real agent are answered in the browser: its command runs only after the click (A5, D2)."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from playwright.sync_api import Locator, Page, expect

from tests.client.terminal import Running
from tests.dashboard.agent import Agent
from tests.dashboard.support import Pages, address, row
from tests.server.support import Process

HIDDEN = "touch one # \u202e\u200bpng\n# the second line"


def run(*commands: str) -> str:
    """The calls of the shell: the server's model repeats the message."""
    return "".join(
        f"<tool_call>{json.dumps({'name': 'execute_command', 'arguments': {'command': command}})}</tool_call>"
        for command in commands
    )


@contextmanager
def asking(server: Process, client: httpx.Client, session: str, root: Path, *commands: str) -> Iterator[None]:
    """An agent without a terminal, which has a task that runs some commands."""
    client.post("/v1/sessions", json={"id": session, "settings": {"driver": "agent"}}).raise_for_status()
    client.post(f"/v1/sessions/{session}/messages", json={"content": run(*commands)}).raise_for_status()
    with Running(server.url, "agent", "serve", "--session", session, "--root", str(root), "--commands", "ask"):
        yield


def card(page: Page) -> Locator:
    return page.get_by_role("group", name="May this command run?")


def made(root: Path, session: str) -> Callable[[], set[str]]:
    place = root / session / "agent_workspace"
    return lambda: {path.name for path in place.glob("[a-z]*")}


def test_a_command_runs_after_the_click(page: Page, server: Process, client: httpx.Client, tmp_path: Path) -> None:
    """What cannot be seen is shown by its number, and each line is a line."""
    files = made(tmp_path, "q-click")
    with asking(server, client, "q-click", tmp_path, HIDDEN, "touch two"):
        page.goto(address(server.url, "conversation/q-click"))
        expect(card(page).locator("code")).to_have_text(["touch one # <U+202E><U+200B>png", "# the second line"])
        expect(card(page)).to_contain_text("stands for a character that cannot be seen")
        assert files() == set()
        card(page).get_by_role("button", name="Allow", exact=True).click()
        expect(card(page).locator("code")).to_have_text(["touch two"])
        assert files() == {"one"}
        card(page).get_by_role("button", name="Deny").press("Enter")
        expect(card(page)).to_have_count(0)
        client.get("/v1/sessions/q-click/wait", params={"timeout": 30}).raise_for_status()
        assert files() == {"one"}


def test_the_column_of_an_agent_asks_and_an_answer_from_elsewhere_ends_it(
    page: Page, server: Process, client: httpx.Client, tmp_path: Path
) -> None:
    """Always is one of the answers; the same command is not asked about again."""
    files = made(tmp_path, "q-column")
    with asking(server, client, "q-column", tmp_path, "touch one", "touch two", "touch two"):
        page.goto(address(server.url, "agents/q-column"))
        expect(card(page).locator("code")).to_have_text(["touch one"])
        (question,) = client.get("/v1/sessions/q-column/questions").json()["questions"]
        place = f"/v1/sessions/q-column/questions/{question['id']}"
        client.post(place, json={"answer": "deny"}).raise_for_status()
        expect(card(page).locator("code")).to_have_text(["touch two"])
        expect(card(page).get_by_role("button", name="always execute_command(touch:*)")).to_be_visible()
        card(page).get_by_role("button", name="Always allow").click()
        expect(card(page)).to_have_count(0)
        client.get("/v1/sessions/q-column/wait", params={"timeout": 30}).raise_for_status()
        assert files() == {"two"}


def test_a_question_shows_only_what_the_agent_has_said(page: Page, server: Process, client: httpx.Client) -> None:
    """It names no directory, and all its characters can be seen."""
    with Agent(client, "q-plain") as agent:
        agent.begin("Run it")
        agent.ask("make test")
        page.goto(address(server.url, "conversation/q-plain"))
        expect(card(page)).to_have_text("May this command run?make testAllowAlways allowDeny")


def test_no_agent_is_missed_before_it_could_answer(pages: Pages, server: Process, client: httpx.Client) -> None:
    """An attached agent needs a moment to claim a message. Without one the page says so after some seconds."""
    page = pages.open(server.url)
    now = datetime.now(UTC)
    page.clock.install(time=now)
    page.clock.set_fixed_time(now)
    client.post("/v1/sessions", json={"id": "q-claim", "settings": {"driver": "agent"}}).raise_for_status()
    page.goto(address(server.url, "conversation/q-claim"))
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    client.post("/v1/sessions/q-claim/messages", json={"content": "Is somebody there?"}).raise_for_status()
    badge = page.locator("header .badge")
    expect(badge).to_have_text("working")
    expect(row(page, "q-claim")).to_have_attribute("data-state", "generating")
    expect(page.locator(".waiting")).to_contain_text("Is somebody there?")
    expect(badge).to_have_text("working")
    page.clock.set_fixed_time(now + timedelta(seconds=10))
    expect(badge).to_have_text("waits for an agent")
    expect(row(page, "q-claim")).to_have_attribute("data-state", "waiting_for_agent")
    with Agent(client, "q-claim") as agent:
        agent.claim()
        expect(badge).to_have_text("working")
