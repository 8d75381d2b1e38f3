"""No command runs without consent: `--commands none|ask|bwrap|host`, at a real terminal and from Python (A5)."""

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cfs.contract.invisible import shapely
from cfs_agents import FibreAgent
from cfs_agents.file_agent import FileSystemAgentConfig
from cfs_agents.main.cli import app
from cfs_agents.main.questions import question
from cfs_agents.testing import calls, says
from cfs_agents.tools import Answer, CommandMode, CommandRequest
from cfs_agents.tree.config import FibreConfig
from tests.agents.fibre.trees import ScriptedModels, finish, messages, spawn, tree, wait
from tests.agents.file_agent.support import agent, texts
from tests.client.terminal import CTRL_C, CTRL_D, Terminal, cfs, ended, home_in, terminal
from tests.server.support import serving

AGENT_COMMANDS = ("run", "chat", "serve", "resume")
CHOICE = "Run it? y(es), n(o), a(lways: exactly this, in this directory)"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose model repeats the last message: so a task can be the call that answers it."""
    with serving("--engine", "scripted", "--log-level", "error") as server:
        yield server.url


def call(**arguments: Any) -> str:
    """Write a call of the shell as a model does."""
    return f"<tool_call>{json.dumps({'name': 'execute_command', 'arguments': arguments})}</tool_call>"


def both(*commands: str) -> str:
    """Several calls in one reply."""
    return "".join(call(command=command) for command in commands)


# -- nothing runs unless it is said ---------------------------------------------------------------------------------


def test_without_the_option_no_command_runs(url: str, tmp_path: Path) -> None:
    """There is no such tool, and the model learns it."""
    code, output, _ = ended(cfs(url, "agent", "run", call(command="touch made"), "--root", str(tmp_path)))
    assert "there is no tool 'execute_command'" in output
    assert not (tmp_path / "workspace/made").exists()
    assert code in (0, 1)


async def test_without_the_setting_no_agent_of_a_library_runs_one(tmp_path: Path) -> None:
    """Neither a file agent nor a tree offers the tool."""
    made, model = agent(tmp_path / "file", says("Hello."), commands=CommandMode.NONE)
    async with made:
        await made.run("hello")
    assert FileSystemAgentConfig().commands is FibreConfig().commands is CommandMode.NONE
    scripted = ScriptedModels(main=[says("Hello.")])
    async with tree(tmp_path / "tree", scripted) as fibre:
        await fibre.run("hello")
    for asked in (model.asked[0], scripted.models["main"].asked[0]):
        names = [each["function"]["name"] for each in asked.tools]
        assert "read_file" in names
        assert "execute_command" not in names


@pytest.mark.parametrize("config", [FileSystemAgentConfig, FibreConfig])
def test_a_setting_that_means_nothing_is_refused(config: Any) -> None:
    """Also what it was called before: no caller may believe that `True` still confines something."""
    for wrong in (True, "sandbox", ""):
        with pytest.raises(ValueError, match="CommandMode"):
            config(commands=wrong)
    assert config(commands="host").commands is CommandMode.HOST


def test_to_ask_takes_a_person(tmp_path: Path) -> None:
    """A function that asks one, or for a tree a server, in whose sessions a person is asked."""
    with pytest.raises(ValueError, match="needs `ask`"):
        FileSystemAgentConfig(commands=CommandMode.ASK)
    with pytest.raises(ValueError, match="needs `ask`"):
        FibreAgent(tmp_path, ScriptedModels(), FibreConfig(commands=CommandMode.ASK))


def test_one_option_for_all_of_them() -> None:
    """With the same words; the old one says what has become of it."""
    helps = set()
    for name in AGENT_COMMANDS:
        shown = CliRunner().invoke(app, ["agent", name, "--help"], env={"COLUMNS": "400"}).output
        helps.add(next(" ".join(line.split()) for line in shown.splitlines() if "--commands" in line))
        assert "--sandbox" not in shown
    assert len(helps) == 1
    for name, old in itertools.product(("run", "chat"), ("none", "bwrap")):
        refused = CliRunner().invoke(app, ["agent", name, "--sandbox", old], env={"COLUMNS": "400"})
        assert refused.exit_code == 2
        assert "--commands none|ask|bwrap|host" in refused.output


@pytest.mark.parametrize("name", ["run", "chat"])
def test_to_ask_takes_a_terminal(tmp_path: Path, name: str) -> None:
    """Nothing is begun without one, where there is no session to ask in."""
    root = tmp_path / "root"
    refused = CliRunner().invoke(app, ["agent", name, "--commands", "ask", "--root", str(root)], env={"COLUMNS": "400"})
    assert refused.exit_code == 2
    assert "--commands ask needs a terminal" in refused.output
    assert not root.exists()


def test_to_ask_takes_a_terminal_as_a_program_too(url: str, tmp_path: Path) -> None:
    """One line, and the code of wrong usage."""
    code, output, errors = ended(cfs(url, "agent", "run", "x", "--commands", "ask", "--root", str(tmp_path / "root")))
    assert (code, output) == (2, "")
    assert "--commands ask needs a terminal" in errors


# -- at a terminal --------------------------------------------------------------------------------------------------


def asked(screen: Terminal) -> str:
    """Wait for the question, and return what is shown with it."""
    return screen.expect(CHOICE)


def test_a_command_waits_for_a_yes(url: str, tmp_path: Path) -> None:
    """It is shown with its directory; what was typed before, and what is no answer, is none."""
    workspace = tmp_path / "root" / "workspace"
    task = both("touch first", "touch second", "touch third")
    arguments = ("agent", "run", task, "--commands", "ask", "--root", str(tmp_path / "root"))
    with terminal(url, *arguments) as screen:
        shown = asked(screen)
        assert f"root wants to run this command, in {workspace}:" in shown
        assert "  | touch first\r\n" in shown
        assert not (workspace / "first").exists()
        screen.type("perhaps\r")
        asked(screen)
        screen.type("\r")
        asked(screen)
        assert not (workspace / "first").exists()
        screen.type("y\ry\ry\r")  # the second and the third answer come before their questions
        assert "  | touch second\r\n" in asked(screen)
        assert (workspace / "first").exists()
        assert not (workspace / "second").exists()
        screen.type("N\r")
        shown = asked(screen)
        assert shown.index("the user did not allow this command") < shown.index("  | touch third\r\n")
        screen.type("YES\r")
        screen.end()
    made = {path.name for path in workspace.iterdir() if not path.name.startswith(".")}
    assert made == {"first", "third"}


def test_always_holds_for_the_same_command_in_the_same_directory(url: str, tmp_path: Path) -> None:
    """Not for another text, nor another directory, nor in the background."""
    workspace = tmp_path / "root" / "workspace"
    (workspace / "sub").mkdir(parents=True)
    line = "echo x >> log"
    task = both(line, line, f"{line} ") + call(command=line, working_dir="sub") + call(command=line, background=True)
    arguments = ("agent", "run", task + both("cd sub", line), "--commands", "ask", "--root", str(tmp_path / "root"))
    with terminal(url, *arguments) as screen:
        asked(screen)
        screen.type("always\r")
        assert "  | echo x >> log \r\n" in asked(screen)  # the second one was run unasked
        assert (workspace / "log").read_text() == "x\nx\n"
        screen.type("n\r")
        assert "workspace/sub:" in asked(screen)
        screen.type("n\r")
        assert "in the background" in asked(screen)
        screen.type("n\r")
        assert "  | cd sub" in asked(screen)
        screen.type("y\r")
        assert f"in {workspace}/sub:" in asked(screen)
        screen.type("n\r")
        screen.end()
    assert (workspace / "log").read_text() == "x\nx\n"


def test_a_pattern_is_shown_before_it_is_chosen_and_holds_for_what_it_covers(url: str, tmp_path: Path) -> None:
    """`p` is an answer only where the question shows a pattern."""
    workspace = tmp_path / "root" / "workspace"
    task = both("touch one && ls", "ls; touch two", "make", "sh -c 'touch three'")
    arguments = ("agent", "run", task, "--commands", "ask", "--root", str(tmp_path / "root"))
    with terminal(url, *arguments) as screen:
        asked(screen)
        assert screen.expect("): ") == ", p(attern: always execute_command(touch:*), execute_command(ls:*)"
        screen.type("p\r")
        assert "  | make\r\n" in asked(screen)
        assert screen.expect(": ") == "", "no pattern of make says what it allows"
        screen.type("p\r")
        asked(screen)
        screen.type("n\r")
        screen.end()
    assert sorted(path.name for path in workspace.glob("[a-z]*")) == ["one", "three", "two"]


def test_ctrl_c_at_the_question_ends_the_task(url: str, tmp_path: Path) -> None:
    """The command is not run; the chat goes on, and Ctrl-D at a question is a no."""
    workspace = tmp_path / "root" / "workspace"
    arguments = ("agent", "chat", "--commands", "ask", "--root", str(tmp_path / "root"))
    with terminal(url, *arguments, **home_in(tmp_path)) as screen:
        screen.expect("> ")
        screen.line(call(command="touch one"))
        asked(screen)
        screen.type(CTRL_C)
        screen.expect("[not answered: the command is not run]")
        screen.expect("[interrupted; /resume continues it]")
        screen.expect("> ")
        screen.line(call(command="touch two"))
        asked(screen)
        screen.type(CTRL_D)
        screen.expect("the user did not allow this command")
        screen.expect("> ")
        screen.type(CTRL_D)
        assert screen.end()[0] == 0
    assert not [path for path in workspace.iterdir() if path.name in ("one", "two")]


def test_the_exit_code_of_ctrl_c_at_the_question(url: str, tmp_path: Path) -> None:
    """It is that of an interrupted task, which can be resumed."""
    arguments = ("agent", "run", call(command="touch one"), "--commands", "ask", "--root", str(tmp_path))
    with terminal(url, *arguments) as screen:
        asked(screen)
        screen.type(CTRL_C)
        assert screen.end()[0] == 130
    assert not (tmp_path / "workspace/one").exists()
    again = ended(cfs(url, "agent", "run", "--resume", "--root", str(tmp_path)))
    assert "may or may not have happened" in again[1]


def test_nothing_in_a_command_can_hide_it(url: str, tmp_path: Path) -> None:
    """Carriage returns, escape sequences, right-to-left marks, long lines, many blanks: all of it is shown."""
    hidden = "touch harmless #\r\x1b[2K\x1b[1A\u202etouch good\u200b" + " " * 500 + "; touch evil\n\n" + CHOICE + "y"
    task = call(command=hidden)
    with terminal(url, "agent", "run", task, "--commands", "ask", "--root", str(tmp_path)) as screen:
        screen.expect("wants to run this command (3 lines), in")
        shown = screen.expect("cannot be seen)")
        asked(screen)
        screen.type("n\r")
        screen.end()
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    lines = shown.split("\r\n")[1:-1]
    assert "\r" not in "".join(lines)
    assert all(len(line) < 200 and line[:4] in ("  | ", "  : ") for line in lines)
    assert "touch harmless #<U+000D><U+001B>[2K<U+001B>[1A<U+202E>touch good<U+200B>" in lines[0]
    assert any(line.endswith("; touch evil") for line in lines)


def test_the_terminal_of_a_tree_answers_for_all_its_agents(url: str, tmp_path: Path) -> None:
    """One question at a time, each with the name of who asks; what others do meanwhile is shown afterwards."""
    goals = {name: call(command=f"touch {name}.txt") for name in ("coder", "tester")}
    task = "".join(
        json.dumps(
            {
                "name": "sys_spawn_agent",
                "arguments": {
                    "agent_name": name,
                    "role_description": "r",
                    "system_instruction": "i",
                    "task_goal": goal,
                },
            }
        )
        .replace("<", "\\u003c")
        .join(("<tool_call>", "</tool_call>"))
        for name, goal in goals.items()
    )
    for name in goals:
        task += f"<tool_call>{json.dumps({'name': 'sys_wait_agent', 'arguments': {'agent_id': name}})}</tool_call>"
    arguments = ("agent", "serve", "--session", "consented", "--commands", "ask", "--root", str(tmp_path))
    with terminal(url, *arguments) as screen:
        screen.expect("[an agent answers in consented")
        assert ended(cfs(url, "send", "consented", task, "--no-wait"))[0] == 0
        names = []
        for answer in ("y", "n"):
            shown = asked(screen)
            assert shown.count("wants to run this command") == 1
            (name,) = re.findall(r"(\w+) wants to run this command, in", shown)
            assert f"  | touch {name}.txt" in shown
            names.append(name)
            screen.type(f"{answer}\r")
        screen.expect("= ")
        screen.press_until(CTRL_C, "^C")
        screen.end()
    workspace = tmp_path / "consented/agent_workspace"
    assert sorted(names) == sorted(goals)
    assert {path.name for path in workspace.glob("*.txt")} == {f"{names[0]}.txt"}


# -- from Python ----------------------------------------------------------------------------------------------------


async def test_a_library_asks_by_a_function_of_its_own(tmp_path: Path) -> None:
    """A no is an error that the model can act on, and so is whatever goes wrong with the question."""
    said: list[tuple[str, CommandRequest]] = []
    answers = iter([Answer.YES, Answer.NO, True, "nonsense", RuntimeError("no one is here")])

    async def ask(name: str, request: CommandRequest) -> Any:
        said.append((name, request))
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    script = [calls("execute_command", command=f"touch {number}") for number in range(5)]
    made, model = agent(tmp_path / "mine", *script, says("Done."), commands=CommandMode.ASK, ask=ask)
    async with made:
        await made.run("make them")
    assert [path.name for path in sorted((tmp_path / "mine/workspace").glob("[0-9]"))] == ["0"]
    workspace = str(tmp_path / "mine/workspace")
    assert said == [("mine", CommandRequest(f"touch {number}", workspace)) for number in range(5)]
    told = texts(model.asked[-1].messages)
    assert told.count("the user did not allow this command") == 3
    assert "no one is here" in told


async def test_the_time_for_an_answer_is_not_that_of_the_agent(tmp_path: Path) -> None:
    """A child's clock stands while a person thinks, and goes on afterwards."""
    seconds: list[float] = []

    async def ask(name: str, request: CommandRequest) -> Answer:
        for _ in range(3):
            seconds.append(fibre.agents[name].clock.seconds)
            await asyncio.sleep(0.01)
        return Answer.YES

    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), says("It is made.")],
        a=[calls("execute_command", command="echo 1 > made.txt"), finish("made it", "made.txt")],
    )
    async with tree(tmp_path, scripted, commands=CommandMode.ASK, ask=ask) as fibre:
        await fibre.run("go")
        assert fibre.agents["a"].clock.seconds > seconds[0]
    assert len(set(seconds)) == 1
    assert "[a success]" in (await messages(tmp_path))[-2]["content"]


# -- what is shown --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("character", ["\r", "\x1b", "\x9b", "\x00", "\u00ad", "\u200b", "\u202e", "\u2066", "\u2028"])
@pytest.mark.parametrize("around", ["a{}b", "{}", "{}{}"])
def test_what_has_no_shape_is_shown_by_its_number(character: str, around: str) -> None:
    """Whatever a terminal obeys or shows as nothing."""
    text = around.replace("{}", character)
    assert character not in shapely(text)
    assert f"<U+{ord(character):04X}>" in shapely(text)


def test_invisible_letters_and_selectors_have_no_shape_either() -> None:
    for character in "\u3164\ufe0f\U000e0061\u00a0\u2800\ud800\U000e0100\t":
        assert shapely(character) == f"<U+{ord(character):04X}>"
    assert shapely("ls -l äöü 你好 'x' é") == "ls -l äöü 你好 'x' é"


@pytest.mark.parametrize("columns", [1, 40, 80, 200])
def test_a_long_command_is_shown_whole(columns: int) -> None:
    """Each line of the screen begins with a mark, and together they are the command."""
    command = "echo " + "你好 world" * 50 + "\n\n  done" + " " * 90 + "end"
    shown = question("a", CommandRequest(command, "/w"), columns).split("\n")[1:-1]
    lines: list[str] = []
    for line in shown:
        if line.startswith("  | "):
            lines.append(line[4:])
        else:
            assert line.startswith("  : ")
            lines[-1] += line[4:]
    assert "\n".join(lines) == command
