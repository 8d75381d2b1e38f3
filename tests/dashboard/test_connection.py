"""The page goes on by itself after a lost connection, a restart of the server, another life of a name (D1)."""

import re
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import expect

from cfs import api
from cfs.transports.http import Client
from ports import free_port
from tests.dashboard.agent import Agent
from tests.dashboard.support import QUIET, Pages, address, messages, row, send
from tests.server.support import serving


def test_nothing_is_missed_or_doubled_while_connections_come_and_go(pages: Pages) -> None:
    """The server ends each stream after a moment, again and again."""
    with (
        serving(*QUIET, "--stream-seconds", "0.3") as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
        Agent(client, "main") as agent,
    ):
        agent.begin("Count")
        page = pages.open(server.url, "conversation/main")
        expect(page.locator(".message.growing")).to_have_count(1)
        for number in range(200):
            agent.say(f"{number} ")
            if number % 20 == 0:
                agent.call("wait", seconds=0)
        expect(page.locator(".message.growing .text").nth(1)).to_have_text(" ".join(map(str, range(200))) + " ")
        agent.finish("done")
        expect(messages(page)).to_have_count(12)
        expect(row(page, "main")).to_have_attribute("data-state", "idle")


def test_a_page_without_a_network_catches_up(pages: Pages) -> None:
    with (
        serving(*QUIET) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
        Agent(client, "main") as agent,
    ):
        agent.begin("Go")
        page = pages.open(server.url, "conversation/main")
        agent.say("before, ")
        expect(page.locator(".message.growing")).to_contain_text("before, ")
        page.context.set_offline(True)
        agent.say("meanwhile, ")
        client.post("/v1/sessions", json={"id": "main/new"}).raise_for_status()
        page.context.set_offline(False)
        agent.say("after")
        expect(page.locator(".message.growing")).to_contain_text("before, meanwhile, after")
        expect(row(page, "main")).to_have_attribute("title", re.compile("1 sub-session"))


def test_a_restarted_server_is_found_again(pages: Pages) -> None:
    flags = (*QUIET, "--port", str(free_port()))
    with serving(*flags) as server:
        httpx.post(f"{server.url}/v1/sessions", json={"id": "first"}, trust_env=False, timeout=60).raise_for_status()
        page = pages.open(server.url, "conversation/first")
        send(page, "before")
        expect(messages(page)).to_have_count(2)
        server.signal()
        assert server.ended()[0] == 0
    expect(page.locator(".connection")).to_have_attribute("data-state", "lost")
    with (
        serving(*flags) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        expect(row(page, "first")).to_have_count(0)  # sessions end with the server
        expect(page.get_by_text("This session does not exist")).to_be_visible()
        client.post("/v1/sessions/first/messages", params={"wait": "true"}, json={"content": "another life"})
        expect(row(page, "first")).to_be_visible()
        expect(messages(page)).to_have_count(2)
        expect(messages(page).nth(0)).to_contain_text("another life")


def test_after_a_crash_of_the_server_the_same_tree_goes_on(pages: Pages, tmp_path: Path) -> None:
    """The page resumes at its last event, without a new listing, and the agent goes on with its turn."""

    def events(session: str) -> list[tuple[int, str]]:
        """The numbers and types of all events so far."""
        found: list[tuple[int, str]] = []
        last = client.get(f"/v1/sessions/{session}").json()["event"]
        with closing(sdk.events(api.events(session, "0"))) as stream:
            while not found or found[-1][0] < last:
                event = next(stream)
                found.append((event.number, event.type))
        return found

    flags = (*QUIET, "--data-dir", str(tmp_path), "--port", str(free_port()))
    with ExitStack() as stack:
        server = stack.enter_context(serving(*flags))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60, trust_env=False))
        sdk = stack.enter_context(Client(server.url))
        page = pages.open(server.url, "conversation/main/coder")
        asked: list[tuple[str, str | None]] = []
        page.on("request", lambda each: asked.append((urlsplit(each.url).path, each.headers.get("last-event-id"))))
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        agent = Agent(client, "main/coder").begin("Go")
        agent.say("before, ")
        agent.write("a.txt", "hello")
        expect(page.locator(".talk")).to_contain_text("a.txt")
        before = {session: events(session) for session in ("main", "main/coder")}
        expect(row(page, "main/coder")).to_have_attribute("data-state", "generating")
        del asked[:]

        server.process.kill()
        server.ended()
        expect(page.locator(".connection")).to_have_attribute("data-state", "lost")
        stack.enter_context(serving(*flags))
        expect(page.locator(".connection")).to_have_attribute("data-state", "live")
        assert {session: events(session)[: len(before[session])] for session in before} == before
        agent.say("after")
        expect(page.locator(".message.growing")).to_contain_text("before, after")
        expect(row(page, "main/coder")).to_have_attribute("data-state", "generating")
        agent.finish("done")
        expect(row(page, "main/coder")).to_have_attribute("data-state", "idle")
        expect(messages(page).last).to_contain_text("done")
        assert {path for path, _ in asked} <= {"/v1/events", "/v1/models", "/v1/render"}
        assert all(cursor for path, cursor in asked if path == "/v1/events")


def test_the_address_names_what_is_shown(pages: Pages) -> None:
    with serving(*QUIET) as server:
        httpx.post(f"{server.url}/v1/sessions", json={"id": "a b/c"}, trust_env=False, timeout=60).raise_for_status()
        page = pages.open(server.url)
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        page.keyboard.press("Control+k")
        page.get_by_role("combobox").fill("new session with")
        page.keyboard.press("Enter")
        page.get_by_label("Name", exact=True).fill("made here")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("#conversation/made%20here$"))
        page.goto(address(server.url, "settings/a b/c"))
        expect(page.get_by_role("heading", name="c", exact=True)).to_be_visible()
        expect(page.get_by_role("navigation", name="Path")).to_have_text("a b/c")
        expect(page.get_by_role("tab", name="Settings")).to_have_attribute("aria-selected", "true")
        page.go_back()
        expect(page.get_by_role("heading", name="made here")).to_be_visible()


def test_complaints_of_a_lost_connection_end_with_it(pages: Pages) -> None:
    """A session that could not be read is read, and what is still to be sent stands in the field."""
    with serving(*QUIET) as server, httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        for name in ("one", "two"):
            client.post(f"/v1/sessions/{name}/messages", params={"wait": "true"}, json={"content": f"hello {name}"})
        page = pages.open(server.url, "conversation/one")
        expect(messages(page)).to_have_count(2)
        expect(row(page, "two")).to_be_visible()
        page.context.set_offline(True)
        send(page, "meanwhile")
        lost = page.get_by_text("The server cannot be reached.")
        expect(page.locator(".composer .complaint")).to_have_text("The server cannot be reached.")
        row(page, "two").click()
        expect(page.locator("cfs-session > .note")).to_have_text("The server cannot be reached.")
        page.context.set_offline(False)
        expect(messages(page).first).to_contain_text("hello two")
        expect(lost).to_have_count(0)
        row(page, "one").click()
        expect(page.get_by_role("textbox", name="Message")).to_have_value("meanwhile")
        expect(lost).to_have_count(0)


def test_the_complaint_about_a_message_ends_when_the_server_is_back(pages: Pages, tmp_path: Path) -> None:
    flags = (*QUIET, "--data-dir", str(tmp_path), "--port", str(free_port()))
    with serving(*flags) as server:
        httpx.post(f"{server.url}/v1/sessions", json={"id": "one"}, trust_env=False, timeout=60).raise_for_status()
        page = pages.open(server.url, "conversation/one")
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        server.signal()
        assert server.ended()[0] == 0
    expect(page.locator(".connection")).to_have_attribute("data-state", "lost")
    send(page, "hello")
    complaint = page.locator(".composer .complaint")
    expect(complaint).to_have_text("The server cannot be reached.")
    with serving(*flags):
        expect(page.locator(".connection")).to_have_attribute("data-state", "live")
        expect(complaint).to_be_empty()
        page.get_by_role("button", name="Send").click()
        expect(messages(page)).to_have_count(2)
