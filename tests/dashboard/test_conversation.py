"""One session: what is said in it, as it is said, and what can be done to it (D2)."""

import re

import httpx
from playwright.sync_api import Page, expect

from tests.dashboard.agent import Agent
from tests.dashboard.support import Pages, address, messages, row, send
from tests.server.support import Process


def show(page: Page, server: Process, view: str) -> None:
    page.goto(address(server.url, view))


def test_a_message_is_sent_and_answered(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "c-echo"}).raise_for_status()
    show(page, server, "conversation/c-echo")
    send(page, "Hello you")
    expect(messages(page).nth(0)).to_contain_text("Hello you")
    expect(messages(page).nth(1)).to_contain_text("Hello you")
    page.get_by_role("textbox", name="Message").fill("by the mouse")
    page.get_by_role("button", name="Send").click()
    expect(messages(page)).to_have_count(4)
    expect(page.locator(".badge")).to_have_text("idle")


def test_a_reply_grows_in_place_and_is_there_once(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "c-grow") as agent:
        agent.begin("Count")
        show(page, server, "conversation/c-grow")
        for number in range(30):
            agent.say(f"{number} ")
        growing = page.locator(".message.growing")
        expect(growing).to_contain_text("27 28 29")
        growing.evaluate("element => { element.dataset.seen = 'yes' }")
        agent.say("and on")
        expect(growing).to_contain_text("29 and on")
        expect(growing).to_have_attribute("data-seen", "yes")
        agent.finish("0 to 29")
        expect(growing).to_have_count(0)
        expect(messages(page)).to_have_count(2)
        expect(messages(page).nth(1)).to_contain_text("0 to 29")
        expect(messages(page).nth(1)).to_contain_text("120 tokens")


def test_tools_and_thinking_are_folded(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "c-tools") as agent:
        agent.begin("Look")
        show(page, server, "conversation/c-tools")
        agent.think("Where may it be?", "I look into the file.")
        call = agent.call("read_file", path="notes.txt")
        agent.result(call, "read_file", "first line\nsecond line\n")
        thinking = page.locator("details.thinking:not([hidden])")
        expect(thinking.first.locator("pre")).to_be_hidden()
        thinking.first.locator("summary").click()
        expect(thinking.first.locator("pre")).to_have_text("Where may it be?")
        shown = page.locator("details.call").filter(has_text="notes.txt")
        shown.locator("summary").focus()
        page.keyboard.press("Enter")
        expect(shown.locator("pre")).to_have_text("path: notes.txt")
        result = page.locator("details.result")
        expect(result.locator("pre")).to_be_hidden()
        result.locator("summary").click()
        expect(result.locator("pre")).to_contain_text("second line")


def test_an_agent_is_steered_while_it_works(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "c-steer") as agent:
        agent.begin("Go")
        show(page, server, "conversation/c-steer")
        expect(page.get_by_role("button", name="Steer")).to_be_visible()
        send(page, "Rather the other way")
        expect(page.locator(".queued")).to_contain_text("Rather the other way")
        agent.finish("gone")
        agent.claim()
        expect(page.locator(".queued")).to_have_count(0)
        expect(messages(page).nth(2)).to_contain_text("Rather the other way")


def test_cancel_by_mouse_and_by_keyboard(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "c-cancel") as agent:
        show(page, server, "conversation/c-cancel")
        button = page.get_by_role("button", name="Cancel", exact=True)
        agent.begin("Go on for ever")
        agent.say("and so on")
        expect(page.locator(".message.growing")).to_contain_text("and so on")
        button.click()
        expect(messages(page).last).to_contain_text("and so on [Cancelled]")
        expect(button).to_be_disabled()
        agent.begin("Again")
        expect(button).to_be_enabled()
        button.focus()
        page.keyboard.press("Enter")
        expect(messages(page).last).to_contain_text("[Cancelled]")
        expect(page.locator(".badge")).to_have_text("idle")


def test_a_tree_is_cancelled_at_once(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "c-tree") as top, Agent(client, "c-tree/a") as below:
        top.begin("Go")
        below.begin("Go")
        show(page, server, "conversation/c-tree")
        page.get_by_role("button", name="Cancel tree").click()
        expect(row(page, "c-tree")).to_have_attribute("data-state", "idle")
        expect(row(page, "c-tree/a")).to_have_attribute("data-state", "idle")


def test_a_session_is_paused_and_goes_on(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "c-pause"}).raise_for_status()
    show(page, server, "conversation/c-pause")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".badge")).to_have_text("paused")
    expect(row(page, "c-pause")).to_have_attribute("data-state", "paused")
    assert client.get("/v1/sessions/c-pause/settings").json()["paused"] is True
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".badge")).to_have_text("idle")
    expect(row(page, "c-pause")).to_have_attribute("data-state", "idle")


def test_fork_rename_and_delete(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions/c-fork/messages", params={"wait": "true"}, json={"content": "keep this"})
    show(page, server, "conversation/c-fork")
    page.get_by_role("button", name="Fork").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name of the copy").fill("c-fork")
    dialog.get_by_role("button", name="Fork").click()
    expect(dialog.get_by_role("alert")).to_contain_text("already")
    dialog.get_by_label("Name of the copy").fill("c-second")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#conversation/c-second$"))
    expect(messages(page).nth(1)).to_contain_text("keep this")
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New name").fill("c-third")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#conversation/c-third$"))
    expect(row(page, "c-second")).to_have_count(0)
    page.get_by_role("button", name="Delete").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(row(page, "c-third")).to_be_visible()
    page.get_by_role("button", name="Delete").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Enter")
    expect(row(page, "c-third")).to_have_count(0)
    expect(row(page, "c-fork")).to_be_visible()


def test_settings_and_transcript(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions/c-raw/messages", params={"wait": "true"}, json={"content": "one two"})
    show(page, server, "settings/c-raw")
    expect(page.get_by_label("Longest reply")).to_have_value("512")
    page.get_by_label("Longest reply").fill("77")
    page.get_by_label("Reproducible").check()
    page.get_by_role("slider", name="Temperature").fill("1.5")
    page.get_by_label("Stop texts").fill("END\nUser:")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved. The settings apply from the next turn.")).to_be_visible()
    settings = client.get("/v1/sessions/c-raw/settings").json()
    assert (settings["max_tokens"], settings["reproducible"], settings["temperature"]) == (77, True, 1.5)
    assert settings["stop"] == ["END", "User:"]
    page.get_by_role("button", name="Temperature: default").click()
    expect(page.get_by_role("slider", name="Temperature")).to_have_value("0.7")
    page.get_by_label("Longest reply").fill("0")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").filter(has_text="max_tokens")).to_be_visible()  # refused, and why
    page.get_by_role("tab", name="Transcript").click()
    raw = page.get_by_role("textbox", name="Transcript")
    expect(raw).to_have_value("User: one two\nAssistant: one two\n")
    raw.fill("User: one two\nAssistant: three\n")
    page.get_by_role("button", name="Save transcript").click()
    expect(page.get_by_text("Saved. The session now has this transcript")).to_be_visible()
    page.get_by_role("tab", name="Conversation").click()
    expect(messages(page).nth(1)).to_contain_text("three")


def test_what_sessions_say_is_text_wherever_it_stands(page: Page, server: Process, client: httpx.Client) -> None:
    evil = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    name = "<b onclick=1>&amp;\"'"
    with Agent(client, name) as agent:
        agent.begin(evil)
        agent.think(evil, evil)
        agent.write(evil, evil)
        agent.call(evil, **{evil: evil})
        agent.say(evil)
        show(page, server, f"conversation/{name}")
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        expect(page.locator(".message.growing")).to_contain_text(evil)
        for folded in page.locator("details.folded:not([hidden]) summary").all():
            folded.click()
        for view in ("Agents", "Files", "Timeline", "Transcript", "Settings", "Conversation"):
            page.get_by_role("tab", name=view).click()
            expect(page.get_by_role("tab", name=view)).to_have_attribute("aria-selected", "true")
            assert page.locator("main img, .app script, .app b[onclick]").count() == 0
        expect(page).to_have_title(f"{name} – CFS")


def test_long_conversations_show_their_end_and_more_on_demand(
    pages: Pages, server: Process, client: httpx.Client
) -> None:
    lines = "".join(f"User: question {n}\nAssistant: answer {n}\n" for n in range(300))
    client.post("/v1/sessions", json={"id": "c-long", "transcript": lines}).raise_for_status()
    page = pages.open(server.url, "conversation/c-long")
    expect(page.get_by_text("answer 299")).to_be_in_viewport()
    assert messages(page).count() == 200
    page.get_by_role("button", name="Show earlier messages (400)").click()
    expect(messages(page)).to_have_count(400)
    send(page, "newest")
    expect(messages(page)).to_have_count(402)
