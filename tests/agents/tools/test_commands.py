"""The tool `execute_command`: what a model is told of a command (A3, A5)."""

import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from cfs.wire import ToolCall
from cfs_agents.tools import (
    AsyncPersistentShell,
    CommandTools,
    FileTools,
    Limits,
    Registry,
    agent_grants,
    agent_shell,
    usual_limits,
)
from cfs_filesystem import DiskFileSystem
from tests.agents.tools.test_sandbox import needs_bubblewrap


class Worker:
    """An agent's tools, all of them, in the test's loop."""

    def __init__(self, root: Path, **settings: Any) -> None:
        files = DiskFileSystem(root)
        handle = files.create_handle(agent_grants())
        self.shell = AsyncPersistentShell(agent_shell(root, grace=3.0, **settings))
        commands = CommandTools(self.shell, root, handle)
        self.registry = Registry([*commands.tools(), *FileTools(handle).tools()])
        self.files = files

    async def told(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool as a model does; its times are left out."""
        result = await self.registry.call(ToolCall(id="1", name=tool, arguments=arguments))
        return re.sub(r"\d+\.\d+ s\b", "T s", result.text)

    async def run(self, command: str, **more: Any) -> str:
        """Run a command."""
        return await self.told("execute_command", command=command, **more)


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    """An agent whose loop nothing may block."""
    (tmp_path / "agent" / "workspace").mkdir(parents=True)
    made = Worker(tmp_path / "agent")
    with blockbuster_ctx():
        yield made
        await made.shell.close()
    made.files.close()


async def test_output_comes_as_it_is(worker: Worker) -> None:
    """Nothing is added to what went well."""
    assert await worker.run("echo hi; echo there >&2") == "hi\nthere\n"


async def test_a_python_caller_gets_values(worker: Worker) -> None:
    """Standard output and standard error apart, and the exit status; a model reads the same call as text."""
    execute = worker.registry.get("execute_command")
    values = await execute(command="echo hi; echo there >&2; (exit 3)")
    assert (values["stdout"], values["stderr"], values["exit_code"]) == ("hi\n", "there\n", 3)
    assert (values["timed_out"], values["asked"]) == (False, None)
    assert isinstance(values, dict)
    assert await worker.run("echo hi; echo there >&2; (exit 3)") == "hi\nthere\n[exit status 3, T s]"
    assert (await execute(command="echo again"))["stdout"] == "again\n"


async def test_a_python_caller_gets_the_process_of_a_background_job(worker: Worker) -> None:
    values = await worker.registry.get("execute_command")(command="true", background=True)
    assert values["process"] > 0
    assert values["log"].startswith("/workspace/")


async def test_a_question_is_told(worker: Worker) -> None:
    """At a terminal of its own it is interrupted; without one it has found the end of its input."""
    asked = "it waited for input, which nobody can give, and was interrupted: use options such as -y; it asked: Sure?"
    program = "import pty; pty.spawn(['python3', '-c', 'input(\"Sure? \")'])"
    told = await worker.run(f"python3 -c {shlex.quote(program)}")
    assert asked in told
    assert "its time was over" not in told
    told = await worker.run("""python3 -c 'input("Name: ")'""")
    assert "it seems to have asked for input, and there is none: use options such as -y" in told


@pytest.mark.parametrize("command", ["echo 'Sure? [y/N]'", "printf 'Sure? '", "grep -c '[y/n]' /dev/null"])
async def test_a_text_that_looks_like_a_question_is_no_question(worker: Worker, command: str) -> None:
    assert "input" not in await worker.run(command)


async def test_what_cannot_be_seen_from_the_output_is_told(worker: Worker) -> None:
    """Exit status and time; that there was no output."""
    assert await worker.run("true") == "[exit status 0, T s]"
    assert await worker.run("echo hi; false") == "hi\n[exit status 1, T s]"
    assert await worker.run("printf hi; (exit 3)") == "hi\n[exit status 3, T s]"
    assert (
        await worker.run("printf '\\xff'")
        == "\ufffd\n[bytes that are no text are shown as \ufffd]\n[exit status 0, T s]"
    )


async def test_time_out_and_end_of_the_shell_are_told(worker: Worker) -> None:
    """And what is left of the shell's state."""
    await worker.run("X=kept")
    for seconds in (0.2, 2.0, 20.0):  # a busy machine may not have said "a" so soon
        told = await worker.run("echo a; sleep 100", timeout=seconds)
        if told.startswith("a"):
            break
    assert told == "a\n[its time was over: it was interrupted as by Ctrl-C]\n[exit status 130, T s]"
    assert await worker.run("echo $X") == "kept\n"
    assert await worker.run("exit 2") == (
        "[the shell has ended: it ended with exit status 2; the next command gets a fresh one]\n[exit status 2, T s]"
    )
    assert await worker.run("echo X=$X") == "X=\n"


async def test_file_tools_and_shell_see_the_same_files(worker: Worker) -> None:
    """By relative paths, which both take from the workspace."""
    await worker.told("write_file", path="src/a.py", content="print('from python')\n")
    assert await worker.run("python3 src/a.py > out.txt") == "[exit status 0, T s]"
    assert await worker.told("read_file", path="out.txt") == "from python\n"


async def test_absolute_path_of_the_file_tools_is_explained(worker: Worker) -> None:
    """Outside of a sandbox the shell knows no /workspace; only then, and only where it matters."""
    assert "use relative paths" in await worker.run("cat /workspace/a.py")
    assert "use relative paths" not in await worker.run("cat a.py; false x/workspace/y")


async def test_directory_for_one_command(worker: Worker) -> None:
    """By a path as the file tools take it; the gate judges it."""
    await worker.run("mkdir -p sub/below; cd sub")
    assert (await worker.run("pwd", working_dir="sub/below")).endswith("/workspace/sub/below\n")
    assert (await worker.run("pwd")).endswith("/workspace/sub\n")
    assert await worker.run("pwd", working_dir="nowhere") == "Error: there is no directory '/workspace/nowhere'"
    assert "'..' is never followed" in await worker.run("pwd", working_dir="..")
    for outside in ("/etc", "/logs"):
        assert await worker.run("pwd", working_dir=outside) == f"Error: there is no directory {outside!r}"
    await worker.run("ln -s /etc link")
    assert await worker.run("pwd", working_dir="/workspace/sub/link") == (
        "Error: there is no directory '/workspace/sub/link'"
    )


async def test_long_output_is_shortened_and_can_be_read(worker: Worker) -> None:
    """The file tool reads the whole by the path that the result names."""
    text = await worker.run("seq 20000")
    assert 6_000 < len(text) < 8_192 + 200
    found = re.search(r"\[the whole output is in (/workspace/\.cfs/\S+)\]\n\[exit status 0", text)
    assert found
    assert (await worker.told("read_file", path=found[1], start_line=9999, end_line=10000)).startswith("9999\n10000\n")
    assert "\n20000\n" in text
    begin = re.search(r"\[read what is left out with start_line=(\d+)\]", text)
    assert begin
    rest = await worker.told("read_file", path=found[1], start_line=int(begin[1]))
    assert f"\n{begin[1]}\n[..." in text
    assert rest.startswith(f"{begin[1]}\n{int(begin[1]) + 1}\n")


async def test_result_of_a_command_says_whether_it_is_cut(worker: Worker) -> None:
    for command, cut in (("seq 20000", True), ("seq 20", False)):
        result = await worker.registry.call(ToolCall(id="1", name="execute_command", arguments={"command": command}))
        assert result.truncated is cut


async def test_background_job_is_told_with_process_and_file(worker: Worker) -> None:
    """It goes on; its output is read like a file."""
    text = await worker.run("echo from the job; sleep 0.1", background=True)
    found = re.fullmatch(
        r"\[job 1: process (\d+) runs in the background and writes to (/workspace/\.cfs/\S+); to end it: kill -- -\1\]",
        text,
    )
    assert found
    await worker.run(f"while kill -0 {found[1]} 2>/dev/null; do sleep 0.02; done")
    assert await worker.told("read_file", path=found[2]) == "from the job\n[ended with exit status 0]\n"


async def test_process_left_in_the_background_is_told(worker: Worker) -> None:
    """With the file that gets what it writes from now on."""
    text = await worker.run("echo now; { until test -e go; do sleep 0.02; done; echo later; } &")
    found = re.search(r"^now\n\[a process goes on in the background; .* is in (/workspace/\S+)\]\n", text)
    assert found
    await worker.run("echo >go; wait; while ! grep -q later .cfs/*; do sleep 0.02; done")
    assert await worker.told("read_file", path=found[1]) == "now\nlater\n"


async def test_arguments_that_make_no_sense_are_refused(worker: Worker) -> None:
    """A time-out of nothing, or of a day; a NUL."""
    for timeout in (0, -1, 86_400, "soon"):
        assert "'timeout' " in await worker.run("true", timeout=timeout)
    assert await worker.run("echo \0") == "Error: a command cannot hold NUL"


async def test_tool_waits_longer_than_its_shell(worker: Worker) -> None:
    """The time-out is the shell's, whose result tells what was written until then."""
    assert (worker.registry.get("execute_command").timeout or 0) > 3600


async def test_commands_are_bounded_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    """Memory, files, processor time and processes; all of it can be left to the system."""
    ask = "for kind in v f t u; do ulimit -$kind; done"
    worker = Worker(tmp_path / "agent")
    memory, file, seconds, processes = map(int, (await worker.run(ask)).split())
    assert memory >= 8 << 20  # in KiB
    assert (file, seconds) == (16 << 20, 3_600)
    assert processes >= 1_000
    await worker.shell.close()
    worker.files.close()
    free = Worker(tmp_path / "free", limits=Limits())
    assert (await free.run(ask)).split()[:3] == ["unlimited"] * 3
    await free.shell.close()
    free.files.close()


async def test_a_command_beyond_its_limits_fails_alone(tmp_path: Path) -> None:
    """It is told as the system tells it, and the next command works."""
    worker = Worker(tmp_path / "agent", limits=replace(usual_limits(), memory_bytes=1 << 30, file_bytes=1 << 20))
    assert "MemoryError" in await worker.run("python3 -c 'bytearray(2 << 30)'")
    assert "exit status" in await worker.run("head -c 2000000 /dev/zero >large")
    assert await worker.run("stat -c %s large") == "1048576\n"
    await worker.shell.close()
    worker.files.close()


@needs_bubblewrap
@pytest.mark.parametrize(
    "attempt",
    [
        "cat ROOT/journal.jsonl",
        "echo x >>ROOT/journal.jsonl",
        "rm -rf ROOT/logs/*; cat ROOT/logs/log",
        "cat /journal.jsonl",
        "ln -s ../journal.jsonl link; cat link",
        "mv ROOT/context_window_main.md /workspace",
        "cat ROOT/../secret",
    ],
)
async def test_in_a_sandbox_commands_reach_what_the_grants_say(tmp_path: Path, attempt: str) -> None:
    """Journal, logs, rules and memory are as they were, and what is not for reading is not there."""
    root = tmp_path / "agent"
    kept = {
        root / "journal.jsonl": "the journal",
        root / "logs/log": "the log",
        root / "context_window_main.md": "the window",
        tmp_path / "secret": "the secret",
    }
    (root / "logs").mkdir(parents=True)
    for path, text in kept.items():
        path.write_text(text)
    worker = Worker(root, sandbox=True)
    told = await worker.run(attempt.replace("ROOT", str(root)))
    assert not any(text in told for text in kept.values())
    assert {path: path.read_text() for path in kept} == kept
    assert await worker.run("echo ok >/workspace/a; echo ok >/storage/b; cat /workspace/a /storage/b") == "ok\nok\n"
    await worker.shell.close()
    worker.files.close()


@needs_bubblewrap
async def test_in_a_sandbox_paths_are_the_same_for_both(tmp_path: Path) -> None:
    """What the file tools call /workspace is /workspace to commands."""
    worker = Worker(tmp_path / "agent", sandbox=True)
    await worker.told("write_file", path="/workspace/a.txt", content="hi\n")
    assert await worker.run("cat /workspace/a.txt; echo new >/storage/b; pwd") == "hi\n/workspace\n"
    assert await worker.told("read_file", path="/storage/b") == "new\n"
    assert await worker.run("pwd", working_dir="/storage") == "/storage\n"
    assert "use relative paths" not in await worker.run("cat /workspace/missing")
    found = re.search(r"whole output is in (\S+)\]", await worker.run("seq 20000"))
    assert found
    assert await worker.run(f"wc -l <{found[1]}") == "20000\n"
    await worker.shell.close()
    worker.files.close()
