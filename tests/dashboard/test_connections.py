"""The dialog in which an administrator connects models, without a restart."""

from pathlib import Path

from playwright.sync_api import expect

from tests.access.support import make
from tests.connect.support import Machine, OllamaStub, ollama
from tests.dashboard.support import Pages, messages, send, violations
from tests.server.support import run_cfs


def test_a_model_is_found_connected_and_disconnected(pages: Pages, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with ollama(machine, OllamaStub("one", "two")), machine.serving() as server:
        page = pages.open(server.process.url)
        page.keyboard.press("Control+k")
        page.get_by_role("combobox").fill("Models")
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Models")
        expect(dialog).to_contain_text("No model is connected")
        page.keyboard.press("Enter")  # the search has the focus
        expect(dialog.get_by_role("status")).to_have_text("2 models were found.")
        assert violations(page) == []
        dialog.get_by_role("button", name="Connect two", exact=True).click()
        expect(dialog.get_by_role("status")).to_have_text("two is connected.")
        expect(dialog.get_by_label("Connected models")).to_contain_text("answers by default")
        expect(dialog.get_by_role("button", name="Connect two", exact=True)).to_have_count(0)
        assert violations(page) == []
        dialog.get_by_role("button", name="Close").click()
        send(page, "it works")
        expect(messages(page).last).to_contain_text("it works")  # the stub repeats what it gets
        assert server.names()[0] == "two"

        page.get_by_role("button", name="Menu", exact=True).click()
        page.get_by_role("menuitem", name="Models").click()
        dialog.get_by_role("button", name="Disconnect two").click()
        expect(dialog.get_by_role("status")).to_contain_text("No model is connected")
        assert "two" not in server.names()


def test_a_server_with_the_model_of_its_flags_says_so(pages: Pages, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with machine.serving("--engine", "scripted") as server:
        page = pages.open(server.process.url)
        page.get_by_role("button", name="Menu", exact=True).click()
        page.get_by_role("menuitem", name="Models").click()
        expect(page.get_by_role("dialog", name="Models").get_by_role("status")).to_have_text(
            "This server has the model of its flags: start it without --model and --upstream."
        )


def test_only_administrators_see_it(pages: Pages, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    secret = make(tokens, "alice", "/sessions", "/workspaces")
    admin = run_cfs("token", "create", "admin", "--tokens", str(tokens), "--grant", "/").stdout.strip()
    machine = Machine(tmp_path)
    with machine.serving("--engine", "scripted", "--tokens", str(tokens)) as server:
        for token, count in ((secret, 0), (admin, 1)):
            page = pages.open(server.process.url)
            page.get_by_label("Token").fill(token)
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Menu", exact=True).click()
            expect(page.get_by_role("menuitem", name="Keyboard shortcuts")).to_be_visible()
            expect(page.get_by_role("menuitem", name="Models")).to_have_count(count)
