"""The commands of `cfs agent` for trees as programs, stopped and killed, with a real server (B9, S12)."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cfs import api
from cfs.transports.http import Client
from cfs.wire import NewMessage, SessionDetail, SettingsPatch
from tests.client.terminal import Running, cfs, ended
from tests.server.support import serving

PATIENCE = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose model repeats the last message: so a task can be the calls that do it."""
    with serving("--engine", "scripted", "--log-level", "error") as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def call(name: str, **arguments: object) -> str:
    """Write a call as a model does."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def family(child: str) -> str:
    """A task: spawn a child that writes a file and reports, and wait for it."""
    finish = call("sys_finish_task", status="success", summary="wrote it", details={"created_files": ["note.txt"]})
    goal = call("write_file", path="note.txt", content="hello") + finish
    spawn = call("sys_spawn_agent", agent_name=child, role_description="r", system_instruction="i", task_goal=goal)
    inner = spawn.removeprefix("<tool_call>").removesuffix("</tool_call>").replace("<", "\\u003c")
    return f"<tool_call>{inner}</tool_call>{call('sys_wait_agent', agent_id=child)}"


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a program does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)


@contextmanager
def serve(url: str, session: str, root: Path) -> Iterator[Running]:
    """An agent that answers a session, until it is left, or is killed before."""
    with Running(url, "agent", "serve", "--session", session, "--root", str(root)) as running:
        yield running


def detail(client: Client, session: str) -> SessionDetail:
    return client.call(api.read(session))


def ready(client: Client, session: str) -> None:
    """Have a session with a paused sub-session `child`."""
    client.call(api.create(session, SettingsPatch(driver="agent")))
    client.call(api.create(f"{session}/child", SettingsPatch(driver="agent", paused=True)))


def child_waits(client: Client, session: str) -> Callable[[], bool]:
    """Whether the child has its task, and is held up before its first step."""
    return lambda: bool(detail(client, f"{session}/child").history)


def wrote(root: Path, session: str) -> str:
    return (root / session / "agent_workspace/note.txt").read_text()


def test_the_agent_says_that_it_answers_once_it_does(url: str, client: Client, tmp_path: Path) -> None:
    """No other answers what is written then, also where there was no session."""
    with serve(url, "fresh", tmp_path) as running:
        assert running.process.stderr is not None
        assert running.process.stderr.readline() == b"[an agent answers in fresh; Ctrl-C ends it]\n"
        assert client.call(api.settings("fresh")).driver == "agent"


def test_an_agent_answers_a_session_and_becomes_two(url: str, client: Client, tmp_path: Path) -> None:
    """The sub-agent has a session of its own, and the tree can be looked at."""
    client.call(api.create("both", SettingsPatch(driver="agent")))
    with serve(url, "both", tmp_path):
        reply = client.call(api.say("both", NewMessage(content=family("child")), PATIENCE))
        assert reply.reply.startswith("[child success] wrote it created: note.txt")
        assert wrote(tmp_path, "both") == "hello"
        code, shown, _ = ended(cfs(url, "agent", "tree", "both"))
        assert code == 0
        root, budget, child = shown.splitlines()
        assert re.fullmatch(r"    budget: \d+ of \d+ tokens spent, \d+ left", budget)
        assert re.fullmatch(r"both +finished +\d+ messages +\d+ tokens +\d+s", root)
        assert re.fullmatch(r"  child +finished +5 messages +\d+ tokens +\d+s", child)
        found = json.loads(ended(cfs(url, "agent", "tree", "both", "--json"))[1])
        assert found["outcome"]["status"] == "finished"
        assert [(each["id"], each["outcome"]["report"]["status"]) for each in found["children"]] == [
            ("both/child", "success")
        ]
        names = [each.name for each in detail(client, "both/child").history if each.role == "tool"]
        assert names == ["write_file", "sys_finish_task"]


def test_pausing_the_root_holds_its_children_too(url: str, client: Client, tmp_path: Path) -> None:
    client.call(api.create("whole", SettingsPatch(driver="agent")))
    assert ended(cfs(url, "agent", "pause", "whole"))[0] == 0
    with serve(url, "whole", tmp_path):
        client.call(api.post("whole", NewMessage(content=family("child"))))
        until(lambda: detail(client, "whole").state == "generating")
        assert [each.id for each in client.call(api.sub_sessions("whole")).children] == []
        client.call(api.configure("whole", SettingsPatch(paused=False)))
        until(lambda: detail(client, "whole").state == "idle")
        assert wrote(tmp_path, "whole") == "hello"


def test_a_killed_tree_is_resumed_from_disk(url: str, client: Client, tmp_path: Path) -> None:
    """However it was killed, and whatever the server still believes."""
    ready(client, "killed")
    with serve(url, "killed", tmp_path) as running:
        client.call(api.post("killed", NewMessage(content=family("child"))))
        until(child_waits(client, "killed"))
        root, _, child = ended(cfs(url, "agent", "tree", "killed"))[1].splitlines()
        assert re.search(r"^killed +working .* sys_wait_agent \d+s$", root), "the tool that runs, and since when"
        assert re.search(r"^  child +paused ", child)
        running.process.kill()
        running.process.wait(PATIENCE)
    assert ended(cfs(url, "agent", "unpause", "killed/child"))[0] == 0
    code, shown, errors = ended(cfs(url, "agent", "resume", "killed", "--root", str(tmp_path)))
    assert (code, errors) == (0, "")
    assert "killed/child: > write_file" in shown
    assert wrote(tmp_path, "killed") == "hello"
    assert detail(client, "killed").history[-1].content.startswith("[child success]")


def test_a_cancelled_child_is_reported_and_its_parent_goes_on(url: str, client: Client, tmp_path: Path) -> None:
    ready(client, "stopped")
    with serve(url, "stopped", tmp_path):
        client.call(api.post("stopped", NewMessage(content=family("child"))))
        until(child_waits(client, "stopped"))
        assert ended(cfs(url, "agent", "cancel", "stopped/child"))[0] == 0
        until(lambda: detail(client, "stopped").state == "idle")
        assert detail(client, "stopped").history[-1].content.startswith("[child cancelled]")
        assert re.search(r"^  child +cancelled ", ended(cfs(url, "agent", "tree", "stopped"))[1], re.MULTILINE)
        assert not (tmp_path / "stopped/agent_workspace/note.txt").exists()


def test_cancelling_the_root_ends_the_whole_tree(url: str, client: Client, tmp_path: Path) -> None:
    ready(client, "over")
    with serve(url, "over", tmp_path):
        client.call(api.post("over", NewMessage(content=family("child"))))
        until(child_waits(client, "over"))
        client.call(api.cancel("over", queued=True, cascade=True))
        until(lambda: detail(client, "over").state == detail(client, "over/child").state == "idle")
        assert not (tmp_path / "over/agent_workspace/note.txt").exists()


def test_what_is_not_there_is_told(url: str, tmp_path: Path) -> None:
    assert ended(cfs(url, "agent", "tree", "nobody"))[0] != 0
    code, _, errors = ended(cfs(url, "agent", "resume", "nobody", "--root", str(tmp_path)))
    assert code != 0
    assert errors.startswith("cfs: there is no interrupted work")
