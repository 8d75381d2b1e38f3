"""The views of agents: their header, columns side by side, files and their versions, and who ran when (D2, D3)."""

import os
from pathlib import Path

import httpx
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.agent import Agent
from tests.dashboard.support import PHONE, QUIET, Pages, address, messages, row, violations
from tests.server.support import Process, serving


def entry(page: Page, name: str) -> Locator:
    """A file in the list of files."""
    return page.locator(".files").get_by_role("treeitem", name=name)


def act(page: Page, name: str) -> None:
    """Choose an action from the menu of the session."""
    page.get_by_role("button", name="Actions of the session").click()
    page.get_by_role("menuitem", name=name).click()


def test_files_their_contents_and_who_changed_what(page: Page, server: Process, client: httpx.Client) -> None:
    client.put("/v1/files/workspaces/w-files/kept.txt", content=b"as it is\n").raise_for_status()
    with Agent(client, "w-files") as lead, Agent(client, "w-files/coder") as coder:
        lead.begin("Create")
        coder.begin("Write it")
        coder.write("/workspace/src/a.txt", "one\ntwo\nthree\n")
        page.goto(address(server.url, "files/w-files"))
        content = page.locator(".numbered code")
        expect(content).to_have_text("one\ntwo\nthree\n")
        call = coder.call("edit_file", path="src/a.txt", old="two", new="2")
        expect(page.locator(".version")).to_have_count(2)
        expect(page.locator(".version").first).to_contain_text("is being written")
        coder.result(call, "edit_file", "changed a.txt")
        call = coder.call("write_file", path="no.txt", content="x")
        coder.result(call, "write_file", "Error: refused")
        expect(content).to_have_text("one\n2\nthree\n")
        page.locator(".version").last.click()
        expect(content).to_have_text("one\ntwo\nthree\n")
        page.locator(".version").first.click()
        page.get_by_role("button", name="Changes").click()
        expect(page.locator(".diff .removed")).to_contain_text("two")
        expect(page.locator(".diff .added")).to_contain_text("2")
        expect(page.locator(".change").get_by_role("link")).to_have_text("w-files/coder")
        page.get_by_role("button", name="Contents").click()
        entry(page, "kept.txt").click()
        expect(content).to_have_text("as it is\n")
        expect(entry(page, "no.txt")).to_have_count(0)
        with page.expect_download() as saving:
            page.get_by_role("button", name="Download").click()
        assert Path(saving.value.path()).read_bytes() == b"as it is\n"
        assert saving.value.suggested_filename == "kept.txt"


def test_a_long_line_shows_which_words_changed_and_both_layouts(
    pages: Pages, server: Process, client: httpx.Client
) -> None:
    with Agent(client, "w-words") as agent:
        agent.begin("Write")
        agent.write("till.py", "def bill(count):\n    return count * RATE\n")
        agent.write("till.py", "def bill(count):\n    return count * (1 + RATE)\n")
        page = pages.open(server.url, "files/w-words", viewport={"width": 1440, "height": 900})
        page.get_by_role("button", name="Changes").click()
        page.get_by_role("button", name="Inline").click()
        expect(page.locator(".diff.inline ins")).to_have_text(["(1 + ", ")"])
        page.get_by_role("button", name="Side by side").click()
        expect(page.locator(".diff.sides .pair").first.locator(".text")).to_have_text(["def bill(count):"] * 2)
        page.reload()
        page.get_by_role("button", name="Changes").click()
        expect(page.locator(".diff.sides")).to_be_visible()  # as it was chosen
        assert violations(page) == []


def test_the_list_of_files_is_used_by_keys(page: Page, server: Process, client: httpx.Client) -> None:
    for name in ("docs/one.md", "docs/two.md", "last.txt"):
        client.put(f"/v1/files/workspaces/w-keys/{name}", content=name.encode()).raise_for_status()
    client.post("/v1/sessions", json={"id": "w-keys"}).raise_for_status()
    page.goto(address(server.url, "files/w-keys"))
    expect(page.locator(".numbered code")).to_have_text("docs/one.md")
    entry(page, "one.md").focus()
    page.keyboard.press("ArrowLeft")
    expect(entry(page, "docs")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(entry(page, "docs")).to_have_attribute("aria-expanded", "false")
    expect(entry(page, "two.md")).to_have_count(0)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".numbered code")).to_have_text("last.txt")


def test_names_that_are_no_paths_hide_no_other_file(pages: Pages, tmp_path: Path) -> None:
    root = tmp_path / "workspaces/main"
    root.mkdir(parents=True)
    for name in (b"\xff", b"a\nb", b"back\\slash", b"100% & <b>.txt", "\u202etxt".encode()):
        (root / os.fsdecode(name)).write_text("one of them")
    with serving(*QUIET, "--data-dir", str(tmp_path)) as server:
        httpx.post(f"{server.url}/v1/sessions", json={"id": "main"}, timeout=60).raise_for_status()
        page = pages.open(server.url)
        page.goto(address(server.url, "files/main"))
        expect(page.locator(".choose")).to_have_count(2)
        entry(page, "100% & <b>.txt").click()
        expect(page.locator(".numbered code")).to_have_text("one of them")
        page.goto("about:blank")  # it would look for a server that has ended


def test_a_phone_shows_the_list_of_files_or_a_file(pages: Pages, server: Process, client: httpx.Client) -> None:
    client.put("/v1/files/workspaces/w-small/a.txt", content=b"small\n").raise_for_status()
    client.post("/v1/sessions", json={"id": "w-small"}).raise_for_status()
    page = pages.open(server.url, "files/w-small", viewport=PHONE, is_mobile=True, has_touch=True)
    entry(page, "a.txt").tap()
    expect(page.locator(".numbered code")).to_have_text("small\n")
    expect(entry(page, "a.txt")).to_be_hidden()
    page.get_by_role("button", name="Files", exact=True).tap()
    expect(entry(page, "a.txt")).to_be_focused()


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
        page.locator(".column").get_by_role("link", name="b", exact=True).click()
        expect(messages(page).nth(1)).to_contain_text("I am the other")


def test_a_column_shows_plan_jobs_and_budget(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "w-plans") as lead:
        lead.begin("Create")
        page.goto(address(server.url, "agents/w-plans"))
        work = page.locator(".column cfs-work")
        expect(work).to_be_hidden()
        steps = [{"text": "write <b>it</b>", "status": "completed"}, {"text": "test it", "status": "in_progress"}]
        lead.report(plan=steps, budget={"limit": "$0.50", "cost": 0.25})
        expect(work.get_by_role("list", name="Plan").get_by_role("listitem")).to_have_text(
            ["write <b>it</b> (done)", "test it (in progress)"]
        )
        expect(work).to_contain_text("of $0.50 spent")
        jobs = [{"id": 1, "command": "make test", "state": "exit status 2"}]
        lead.report(jobs=jobs, budget={"limit": "1000", "tokens": 400})
        expect(work.get_by_role("list", name="Jobs")).to_have_text("make test job 1: exit status 2")
        expect(work).to_contain_text("400 of 1000 tokens spent, 600 left")
        page.reload()
        expect(work).to_contain_text("make test")
        assert violations(page) == []


def test_a_column_scrolls_under_the_pointer_and_by_keys(page: Page, server: Process, client: httpx.Client) -> None:
    text = "User: go on\nAssistant: " + "\n\n".join(f"paragraph {number}" for number in range(60)) + "\n"
    for name in ("left", "right"):
        client.post("/v1/sessions", json={"id": f"w-scroll/{name}", "transcript": text}).raise_for_status()
    page.goto(address(server.url, "agents/w-scroll"))
    left, right = (
        page.locator(".column", has=page.get_by_role("heading", name=name)).locator(".messages")
        for name in ("left", "right")
    )
    for region in (left, right):
        expect(region).to_contain_text("paragraph 59")
    expect(left).to_have_attribute("data-end", "")
    left.hover()
    page.mouse.wheel(0, -400)
    expect(left).not_to_have_attribute("data-end", "")
    expect(right).to_have_attribute("data-end", "")
    right.focus()
    page.keyboard.press("PageUp")
    expect(right).not_to_have_attribute("data-end", "")


def test_a_column_says_what_its_agent_does_and_how_it_ended(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "w-ends") as lead:
        lead.begin("Create")
        ends = {}
        for name in ("done", "poor", "stopped", "doubted", "broken"):
            ends[name] = Agent(client, f"w-ends/{name}").begin("Work")
        page.goto(address(server.url, "agents/w-ends"))

        def column(name: str) -> Locator:
            return page.get_by_role("group", name=f"w-ends/{name}", exact=True)

        ends["done"].call("execute_command", command="pytest -q")
        expect(column("done").locator(".doing")).to_contain_text("execute_command pytest -q")
        ends["done"].call("sys_finish_task", status="success", summary="All tests pass.")
        ends["done"].finish("All tests pass.")
        ends["poor"].fail("the token budget of poor is used up: 20,114 of 20,000")
        client.post("/v1/sessions/w-ends/stopped/cancel", json={}).raise_for_status()
        ends["doubted"].finish("[doubted unverified]\nI wrote a.txt.\nclaimed, but not there: a.txt")
        ends["broken"].fail("it got the same error 5 times")
        for name, words, text in (
            ("done", "finished", "All tests pass."),
            ("poor", "out of budget", "20,114 of 20,000"),
            ("stopped", "cancelled", ""),
            ("doubted", "not verified", "claimed, but not there: a.txt"),
            ("broken", "failed", "the same error 5 times"),
        ):
            expect(column(name).locator(".badge")).to_have_text(words)
            expect(column(name).locator(".ended")).to_contain_text(words)
            expect(column(name).locator(".ended")).to_contain_text(text)
        assert violations(page) == []
        page.get_by_role("button", name="Working", exact=True).click()
        expect(page.locator(".column")).to_have_count(1)
        page.get_by_role("button", name="Done", exact=True).click()
        expect(page.locator(".column")).to_have_count(5)


def test_neighbours_have_colours_of_their_own_in_every_view(page: Page, server: Process, client: httpx.Client) -> None:
    names = ["w-hue", *(f"w-hue/{name}" for name in "bca")]
    for name in names:
        client.post("/v1/sessions", json={"id": name}).raise_for_status()
    agents = [Agent(client, name).begin("Go") for name in names]
    page.goto(address(server.url, "agents/w-hue"))

    def colours(selector: str, name: str) -> list[str]:
        found = page.locator(selector)
        expect(found).to_have_count(len(names))
        return [str(found.nth(at).get_attribute(name)) for at in range(len(names))]

    order = dict(zip(colours(".column", "aria-label"), colours(".column", "data-agent"), strict=True))
    assert order == {"w-hue": "0", "w-hue/b": "1", "w-hue/c": "2", "w-hue/a": "3"}
    page.get_by_role("tab", name="Timeline").click()
    assert dict(zip(colours(".lane", "aria-label"), colours(".lane", "data-agent"), strict=True)) == order
    page.reload()
    assert dict(zip(colours(".lane", "aria-label"), colours(".lane", "data-agent"), strict=True)) == order
    for agent in agents:
        agent.finish("done")


def test_the_timeline_shows_the_past_and_the_present(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "w-time") as lead, Agent(client, "w-time/coder") as coder:
        lead.begin("Create")
        coder.begin("Write it")
        coder.write("a.txt", "a")
        coder.finish("done")
        page.goto(address(server.url, "timeline/w-time"))
        page.reload()  # what has been is asked for
        expect(page.locator(".turn")).to_have_count(2)
        expect(page.locator(".turn.running")).to_have_count(1)
        expect(page.locator(".now")).to_be_visible()
        expect(page.locator(".tick")).to_have_count(1)
        lead.finish("all done")
        expect(page.locator(".turn.stop")).to_have_count(2)
        expect(page.locator(".now")).to_be_hidden()
        page.get_by_text("Show as a table").click()
        expect(page.get_by_role("row")).to_have_count(3)


def test_a_question_is_seen_in_columns_and_in_the_timeline(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "w-asks") as lead, Agent(client, "w-asks/coder") as coder:
        lead.begin("Create")
        coder.begin("Write it")
        page.goto(address(server.url, "agents/w-asks"))
        column = page.get_by_role("group", name="w-asks/coder", exact=True)
        expect(column.locator(".badge").first).to_have_text("working")
        question = coder.ask("rm -r build")
        expect(column.locator(".badge").first).to_have_text("asks you")
        page.goto(address(server.url, "timeline/w-asks"))
        page.reload()
        expect(page.locator(".ask.running")).to_have_count(1)
        client.post(f"/v1/sessions/w-asks/coder/questions/{question}", json={"answer": "deny"}).raise_for_status()
        expect(page.locator(".ask.stop")).to_have_count(1)
        page.locator(".ask").focus()
        expect(page.get_by_role("tooltip")).to_contain_text("Question: rm -r build")
        expect(page.get_by_role("tooltip")).to_contain_text("deny")


def test_the_timeline_is_used_by_keys(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "w-zoom") as lead, Agent(client, "w-zoom/coder") as coder:
        lead.begin("Create")
        lead.finish("all done")
        coder.begin("Write it")
        coder.write("a.txt", "a")
        coder.fail("it failed")
        page.goto(address(server.url, "timeline/w-zoom"))
        expect(page.locator(".tick")).to_have_count(1)
        whole = page.locator(".bar-of .figure").inner_text()
        page.get_by_role("region", name="Timeline").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".turn").first).to_be_focused()
        expect(page.get_by_role("tooltip")).to_contain_text("w-zoom")
        page.keyboard.press("ArrowDown")
        expect(page.get_by_role("tooltip")).to_contain_text("failed")
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tooltip")).to_contain_text("write_file a.txt")
        page.keyboard.press("+")
        expect(page.locator(".bar-of .figure")).not_to_have_text(whole)
        expect(page.locator(".tick")).to_be_focused()  # where one is stays in sight
        page.keyboard.press("0")
        expect(page.locator(".bar-of .figure")).to_have_text(whole)
        page.locator(".turn").first.hover()
        page.keyboard.down("Control")
        page.mouse.wheel(0, -300)
        page.keyboard.up("Control")
        expect(page.locator(".bar-of .figure")).not_to_have_text(whole)
        page.mouse.down()
        page.mouse.move(700, 300, steps=4)
        page.mouse.up()  # it has been moved, and not pressed
        expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
        page.get_by_role("button", name="Show all").click()
        expect(page.locator(".bar-of .figure")).to_have_text(whole)
        page.locator(".tick").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("tab", name="Conversation")).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("heading", level=1)).to_have_text("coder")


def test_a_title_is_changed_where_it_stands(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "w-title/below"}).raise_for_status()
    page.goto(address(server.url, "conversation/w-title/below"))
    page.get_by_role("button", name="below", exact=True).click()
    page.get_by_label("Title", exact=True).fill("Not this")
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", level=1)).to_have_text("below")
    act(page, "Change the title")
    page.get_by_label("Title", exact=True).fill("  A better name ")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("A better name")
    assert client.get("/v1/sessions/w-title/below/settings").json()["title"] == "A better name"
    path = page.get_by_role("navigation", name="Path")
    expect(path).to_contain_text("w-title")
    path.get_by_role("link", name="w-title").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("w-title")


def test_tabs_without_anything_in_them_are_hidden(page: Page, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "w-tabs"}).raise_for_status()
    page.goto(address(server.url, "conversation/w-tabs"))
    expect(page.get_by_role("tab", name="Timeline")).to_be_visible()
    expect(page.get_by_role("tab", name="Agents")).to_have_count(0)
    expect(page.get_by_role("tab", name="Files")).to_have_count(0)
    with Agent(client, "w-tabs/coder") as coder:
        coder.begin("Write")
        expect(page.get_by_role("tab", name="Agents 1")).to_be_visible()
        coder.write("a.txt", "a")
        expect(page.get_by_role("tab", name="Files")).to_be_visible()
        page.reload()
        expect(page.get_by_role("tab", name="Files")).to_be_visible()  # by the agent's messages


def test_what_can_be_done_fits_on_a_phone(pages: Pages, server: Process, client: httpx.Client) -> None:
    with Agent(client, "w-phone") as lead, Agent(client, "w-phone/coder") as coder:
        lead.begin("Create")
        coder.begin("Write")
        page = pages.open(server.url, "agents/w-phone", viewport=PHONE, is_mobile=True, has_touch=True)
        for button in ("Back", "Stop tree", "Actions of the session"):
            box = page.get_by_role("button", name=button).bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) >= 40, button
            assert box["x"] + box["width"] <= PHONE["width"], button
        page.get_by_role("button", name="Actions of the session").tap()
        for name in ("Change the title", "Pause", "Copy session", "Rename", "Delete"):
            expect(page.get_by_role("menuitem", name=name)).to_be_in_viewport(ratio=1)
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Stop tree").tap()
        expect(page.get_by_role("button", name="Stop tree")).to_be_hidden()
        page.get_by_role("button", name="Back").tap()
        expect(row(page, "w-phone")).to_have_attribute("data-state", "idle")
