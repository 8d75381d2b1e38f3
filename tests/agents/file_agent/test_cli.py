"""`cfs agent` as a program of its own, with a real server that says what the task says (A9, C10)."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.file_agent.support import operations
from tests.agents.tools.test_sandbox import needs_bubblewrap
from tests.client.terminal import CTRL_C, CTRL_D, UP, Running, cfs, ended, home_in, terminal
from tests.server.support import serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose model repeats the last message: so a task can be the call that answers it."""
    with serving("--engine", "scripted") as server:
        yield server.url


def call(name: str, **arguments: str) -> str:
    """Write a call as a model does."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


SLEEP = call("execute_command", command="touch begun; until test -e end; do sleep 0.1; done; touch over")
"""It ends when a file `end` is there, for it outlives an agent that is killed."""

HOST = ("--commands", "host")


def test_a_task_is_done_and_shown(url: str, tmp_path: Path) -> None:
    """The exit code is 0, the work is in the workspace, and calls, results and answer are on standard output."""
    task = call("write_file", path="notes.txt", content="hello")
    code, output, errors = ended(cfs(url, "agent", "run", task, "--root", str(tmp_path)))
    assert (code, errors) == (0, "")
    assert (tmp_path / "workspace/notes.txt").read_text() == "hello"
    assert output.index("> write_file") < output.index("< write_file") < output.rindex("created /workspace/notes.txt")


def test_the_directory_comes_from_the_environment_too(url: str, tmp_path: Path) -> None:
    """And the language is that of the defaults that are written."""
    done = cfs(url, "agent", "run", "hello", "--lang", "zh", CFS_AGENT_ROOT=str(tmp_path / "mine"))
    assert ended(done)[0] == 0
    assert "守则" in (tmp_path / "mine/guideline.md").read_text()


def test_a_task_without_an_answer_is_a_failure(url: str, tmp_path: Path) -> None:
    """One line says why."""
    task = call("list_directory", path="/workspace")
    code, _, errors = ended(cfs(url, "agent", "run", task, "--steps", "1", "--root", str(tmp_path)))
    assert code == 1
    assert errors == "cfs: no answer after 1 steps; what was done is kept: resume to continue\n"


def test_an_answer_that_is_always_cut_off_is_a_failure(url: str, tmp_path: Path) -> None:
    """Half a text is no answer: it is shown, the reason is told, and the task can be resumed with longer replies."""
    task = "one two three four five six seven"
    arguments = ("agent", "run", "--max-tokens", "3", "--root", str(tmp_path))
    code, output, errors = ended(cfs(url, *arguments, task))
    assert code != 0
    assert "one two three" in output
    assert output.count("[warning: the reply was cut off") == 3
    assert errors.startswith("cfs: the model's reply was cut off at its limit of tokens 4 times in a row")
    assert errors.count("\n") == 1
    code, output, _ = ended(cfs(url, "agent", "run", "--root", str(tmp_path)))
    assert (code, "Go on exactly where it stopped" in output) == (0, True)


@pytest.mark.parametrize("mode", ["host", pytest.param("bwrap", marks=needs_bubblewrap)])
def test_commands_get_the_variables_that_are_named(url: str, tmp_path: Path, mode: str) -> None:
    """And of the others only those that are harmless, whatever they are called."""
    task = call("execute_command", command="env >seen")
    arguments = ("agent", "run", task, "--commands", mode, "--env", "WANTED", "--env", "ALSO", "--root", str(tmp_path))
    done = cfs(url, *arguments, CI_JOB_JWT="s3cr3t", SLACK_URL="s3cr3t", WANTED="w", ALSO="a", LC_TIME="C")
    assert ended(done)[0] == 0
    seen = (tmp_path / "workspace/seen").read_text()
    assert {"WANTED=w", "ALSO=a", "LC_TIME=C"} <= set(seen.splitlines())
    assert "s3cr3t" not in seen
    assert "CFS_URL" not in seen


def test_variable_that_is_not_there_is_refused(url: str, tmp_path: Path) -> None:
    """It may be a slip of the pen, which would not be found."""
    code, _, errors = ended(cfs(url, "agent", "run", "hello", "--env", "NO_SUCH_VARIABLE", "--root", str(tmp_path)))
    assert code == 2
    assert "there is no variable 'NO_SUCH_VARIABLE'" in errors


@pytest.mark.parametrize("arguments", [(), ("--resume",)])
def test_there_may_be_nothing_to_go_on_with(url: str, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Then one line says so."""
    code, output, errors = ended(cfs(url, "agent", "run", *arguments, "--root", str(tmp_path)))
    assert (code, output) == (1, "")
    assert errors.startswith("cfs: no task was interrupted in ")


def test_no_server_is_told(tmp_path: Path) -> None:
    """Without patience after the tries, with the code for it; the task can be resumed where there is one."""
    asked = ("agent", "run", "hello", "--root", str(tmp_path), "--patience", "0")
    code, output, errors = ended(cfs("http://127.0.0.1:1", *asked))
    assert code == 3
    assert output.startswith("[waiting to ask the model again: no server answers at http://127.0.0.1:1 ")
    assert errors.startswith("cfs: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_task_is_kept_and_goes_on(url: str, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C saves the state first; the next start goes on, and the model is told what may have happened."""
    with Running(url, "agent", "run", SLEEP, *HOST, "--root", str(tmp_path)) as running:
        wait_for(tmp_path / "workspace/begun")
        running.process.send_signal(number)
        code, output, errors = running.end()
    assert (code, errors) == (130, "cfs: interrupted\n")
    assert "> execute_command" in output
    (end,) = operations(tmp_path, "task_ended")
    assert end["error"] == "interrupted: it was interrupted"
    again, output, errors = ended(cfs(url, "agent", "run", "--resume", "--root", str(tmp_path)))
    assert again == 1, "nothing was looked at since"
    assert errors.startswith("cfs: the last call before the answer failed: execute_command: Error: ")
    assert "may or may not have happened" in output
    assert not (tmp_path / "workspace/over").exists()


@pytest.mark.parametrize("again", [(), (SLEEP, *HOST)], ids=["without a task", "with the same command"])
def test_a_killed_program_goes_on_where_it_was(url: str, tmp_path: Path, again: tuple[str, ...]) -> None:
    """Without any saving: what was on the disk before the kill is enough."""
    with Running(url, "agent", "run", SLEEP, *HOST, "--root", str(tmp_path)) as running:
        wait_for(tmp_path / "workspace/begun")
        running.process.kill()
    (tmp_path / "workspace/end").touch()
    code, output, _ = ended(cfs(url, "agent", "run", *again, "--root", str(tmp_path)))
    assert code == 1
    assert "may or may not have happened" in output
    assert len(operations(tmp_path, "task")) == 1


def test_two_programs_cannot_be_the_same_agent(url: str, tmp_path: Path) -> None:
    """The second one is told, and the first goes on."""
    with Running(url, "agent", "run", SLEEP, *HOST, "--root", str(tmp_path)) as running:
        wait_for(tmp_path / "workspace/begun")
        code, _, errors = ended(cfs(url, "agent", "run", "hello", "--root", str(tmp_path)))
        assert (code, "another agent is at work in" in errors, "end that one first" in errors) == (1, True, True)
        assert running.process.poll() is None
        (tmp_path / "workspace/end").touch()
        assert running.end()[0] == 0


def test_a_piped_chat_takes_a_task_from_each_line(url: str, tmp_path: Path) -> None:
    """In one conversation; it ends with the input."""
    tasks = f"{call('write_file', path='a', content='1')}\n\nhello\n"
    code, output, errors = ended(cfs(url, "agent", "chat", "--root", str(tmp_path), data=tasks.encode()))
    assert (code, errors) == (0, "")
    assert output.index("created /workspace/a") < output.index("hello")
    assert len(operations(tmp_path, "task")) == 2


def test_ctrl_c_in_a_chat_stops_the_task_and_not_the_chat(url: str, tmp_path: Path) -> None:
    """It says how to go on, takes the next task, and Ctrl-D ends."""
    arguments = ("agent", "chat", *HOST, "--root", str(tmp_path / "root"))
    with terminal(url, *arguments, **home_in(tmp_path)) as screen:
        screen.expect("> ")
        screen.line(SLEEP)
        wait_for(tmp_path / "root/workspace/begun")
        screen.type(CTRL_C)
        screen.expect("[interrupted; /resume continues it]")
        screen.expect("> ")
        screen.line("/resume")
        screen.expect("may or may not have happened")
        screen.expect("> ")
        screen.line("/resume")
        screen.expect("no task was interrupted")
        screen.expect("> ")
        screen.type(CTRL_D)
        assert screen.end()[0] == 0


def test_a_piped_chat_ends_with_the_first_failure(url: str, tmp_path: Path) -> None:
    """What was done stays, what comes after is not begun, and the exit code is not 0."""
    tasks = ["hello", call("list_directory", path="/workspace"), call("write_file", path="late", content="1")]
    data = "\n".join([*tasks, ""]).encode()
    done = cfs(url, "agent", "chat", "--rounds", "1", "--root", str(tmp_path), data=data)
    code, output, errors = ended(done)
    assert (code, errors) == (1, "cfs: no answer after 1 steps; what was done is kept: resume to continue\n")
    assert "hello" in output
    assert not (tmp_path / "workspace/late").exists()


def test_the_commands_of_a_piped_chat(url: str, tmp_path: Path) -> None:
    """A command that there is not is an error; after /quit nothing is read; two slashes make a task of one."""
    code, output, _ = ended(
        cfs(url, "agent", "chat", "--root", str(tmp_path), data=b"//etc is a place\n/quit\nnever\n")
    )
    assert (code, "/etc is a place" in output, "never" in output) == (0, True, False)
    code, _, errors = ended(cfs(url, "agent", "chat", "--root", str(tmp_path), data=b"/nonsense\n"))
    assert code != 0
    assert errors.startswith("cfs: there is no command /nonsense")


def test_a_chat_at_a_terminal_has_help_and_a_history(url: str, tmp_path: Path) -> None:
    """The history is its own, and outlives the chat: the arrow brings the last task back, and it can be changed."""
    arguments = ("agent", "chat", "--root", str(tmp_path / "root"))
    with terminal(url, *arguments, **home_in(tmp_path)) as screen:
        screen.expect("/help lists the commands")
        screen.expect("> ")
        screen.line("/help")
        screen.expect("resume the task that was interrupted")
        screen.expect("> ")
        screen.line("/nonsense")
        screen.expect("there is no command /nonsense")
        screen.expect("> ")
        screen.line("first words")
        screen.expect("first words\r\n[1 step")
        screen.expect("> ")
        screen.line("/quit")
        assert screen.end()[0] == 0
    with terminal(url, *arguments, **home_in(tmp_path)) as screen:
        screen.expect("> ")
        screen.type(UP + UP)
        screen.expect("first words")
        screen.line(" and more")
        screen.expect("first words and more\r\n[1 step")
        screen.expect("> ")
        screen.type(CTRL_D)
        assert screen.end()[0] == 0


async def test_the_page_of_the_agents_tells_how_to_use_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The snippet is run as it stands, in a directory of its own."""
    page = (Path(__file__).parents[3] / "docs/agents.md").read_text(encoding="utf-8")
    snippet = page.partition("<!-- tested -->\n```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFS_URL", url)
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(snippet, "docs/agents.md", "exec"), namespace)  # noqa: S102 - it is our own page
    await namespace["work"]()
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("True [Your answer says that these files were made or changed")
    )
    assert (tmp_path / "agent_root/journal.jsonl").is_file()


def wait_for(path: Path) -> None:
    """Wait until a command has made a file; the time limit of the test is the patience."""
    while not path.exists():
        time.sleep(0.01)
