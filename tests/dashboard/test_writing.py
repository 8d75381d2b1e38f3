"""Writing to a session: drafts, files, branches, and taking it away as a file (D2)."""

import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.dashboard.agent import Agent
from tests.dashboard.support import PHONE, Pages, address, messages, send, violations
from tests.models.support import models_server
from tests.server.support import Process

DROP = """([text, name]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([text], name, { type: "text/plain" }));
  for (const type of ["dragenter", "dragover", "drop"]) {
    const event = new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true });
    document.querySelector(".composer").dispatchEvent(event);
  }
}"""
PASTE = """([text, name]) => {
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([text], name, { type: "text/plain" }));
  const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
  document.querySelector(".composer textarea").dispatchEvent(event);
}"""


def show(page: Page, server: Process, session: str) -> None:
    page.goto(address(server.url, f"conversation/{session}"))


def talked(client: httpx.Client, session: str, *texts: str) -> None:
    """Say something, and wait for each answer, which is the same."""
    for text in texts:
        body = {"content": text}
        client.post(f"/v1/sessions/{session}/messages", params={"wait": "true"}, json=body).raise_for_status()


def test_a_draft_is_kept_for_each_session(page: Page, server: Process, client: httpx.Client) -> None:
    for name in ("w-one", "w-two"):
        client.post("/v1/sessions", json={"id": name}).raise_for_status()
    field = page.get_by_role("textbox", name="Message")
    show(page, server, "w-one")
    field.fill("half a thought")
    show(page, server, "w-two")
    expect(field).to_have_value("")
    page.reload()
    show(page, server, "w-one")
    expect(field).to_have_value("half a thought")
    field.press("Enter")
    expect(messages(page)).to_have_count(2)
    page.reload()
    expect(messages(page)).to_have_count(2)
    expect(field).to_have_value("")


def test_send_waits_for_something_to_send(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "w-empty"}).raise_for_status()
    show(page, server, "w-empty")
    field, button = page.get_by_role("textbox", name="Message"), page.get_by_role("button", name="Send")
    expect(button).to_be_disabled()
    field.fill("  \n ")
    expect(button).to_be_disabled()
    field.fill("hello")
    expect(button).to_be_enabled()
    field.fill("")
    expect(button).to_be_disabled()
    page.evaluate(DROP, ["one", "a.txt"])
    expect(button).to_be_enabled()
    button.click()
    expect(messages(page)).to_have_count(2)
    expect(button).to_be_disabled()


def test_a_field_grows_with_its_text_and_enter_sends(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "w-lines"}).raise_for_status()
    show(page, server, "w-lines")
    field = page.get_by_role("textbox", name="Message")
    before = field.bounding_box()
    field.fill("one")
    for line in ("two", "three", "four"):
        field.press("Shift+Enter")
        field.press_sequentially(line)
    after = field.bounding_box()
    assert before is not None
    assert after is not None
    assert after["height"] >= before["height"] + 48
    field.press("Enter")
    expect(messages(page).first).to_contain_text("four")
    assert client.get("/v1/sessions/w-lines").json()["history"][0]["content"] == "one\ntwo\nthree\nfour"


def test_what_could_not_be_sent_is_not_lost(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "w-lost"}).raise_for_status()
    show(page, server, "w-lost")
    page.route("**/messages", lambda route: route.abort())
    send(page, "do not lose this")
    expect(page.locator(".composer .complaint")).not_to_be_empty()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("do not lose this")
    page.unroute("**/messages")
    page.get_by_role("button", name="Send").click()
    expect(messages(page).first).to_contain_text("do not lose this")


def test_files_are_attached_and_named(page: Page, server: Process, client: httpx.Client, tmp_path: Path) -> None:
    client.post("/v1/sessions", json={"id": "w-files/sub"}).raise_for_status()
    show(page, server, "w-files/sub")
    file = tmp_path / "data.csv"
    file.write_text("a,b\n1,2\n")
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Attach files").click()
    chosen.value.set_files(file)
    attached = page.locator(".attached")
    expect(attached).to_have_attribute("data-state", "there")
    page.evaluate(DROP, ["dropped", "data.csv"])
    page.evaluate(PASTE, ["pasted", "note.txt"])
    expect(attached.nth(1).locator(".name")).to_have_text("data-2.csv")  # the first one is not overwritten
    expect(attached.nth(2)).to_have_attribute("data-state", "there")
    page.get_by_role("button", name="Remove note.txt").click()
    send(page, "Sum it up")
    expect(attached).to_have_count(0)
    said = client.get("/v1/sessions/w-files/sub").json()["history"][0]["content"]
    assert said == "Sum it up\n\nAttached files in the workspace:\n- `data.csv`\n- `data-2.csv`"
    expect(messages(page).first.locator("li code")).to_have_text(["data.csv", "data-2.csv"])
    assert client.get("/v1/files/workspaces/w-files/data.csv").text == "a,b\n1,2\n"
    assert client.get("/v1/files/workspaces/w-files/data-2.csv").text == "dropped"


def test_a_file_that_is_refused_says_why(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "w-refused"}).raise_for_status()
    show(page, server, "w-refused")
    page.route("**/v1/files/**", lambda route: route.fulfill(status=507, json={"detail": "the store is full"}))
    page.evaluate(DROP, ["x", "x.txt"])
    expect(page.locator(".attached")).to_have_attribute("data-state", "failed")
    expect(page.locator(".attached")).to_contain_text("the store is full")
    send(page, "without it")
    expect(messages(page).first).not_to_contain_text("x.txt")


def test_an_edit_begins_a_branch_and_nothing_is_lost(page: Page, server: Process, client: httpx.Client) -> None:
    talked(client, "w-edit", "first", "second")
    show(page, server, "w-edit")
    messages(page).nth(2).get_by_role("button", name="Edit in a new branch").click()
    field = page.get_by_role("textbox", name="Edit message")
    expect(field).to_have_value("second")
    field.press("Escape")
    expect(field).to_have_count(0)
    page.keyboard.press("Enter")  # the button has the focus again
    field.fill("second, other words")
    field.press("Enter")
    expect(page).to_have_url(re.compile("#conversation/w-edit-2$"))
    expect(messages(page).nth(3)).to_contain_text("second, other words")
    switcher = page.get_by_role("group", name="Branch 2 of 2")
    expect(messages(page).nth(2).locator(".switcher")).to_have_count(1)
    switcher.get_by_role("button", name="Previous branch").click()
    expect(page).to_have_url(re.compile("#conversation/w-edit$"))
    expect(messages(page)).to_have_count(4)
    expect(messages(page).nth(2)).not_to_contain_text("other words")
    page.get_by_role("group", name="Branch 1 of 2").get_by_role("button", name="Next branch").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#conversation/w-edit-2$"))
    assert client.get("/v1/sessions/w-edit").json()["messages"] == 4


def test_a_reply_is_made_again_and_branched_from(page: Page, server: Process, client: httpx.Client) -> None:
    talked(client, "w-again", "one", "two")
    show(page, server, "w-again")
    messages(page).nth(1).get_by_role("button", name="Answer again in a new branch").click()
    expect(page).to_have_url(re.compile("#conversation/w-again-2$"))
    expect(messages(page)).to_have_count(2)
    expect(page.get_by_role("group", name="Branch 2 of 2")).to_be_visible()
    show(page, server, "w-again")
    messages(page).nth(1).get_by_role("button", name="Branch from here").click()
    expect(page).to_have_url(re.compile("#conversation/w-again-3$"))
    expect(messages(page)).to_have_count(2)
    send(page, "another way")
    expect(messages(page)).to_have_count(4)
    expect(messages(page).nth(2).locator(".switcher")).to_contain_text("2/2")
    assert violations(page) == []


def test_the_last_message_is_edited_by_a_key(page: Page, server: Process, client: httpx.Client) -> None:
    talked(client, "w-key", "one", "two")
    show(page, server, "w-key")
    expect(messages(page)).to_have_count(4)
    page.get_by_role("region", name="Messages of w-key").focus()
    page.keyboard.press("e")
    expect(page.get_by_role("textbox", name="Edit message")).to_have_value("two")


def test_times_and_figures_stay_after_a_reload(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "w-times") as agent:
        agent.begin("Go")
        show(page, server, "w-times")
        agent.finish("done", prompt_tokens=1000, completion_tokens=200)
        reply = messages(page).nth(1)
        expect(reply).to_contain_text("1.2k tokens")
        time = reply.locator("time")
        seen = time.get_attribute("datetime")
        page.reload()
        expect(reply).to_contain_text("1.2k tokens")
        expect(time).to_have_attribute("datetime", seen or "")
        figure = reply.get_by_role("note")
        expect(figure).to_have_attribute("aria-label", re.compile("Tokens that the model read: 1000"))
        figure.focus()
        expect(page.locator(".tooltip")).to_contain_text("Tokens that it wrote: 200")
        page.keyboard.press("Tab")
        expect(page.locator(".tooltip")).to_be_hidden()


@pytest.mark.parametrize(("item", "name"), [("markdown", "md"), ("JSON", "json"), ("transcript", "txt")])
def test_a_session_is_exported(
    page: Page, server: Process, client: httpx.Client, tmp_path: Path, item: str, name: str
) -> None:
    talked(client, f"w-export-{name}", "one\ntwo")
    show(page, server, f"w-export-{name}")
    expect(messages(page)).to_have_count(2)
    page.get_by_role("button", name="Actions of the session").click()
    with page.expect_download() as saved:
        page.get_by_role("menuitem", name=re.compile(f"Export.*{item}")).click()
    assert saved.value.suggested_filename == f"w-export-{name}.{name}"
    saved.value.save_as(tmp_path / "file")
    text = (tmp_path / "file").read_text()
    if name == "json":
        assert [each["role"] for each in json.loads(text)["history"]] == ["user", "assistant"]
    elif name == "txt":
        assert text == client.get(f"/v1/sessions/w-export-{name}", headers={"Accept": "text/plain"}).text
    else:
        assert re.search(r"^# .*\n\n## User · .* UTC\n\none\ntwo\n\n## Assistant", text)


def test_a_phone_has_all_actions_by_touch(pages: Pages, server: Process, client: httpx.Client) -> None:
    talked(client, "w-touch", "one")
    page = pages.open(server.url, "conversation/w-touch", viewport=PHONE, is_mobile=True, has_touch=True)
    expect(messages(page)).to_have_count(2)
    for name in ("Copy message", "Edit in a new branch", "Answer again in a new branch", "Branch from here", "Send"):
        action = page.get_by_role("button", name=name).last
        expect(action).to_be_visible()
        box = action.evaluate("(button) => [button.offsetWidth, button.offsetHeight]")
        assert min(box) >= 40, name
    page.get_by_role("button", name="Edit in a new branch").tap()
    page.get_by_role("textbox", name="Edit message").fill("other")
    page.locator(".editor").get_by_role("button", name="Send").tap()
    expect(messages(page).nth(1)).to_contain_text("other")
    assert violations(page) == []


def test_a_button_that_is_held_down_is_not_replaced(page: Page, server: Process, client: httpx.Client) -> None:
    """The figures of a turn come after its message: what is pressed meanwhile stays, and does what it says."""
    with Agent(client, "w-held") as agent:
        agent.begin("Go").finish("done")
    client.patch("/v1/sessions/w-held/settings", json={"driver": "model"}).raise_for_status()
    late: list[Route] = []
    page.route(re.compile("/w-held/events"), lambda route: late.append(route))
    show(page, server, "w-held")
    reply = messages(page).nth(1)
    reply.get_by_role("button", name="Branch from here").focus()
    page.keyboard.down("Space")
    while not late:
        page.wait_for_timeout(10)
    assert reply.get_by_role("note").count() == 0
    for route in late:
        route.continue_()
    expect(reply.get_by_role("note")).to_have_count(1)
    page.keyboard.up("Space")
    expect(page).to_have_url(re.compile("#conversation/w-held-2$"))


def test_memory_of_a_long_conversation_is_bounded(page: Page, server: Process, client: httpx.Client) -> None:
    """Early messages leave the page's memory and come back when one looks at them."""
    lines = "".join(f"User: question {n} {'x' * 900}\nAssistant: answer {n}\n" for n in range(400))
    client.post("/v1/sessions", json={"id": "w-long", "transcript": lines}).raise_for_status()
    show(page, server, "w-long")
    expect(page.get_by_text("answer 399")).to_be_in_viewport()
    shown = messages(page).count()
    assert shown < 300
    page.get_by_role("button", name=re.compile("Show earlier messages")).click()
    expect(messages(page)).to_have_count(shown + 200)
    expect(messages(page).first).to_contain_text("x" * 900)


def test_the_model_is_chosen_beside_the_message(pages: Pages, tmp_path: Path) -> None:
    """For a session that begins, and for each turn after that; a menu of one model is not shown."""
    with models_server(tmp_path) as server:
        page = pages.open(server.url)
        page.get_by_role("button", name="Model: one").click()
        expect(page.get_by_role("menuitemradio", name="one (default)")).to_have_attribute("aria-checked", "true")
        page.get_by_role("menuitemradio", name="two").click()
        expect(page.get_by_role("button", name="Model: two")).to_be_visible()
        send(page, "hello")
        expect(messages(page).nth(1)).to_contain_text("hello")  # the reply, so the model was asked
        assert server.asked() == {"one": 0, "two": 1}
        menu = page.get_by_role("button", name="Model: two")
        menu.press("Enter")
        assert violations(page) == []
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Model: one")).to_be_visible()
        send(page, "and now?")
        expect(messages(page).nth(3)).to_contain_text("and now?")
        assert server.asked() == {"one": 1, "two": 1}


def test_a_server_with_one_model_has_no_menu_of_models(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "w-model"}).raise_for_status()
    with page.expect_response("**/v1/models"):
        show(page, server, "w-model")
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Model"))).to_have_count(0)
