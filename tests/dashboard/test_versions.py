"""The dialog with the versions of a session: what going back changes, the way back, and forward again (S17)."""

import re

import httpx
from playwright.sync_api import Locator, Page, Route, expect

from cfs.api import AGENT
from tests.dashboard.support import Pages, address, messages, violations
from tests.dashboard.test_workspace import act
from tests.server.support import Process


def talk(client: httpx.Client, session: str, *texts: str) -> None:
    """Send messages, each after the reply to the one before."""
    for text in texts:
        client.post(
            f"/v1/sessions/{session}/messages", params={"wait": "true"}, json={"content": text}
        ).raise_for_status()


def slider_of(dialog: Locator) -> Locator:
    """The slider of the dialog once it has the versions: before, it cannot be moved."""
    slider = dialog.get_by_role("slider", name="Version")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"\d"))
    return slider


def test_one_goes_back_by_the_keyboard_and_forward_again(page: Page, server: Process, client: httpx.Client) -> None:
    talk(client, "v-main", "one", "two")
    page.goto(address(server.url, "conversation/v-main"))
    expect(messages(page)).to_have_count(4)
    act(page, "Versions")
    dialog = page.get_by_role("dialog", name="Versions")
    slider = dialog.get_by_role("slider", name="Version")
    expect(slider).to_be_focused()
    expect(dialog).to_contain_text("This is how the session is now.")
    back = dialog.get_by_role("button", name="Go back to this version")
    expect(back).to_be_disabled()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", "2 · now · assistant: one")
    expect(dialog.get_by_role("listitem")).to_have_text(["−Removed user two", "−Removed assistant two"])
    assert violations(page) == []
    assert client.get("/v1/sessions/v-main").json()["messages"] == 4
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(messages(page)).to_have_count(2)
    act(page, "Versions")
    dialog.get_by_role("button", name="Undo the last rewind").click()
    expect(messages(page)).to_have_count(4)


def test_sub_sessions_go_back_too_if_one_wants_it(page: Page, server: Process, client: httpx.Client) -> None:
    talk(client, "v-tree", "one")
    talk(client, "v-tree/child", "early")
    talk(client, "v-tree", "two")
    talk(client, "v-tree/child", "late")
    listings: list[Route] = []
    page.route("**/v1/sessions?limit=*", lambda route: listings.append(route))
    page.goto(address(server.url, "conversation/v-tree"))
    with page.expect_request("**/v1/sessions?limit=*"):
        page.reload()
    act(page, "Versions")
    dialog = page.get_by_role("dialog", name="Versions")
    dialog.get_by_label("Take the sub-sessions back to the same time").check()  # before the list of sessions is there
    for listing in listings:
        listing.continue_()
    page.unroute("**/v1/sessions?limit=*")
    slider = slider_of(dialog)
    for _ in range(2):
        slider.press("ArrowLeft")
    expect(dialog.get_by_role("listitem").filter(has_text="early")).to_have_count(2)
    expect(dialog.get_by_role("listitem").filter(has_text="v-tree/child")).to_have_count(1)
    dialog.get_by_role("button", name="Go back to this version").click()
    expect(dialog).to_be_hidden()
    assert client.get("/v1/sessions/v-tree/child").json()["messages"] == 0


def test_files_go_back_and_those_of_others_only_if_one_wants_it(
    page: Page, server: Process, client: httpx.Client
) -> None:
    def put(content: str, **headers: str) -> None:
        client.put("/v1/files/workspaces/v-files/a.txt", content=content, headers=headers).raise_for_status()

    talk(client, "v-files", "one")
    put("by the agent", **{AGENT: "v-files"})
    talk(client, "v-files", "two")
    page.goto(address(server.url, "conversation/v-files"))
    act(page, "Versions")
    dialog = page.get_by_role("dialog", name="Versions")
    slider = slider_of(dialog)
    for _ in range(2):
        slider.press("ArrowLeft")
    expect(dialog.get_by_role("listitem").filter(has_text="/workspaces/v-files/a.txt")).to_contain_text("Removed")
    put("by the user")
    slider.press("ArrowLeft")
    slider.press("ArrowRight")
    expect(dialog.get_by_role("alert")).to_contain_text("others have changed files")
    dialog.get_by_label("Leave files that others have changed since").check()
    expect(dialog.get_by_role("listitem").filter(has_text="stays: others have changed it since")).to_have_count(1)
    dialog.get_by_role("button", name="Go back to this version").click()
    expect(dialog).to_be_hidden()
    expect(messages(page)).to_have_count(2)
    assert client.get("/v1/files/workspaces/v-files/a.txt").text == "by the user"


def test_the_files_of_a_copy_are_merged_after_a_look(page: Page, server: Process, client: httpx.Client) -> None:
    """What would change and what conflicts is listed before anything changes, and the conflicts stay on the screen."""

    def put(path: str, content: str) -> None:
        client.put(f"/v1/files/workspaces/{path}", content=content).raise_for_status()

    talk(client, "v-merge", "one")
    put("v-merge/a.txt", "one\n")
    client.post("/v1/sessions/v-merge/fork", json={}).raise_for_status()
    put("v-merge-2/b.txt", "new\n")
    page.goto(address(server.url, "conversation/v-merge-2"))
    act(page, "Merge files")
    dialog = page.get_by_role("dialog", name="Merge the files of v-merge-2")
    expect(dialog.get_by_label("Into the files of")).to_have_value("v-merge")
    expect(dialog.get_by_role("listitem")).to_have_text(["+Added b.txt"])
    assert violations(page) == []
    assert client.get("/v1/files/workspaces/v-merge/b.txt").status_code == 404
    dialog.get_by_label("Into the files of").fill("v-none")
    expect(dialog.get_by_role("alert")).to_contain_text("v-none")
    expect(dialog.get_by_role("button", name="Merge")).to_be_disabled()
    dialog.get_by_label("Into the files of").fill("v-merge")
    dialog.get_by_role("button", name="Merge").click()
    expect(dialog).to_be_hidden()
    assert client.get("/v1/files/workspaces/v-merge/b.txt").text == "new\n"
    put("v-merge/a.txt", "of the original\n")
    put("v-merge-2/a.txt", "of the copy\n")
    act(page, "Merge files")
    conflict = dialog.get_by_role("listitem").filter(has_text="Conflict a.txt: both have changed it")
    expect(conflict).to_contain_text("a.txt.conflict-v-merge-2")
    dialog.get_by_role("button", name="Merge").click()
    expect(dialog).to_contain_text("The merge is done. Look at these files:")
    expect(conflict).to_have_count(1)
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()
    assert client.get("/v1/files/workspaces/v-merge/a.txt").text == "of the original\n"
    assert client.get("/v1/files/workspaces/v-merge/a.txt.conflict-v-merge-2").text == "of the copy\n"


def test_in_chinese(pages: Pages, server: Process, client: httpx.Client) -> None:
    talk(client, "v-zh", "one")
    page = pages.open(server.url, locale="zh-CN")
    page.goto(f"{server.url}/#conversation/v-zh")
    page.get_by_role("button", name="会话操作").click()
    page.get_by_role("menuitem", name="版本").click()
    dialog = page.get_by_role("dialog", name="版本")
    expect(dialog.get_by_role("button", name="回到此版本")).to_be_disabled()
    expect(dialog).to_contain_text("会话现在就是这样。")
