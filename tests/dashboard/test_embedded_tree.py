"""The embedded model plays a tree, from a line written to a file to the answer read from it, and a browser watches."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from tests.client.terminal import Running, cfs, ended
from tests.dashboard.support import Pages, messages, row, send
from tests.fuse.support import reason_to_skip
from tests.server.support import Process, serving

FILES = {"a.txt": "hello", "b.txt": "world"}
TASK = 'Make a.txt with "hello" and b.txt with "world" in parallel.'
ANSWER = "The agents wrote the files a.txt and b.txt."
WRITERS = ("main/writer_1", "main/writer_2")
WATCH = """() => {
  const tree = document.querySelector("[role=tree]");
  const works = () => [...tree.querySelectorAll("[data-state=generating]")].map((row) => row.dataset.session);
  window.seen = [];
  const options = { subtree: true, childList: true, attributeFilter: ["data-state"] };
  new MutationObserver(() => window.seen.push(works().sort().join(" "))).observe(tree, options);
}"""
"""Lets the page write down which rows are seen to work at the same time."""


@pytest.fixture
def embedded() -> Iterator[Process]:
    """A server with the embedded model."""
    with serving() as process:
        yield process


@pytest.fixture
def mount(embedded: Process, tmp_path: Path) -> Iterator[Path]:
    """A mount of the sessions, in one of which an agent answers."""
    place = tmp_path / "cfs"
    place.mkdir()
    attached = ("agent", "serve", "--session", "main", "--root", str(tmp_path / "agents"), "--temperature", "0")
    with ExitStack() as ends:
        code, _, errors = ended(cfs(embedded.url, "mount", str(place), "--background"))
        assert code == 0, errors
        ends.callback(lambda: subprocess.run(["fusermount3", "-u", place], check=True))
        agent = ends.enter_context(Running(embedded.url, *attached))
        assert agent.process.stderr is not None
        assert b"answers in main" in agent.process.stderr.readline()
        yield place


@pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))
def test_a_tree_is_watched_from_echo_to_cat(embedded: Process, mount: Path, tmp_path: Path, pages: Pages) -> None:
    page = pages.open(embedded.url, "conversation/main")
    expect(row(page, "main")).to_be_visible()
    page.evaluate(WATCH)
    subprocess.run(["bash", "-c", f"echo '{TASK}' >> {mount}/main"], check=True)
    for writer in WRITERS:
        expect(row(page, writer)).to_be_visible()
    for session in ("main", *WRITERS):
        expect(row(page, session)).to_have_attribute("data-state", "idle", timeout=60_000)
    expect(messages(page).last).to_contain_text(ANSWER)
    seen = [set(at_once.split()) for at_once in page.evaluate("() => window.seen")]
    for writer in WRITERS:
        assert any({"main", writer} <= at_once for at_once in seen)
    read = subprocess.run(["cat", mount / "main"], capture_output=True, text=True, timeout=60, check=True)
    assert read.stdout.splitlines()[-1] == f"Assistant: {ANSWER}"
    workspace = tmp_path / "agents/main/agent_workspace"
    assert {path.name: path.read_text() for path in workspace.iterdir()} == FILES


def test_a_prompt_that_was_cut_says_so_quietly(pages: Pages, embedded: Process) -> None:
    """Beside what the turn cost; the messages are all there."""
    text = "User: Hello!\nAssistant: Hello! How can I help you?\n" * 200
    httpx.post(f"{embedded.url}/v1/sessions", json={"id": "long", "transcript": text}, timeout=60).raise_for_status()
    page = pages.open(embedded.url, "conversation/long")
    send(page, "Thank you!")
    expect(messages(page).last).to_contain_text("old messages left the prompt")
