"""One session: what is said in it, as it is said, and what can be done to it (D2)."""

import re

import httpx
from playwright.sync_api import Page, Route, expect

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


def test_a_late_highlighting_of_the_first_lines_does_not_hide_the_others(
    page: Page, server: Process, client: httpx.Client
) -> None:
    held: list[Route] = []
    with Agent(client, "c-late") as agent:
        agent.begin("Look")
        show(page, server, "conversation/c-late")
        call = agent.call("read_file", path="notes.py")
        box = page.get_by_role("group", name="read_file notes.py")
        expect(box).to_have_attribute("data-state", "running")
        expect(page.locator(".text .plain")).to_have_count(0)
        page.route("**/v1/render", lambda route: held.append(route))
        with page.expect_request("**/v1/render"):
            agent.result(call, "read_file", "".join(f"line {number}\n" for number in range(40)))
        box.get_by_role("button", name="Show all 40 lines").click()
        with page.expect_request("**/v1/render"):  # for all lines, once there is an answer for the first ones
            held.pop().continue_()
        assert "line 39" in box.inner_text()
        held.pop().continue_()
        expect(box.locator("pre span").first).to_be_attached()
        expect(box).to_contain_text("line 39")


def test_a_call_and_its_result_are_one_box(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "c-tools") as agent:
        agent.begin("Look")
        show(page, server, "conversation/c-tools")
        agent.think("Where may it be?", "I look into the file.")
        call = agent.call("read_file", path="notes.txt", start_line=2)
        box = page.get_by_role("group", name="read_file notes.txt")
        expect(box).to_have_attribute("data-state", "running")
        expect(box.locator(".value")).to_have_text("start_line2")
        lines = "".join(f"line {number}\n" for number in range(40))
        agent.result(call, "read_file", lines)
        expect(box).to_have_attribute("data-state", "done")
        expect(box).to_contain_text("line 5")
        expect(box).not_to_contain_text("line 6")
        box.get_by_role("button", name="Show all 40 lines").click()
        expect(box).to_contain_text("line 39")
        thinking = page.locator("details.thinking:not([hidden])")
        expect(thinking.locator("pre")).to_be_hidden()
        thinking.locator("summary").focus()
        page.keyboard.press("Enter")
        expect(thinking.locator("pre")).to_have_text("Where may it be?")
        failing = agent.call("run_command", command="false")
        agent.result(failing, "run_command", '{"stdout": "", "stderr": "oh no", "exit_code": 3}')
        command = page.get_by_role("group", name="run_command")
        expect(command).to_have_attribute("data-state", "failed")
        expect(command.locator(".command code")).to_have_text("false")  # beside the name of its language
        expect(command).to_contain_text("oh no")
        expect(command).to_contain_text("exit code 3")


def test_a_task_of_two_files_takes_two_boxes(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "c-two") as agent:
        agent.begin("Make two files")
        agent.write("a.py", "def main():\n    return 1\n")
        agent.write("b.md", "# Notes\n")
        agent.finish("They are there.")
    show(page, server, "conversation/c-two")
    expect(messages(page)).to_have_count(4)
    boxes = page.locator("cfs-call")
    expect(boxes).to_have_count(2)
    expect(boxes.nth(0).locator(".k")).to_have_text(["def", "return"])  # highlighted by the name of the file
    expect(boxes.nth(1)).to_contain_text("created b.md")


def test_a_reply_is_rendered_and_its_code_copied(pages: Pages, server: Process, client: httpx.Client) -> None:
    text = "A **bold** word:\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    client.post("/v1/sessions", json={"id": "c-mark", "messages": said(text)}).raise_for_status()
    page = pages.open(server.url, "conversation/c-mark", permissions=["clipboard-read", "clipboard-write"])
    reply = messages(page).nth(1)
    expect(reply.locator("strong")).to_have_text("bold")
    expect(reply.locator("td")).to_have_text(["1", "2"])
    reply.get_by_role("button", name="Copy code").click()
    expect(reply.get_by_role("status").filter(has_text="Copied")).to_be_attached()
    assert page.evaluate("() => navigator.clipboard.readText()") == "print(1)"
    reply.get_by_role("button", name="Copy message").click()
    page.wait_for_function("expected => navigator.clipboard.readText().then(text => text === expected)", arg=text)


def said(reply: str, question: str = "Go on") -> list[dict[str, str]]:
    """A question and its answer."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]


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


def test_a_turn_is_stopped_by_mouse_and_by_keyboard(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "c-cancel") as agent:
        show(page, server, "conversation/c-cancel")
        button = page.get_by_role("button", name="Stop", exact=True)
        agent.begin("Go on for ever")
        agent.say("and so on")
        expect(page.locator(".message.growing")).to_contain_text("and so on")
        button.click()
        expect(messages(page).last).to_contain_text("and so on [Cancelled]")
        expect(button).to_be_hidden()
        agent.begin("Again")
        expect(button).to_be_visible()
        page.get_by_role("textbox", name="Message").focus()
        page.keyboard.press("Escape")
        expect(messages(page).last).to_contain_text("[Cancelled]")
        expect(page.locator(".badge")).to_have_text("cancelled")


def test_a_tree_is_stopped_at_once(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "c-tree") as top, Agent(client, "c-tree/a") as below:
        top.begin("Go")
        below.begin("Go")
        show(page, server, "conversation/c-tree")
        page.get_by_role("button", name="Stop tree").click()
        expect(row(page, "c-tree")).to_have_attribute("data-state", "idle")
        expect(row(page, "c-tree/a")).to_have_attribute("data-state", "idle")


def test_a_running_agent_is_paused_and_goes_on(page: Page, server: Process, client: httpx.Client) -> None:
    """There is nothing to pause where no agent runs."""
    with Agent(client, "c-pause") as agent:
        agent.begin("Go")
        show(page, server, "conversation/c-pause")
        act(page, "Pause")
        expect(page.locator(".badge")).to_have_text("paused")
        expect(row(page, "c-pause")).to_have_attribute("data-state", "paused")
        assert client.get("/v1/sessions/c-pause/settings").json()["paused"] is True
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".badge")).to_have_text("working")
        agent.finish("done")
        expect(page.locator(".badge")).to_have_text("finished")
        page.get_by_role("button", name="Actions of the session").click()
        expect(page.get_by_role("menuitem", name="Rename")).to_be_visible()
        expect(page.get_by_role("menuitem", name="Pause")).to_have_count(0)


def act(page: Page, name: str) -> None:
    """Choose an action of the session's menu."""
    page.get_by_role("button", name="Actions of the session").click()
    page.get_by_role("menuitem", name=name).click()


def test_copy_rename_and_delete(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions/c-fork/messages", params={"wait": "true"}, json={"content": "keep this"})
    show(page, server, "conversation/c-fork")
    act(page, "Copy session")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name of the copy").fill("c-fork")
    dialog.get_by_role("button", name="Copy").click()
    expect(dialog.get_by_role("alert")).to_contain_text("already")
    dialog.get_by_label("Name of the copy").fill("c-second")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#conversation/c-second$"))
    expect(messages(page).nth(1)).to_contain_text("keep this")
    expect(row(page, "c-fork")).to_contain_text("keep this")
    expect(row(page, "c-fork")).not_to_contain_text("c-fork")
    expect(row(page, "c-second")).to_contain_text("keep this (c-second)")
    act(page, "Rename")
    page.get_by_label("New name").fill("c-third")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#conversation/c-third$"))
    expect(row(page, "c-second")).to_have_count(0)
    act(page, "Delete")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(row(page, "c-third")).to_be_visible()
    page.get_by_role("button", name="Actions of the session").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("End")
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
        client.post("/v1/sessions", json={"id": f"{name}/below"}).raise_for_status()
        show(page, server, f"conversation/{name}")
        expect(page.get_by_role("heading", level=1)).to_have_text(evil)  # what was written first is its title
        expect(page.get_by_role("navigation", name="Path")).to_have_text(name)
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
