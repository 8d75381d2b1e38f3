"""The magics in real shells of IPython: one as a notebook has it, and one of a terminal (C11)."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.terminal.interactiveshell import TerminalInteractiveShell

from cfs import NotFound, Session, api
from cfs.transports.http import Client
from cfs.wire import NamedSession
from pytest_cfs import Reply, ScriptedServer


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython keeps its history there."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))


def made(kind: Any) -> Iterator[Any]:
    kind.clear_instance()
    shell = kind.instance()
    shell.run_line_magic("load_ext", "cfs_jupyter")
    try:
        yield shell
    finally:
        if shell.history_manager is not None:
            shell.history_manager.end_session()
        shell.restore_sys_module_state()
        kind.clear_instance()


@pytest.fixture
def notebook(own_folder: None, cfs_server: ScriptedServer) -> Iterator[Any]:
    """A shell that displays objects; what it displays is kept."""
    for shell in made(InteractiveShell):
        shell.display_pub = CapturingDisplayPublisher()  # type: ignore[no-untyped-call]
        yield shell


@pytest.fixture
def terminal(own_folder: None, cfs_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPY_TEST_SIMPLE_PROMPT", "1")
    yield from made(TerminalInteractiveShell)


def displayed(shell: Any) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = shell.display_pub.outputs
    return outputs


def refused(shell: Any, capsys: pytest.CaptureFixture[str], cell: str) -> str:
    """Run a cell that fails; return what it says, which is one line."""
    capsys.readouterr()
    result = shell.run_cell(cell)
    assert not result.success
    *_, line = capsys.readouterr().err.splitlines()
    assert "Traceback" not in line
    return line.removeprefix("UsageError: ")


@pytest.mark.feature("ipython", "magics", "chat")
def test_a_notebook_shows_the_reply_as_markdown(
    notebook: Any, cfs_server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """All updates belong to one output, and the last one has the whole text."""
    cfs_server.reply("# One\n\n**two** three")
    assert notebook.run_cell("%%cfs main\nWhat is *this*?\n  And this?\n").success
    shown = displayed(notebook)
    assert shown[-1]["data"]["text/markdown"] == "# One\n\n**two** three"
    assert len({output["transient"]["display_id"] for output in shown}) == 1
    assert [output.get("update", False) for output in shown] == [False] + [True] * (len(shown) - 1)
    assert cfs_server.session("main").read() == (
        "User: What is *this*?\n  And this?\nAssistant: # One\n\n**two** three\n"
    )
    assert capsys.readouterr().out == ""


@pytest.mark.feature("ipython", "magics", "stream")
def test_a_notebook_shows_text_while_it_comes(notebook: Any, cfs_server: ScriptedServer) -> None:
    """The first piece is on the page before the second is made."""
    cfs_server.reply("one two")
    cfs_server.hold()
    publish = notebook.display_pub.publish
    first = threading.Event()

    def published(*arguments: Any, **options: Any) -> None:
        publish(*arguments, **options)
        first.set()

    notebook.display_pub.publish = published
    cfs_server.step()

    def release() -> None:
        first.wait()
        cfs_server.release()

    helper = threading.Thread(target=release)
    helper.start()
    assert notebook.run_cell("%%cfs main\nhi").success
    helper.join()
    assert [output["data"]["text/markdown"] for output in displayed(notebook)] == ["one", "one two"]


def test_a_terminal_shows_plain_text(
    terminal: Any, cfs_server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cfs_server.reply("**one** two")
    assert terminal.run_cell("%%cfs main\nhi").success
    assert capsys.readouterr().out == "**one** two\n"


def test_plain_text_in_a_notebook(notebook: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert notebook.run_cell("%%cfs main --plain\n**hi**").success
    assert (capsys.readouterr().out, displayed(notebook)) == ("**hi**\n", [])


def test_the_reply_goes_to_a_variable(notebook: Any, cfs_server: ScriptedServer) -> None:
    cfs_server.reply("42")
    notebook.run_cell("%%cfs main --out answer\nWhat?")
    assert notebook.run_cell("int(answer) + 1").result == 43


def test_settings_are_those_of_the_reply(notebook: Any, cfs_server: ScriptedServer) -> None:
    notebook.run_cell('%%cfs main --set temperature=0 --set "system=Be brief." --set seed=7\nhi')
    notebook.run_cell("%%cfs\nhi")
    settings = [asked.settings for asked in cfs_server.asked]
    assert (settings[0].temperature, settings[0].system, settings[0].seed) == (0.0, "Be brief.", 7)
    assert (settings[1].system, settings[1].seed) == (None, None)


@pytest.mark.feature("ipython", "magics", "resume")
def test_a_cell_without_a_name_goes_on_with_the_session_before(
    notebook: Any, cfs_server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one makes a session and says its name."""
    notebook.run_cell("%%cfs\none")
    name = capsys.readouterr().err.removeprefix("[this is session ").removesuffix("]\n")
    notebook.run_cell("%%cfs\ntwo")
    assert cfs_server.session(name).read() == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    notebook.run_cell("%%cfs other\nthree")
    notebook.run_cell("%cfs cat")
    assert capsys.readouterr().out == "User: three\nAssistant: three\n"
    notebook.run_cell("name = 'main'")
    notebook.run_cell("%%cfs $name\nfour")
    notebook.run_cell("%cfs ls")
    assert capsys.readouterr().out.splitlines() == sorted([name, "other", "main"])
    notebook.run_cell("%cfs ls ot")
    assert capsys.readouterr().out == "other\n"
    notebook.run_cell(f"%cfs cat {name}")
    assert capsys.readouterr().out.startswith("User: one\n")


def test_more_sessions_than_one_page(
    notebook: Any, cfs_server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"s{number:04}" for number in range(1001)]
    with Client(cfs_server.url) as client:
        client.call(api.create(names[0]))
        client.call(api.import_sessions([NamedSession(id=name) for name in names[1:]]))
    notebook.run_cell("%cfs ls")
    assert capsys.readouterr().out.splitlines() == names


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("%%cfs main\n \n", "the cell is empty"),
        ("%%cfs .hidden\nhi", "a session id must not begin with '.': such names are control files"),
        ("%%cfs main --set temprature=0\nhi", "temprature"),
        ("%%cfs main --set temperature=hot\nhi", "temperature"),
        ("%%cfs main --out 1x\nhi", "--out needs the name of a variable, not '1x'"),
        ("%%cfs main other\nhi", "unrecognized arguments: other"),
        ("%%cfs 'main\nhi", "'main: No closing quotation"),
        ("%cfs", "%cfs has these commands: %cfs ls [PREFIX], %cfs cat [NAME], %cfs cancel [NAME]; %%cfs sends a cell"),
        ("%cfs cat", "no cell has used a session yet: name one"),
        ("%cfs cat nothing", "nothing"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_sent(
    notebook: Any, cfs_server: ScriptedServer, capsys: pytest.CaptureFixture[str], cell: str, reason: str
) -> None:
    assert reason in refused(notebook, capsys, cell)
    with Client(cfs_server.url) as client:
        assert client.call(api.list_sessions()).sessions == ()


@pytest.mark.feature("ipython", "magics", "error")
def test_a_failed_turn_is_an_error(
    notebook: Any, cfs_server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that "run all" stops there. The variable stays as it was."""
    cfs_server.reply(Reply("Half", error="out of memory"))
    assert "the turn failed: out of memory" in refused(notebook, capsys, "%%cfs main --out answer\nhi")
    assert "answer" not in notebook.user_ns


def test_a_server_that_is_away_is_named(
    notebook: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFS_URL", "http://127.0.0.1:9")
    assert refused(notebook, capsys, "%cfs ls").startswith("no server answers at http://127.0.0.1:9 ")


def after(server: ScriptedServer, state: str, session: str, act: Any) -> threading.Thread:
    """Do something once a session is in a state, from another thread."""

    def run() -> None:
        with Client(server.url) as client:
            while True:
                try:
                    detail = client.call(api.read(session))
                except NotFound:
                    continue
                if detail.state == state:
                    break
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def is_reading(thread: threading.Thread) -> bool:
    """Whether a thread waits for bytes of the server."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == "read" and "httpcore" in frame.f_code.co_filename


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.feature("ipython", "magics", "cancel")
def test_an_interrupt_cancels_the_turn(
    notebook: Any, cfs_server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `cfs chat`. What has come stays on the page and in the session."""
    cfs_server.reply("one two three")
    cfs_server.hold()
    publish = notebook.display_pub.publish

    def published(*arguments: Any, **options: Any) -> None:
        publish(*arguments, **options)
        if not options.get("update"):
            interrupt()

    notebook.display_pub.publish = published
    cfs_server.step()
    line = refused(notebook, capsys, "%%cfs main --out answer\nhi")
    assert line == "the turn was cancelled; session main keeps what has come"
    assert displayed(notebook)[-1]["data"]["text/markdown"] == "one [Cancelled]"
    assert "answer" not in notebook.user_ns
    with Client(cfs_server.url) as client:
        assert client.call(api.read("main")).state == "idle"


def test_an_interrupt_of_a_waiting_message_stops_waiting(
    notebook: Any, cfs_server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another one's turn runs, which is not this cell's to cancel."""
    cfs_server.hold()
    other = Session("main", url=cfs_server.url)
    pieces = threading.Thread(target=other.send, args=("first",))
    pieces.start()
    running = after(cfs_server, "generating", "main", lambda: None)
    running.join()

    def queued() -> None:
        with Client(cfs_server.url) as client:
            while not client.call(api.read("main")).queued or not is_reading(threading.main_thread()):
                pass
        interrupt()

    thread = threading.Thread(target=queued)
    thread.start()
    line = refused(notebook, capsys, "%%cfs main\nsecond")
    thread.join()
    assert line == "no longer waiting; the message stays in session main: %cfs cancel main stops its turn"
    notebook.run_cell("%cfs cancel")
    assert capsys.readouterr().out == "cancelled: 1 running, 1 waiting\n"
    pieces.join()
    other.close()


def test_ipython_as_a_program(cfs_server: ScriptedServer, tmp_path: Path) -> None:
    """Its output can be piped: it is the text of the replies."""
    command = [sys.executable, "-m", "IPython", "--colors=NoColor", "--ext=cfs_jupyter", "-c", "%%cfs main\none two"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env=os.environ | {"IPYTHONDIR": str(tmp_path)}
    )
    assert (done.stdout, done.stderr) == ("one two\n", "")
