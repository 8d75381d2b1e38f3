"""Files and who changed them, agents side by side, and who ran when (D2, D3)."""

import os
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect

from tests.dashboard.agent import Agent
from tests.dashboard.support import QUIET, Pages, address, messages
from tests.server.support import Process, serving


def test_files_their_contents_and_who_changed_what(page: Page, server: Process, client: httpx.Client) -> None:
    client.put("/v1/files/workspaces/w-files/kept.txt", content=b"as it is\n").raise_for_status()
    with Agent(client, "w-files") as lead, Agent(client, "w-files/coder") as coder:
        lead.begin("Create")
        coder.begin("Write it")
        coder.write("/workspace/a.txt", "one\ntwo\nthree\n")
        page.goto(address(server.url, "files/w-files"))
        expect(page.locator("pre.content")).to_have_text("one\ntwo\nthree\n")
        call = coder.call("edit_file", path="a.txt", old="two", new="2")
        coder.result(call, "edit_file", "changed a.txt")
        call = coder.call("write_file", path="no.txt", content="x")
        coder.result(call, "write_file", "Error: refused")
        expect(page.locator(".change")).to_have_count(2)
        newest = page.locator(".change").first
        expect(newest.locator(".removed")).to_have_text("- two")
        expect(newest.locator(".added")).to_have_text("+ 2")
        expect(newest.get_by_role("link")).to_have_text("w-files/coder")
        expect(page.locator("pre.content")).to_have_text("one\n2\nthree\n")
        page.get_by_role("button", name="kept.txt").click()
        expect(page.locator("pre.content")).to_have_text("as it is\n")
        expect(page.get_by_role("button", name="no.txt")).to_have_count(0)


def test_names_that_are_no_paths_hide_no_other_file(pages: Pages, tmp_path: Path) -> None:
    root = tmp_path / "workspaces/main"
    root.mkdir(parents=True)
    for name in (b"\xff", b"a\nb", b"back\\slash", b"100% & <b>.txt", "\u202etxt".encode()):
        (root / os.fsdecode(name)).write_text("one of them")
    with serving(*QUIET, "--data-dir", str(tmp_path)) as server:
        httpx.post(f"{server.url}/v1/sessions", json={"id": "main"}).raise_for_status()
        page = pages.open(server.url)
        page.goto(address(server.url, "files/main"))
        expect(page.locator("button.choose")).to_have_count(2)
        page.get_by_role("button", name="100% & <b>.txt").click()
        expect(page.locator("pre.content")).to_have_text("one of them")
        page.goto("about:blank")  # it would look for a server that has ended


def test_agents_stand_side_by_side(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "w-team") as lead, Agent(client, "w-team/a") as one, Agent(client, "w-team/b") as other:
        lead.begin("Create")
        page.goto(address(server.url, "agents/w-team"))
        expect(page.locator(".column")).to_have_count(1)
        one.begin("First")
        other.begin("Second")
        expect(page.locator(".column")).to_have_count(3)
        one.say("I am one")
        other.say("I am the other")
        columns = page.get_by_role("region", name="Messages of")
        expect(columns.nth(1)).to_contain_text("I am one")
        expect(columns.nth(2)).to_contain_text("I am the other")
        expect(columns.nth(1)).not_to_contain_text("other")
        page.get_by_role("link", name="b", exact=True).click()
        expect(messages(page).nth(1)).to_contain_text("I am the other")


def test_the_timeline_shows_the_past_and_the_present(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "w-time") as lead, Agent(client, "w-time/coder") as coder:
        lead.begin("Create")
        coder.begin("Write it")
        coder.write("a.txt", "a")
        coder.finish("done")
        page.goto(address(server.url, "timeline/w-time"))
        page.reload()  # what has been is asked for
        expect(page.locator(".bar")).to_have_count(2)
        expect(page.locator(".bar.running")).to_have_count(1)
        expect(page.locator(".tick")).to_have_count(1)
        lead.finish("all done")
        expect(page.locator(".bar.stop")).to_have_count(2)
        page.get_by_text("Show as a table").click()
        expect(page.get_by_role("row")).to_have_count(3)
