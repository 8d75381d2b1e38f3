"""A persistent shell: its state stays, its output is exact, its status is right (A5)."""

import shlex
import shutil
from contextlib import closing
from pathlib import Path
from shlex import quote
from textwrap import dedent

import pytest

from cfs_agents.shell import PersistentShell, ShellSettings
from cfs_agents.shell.core import ShellCore
from cfs_agents.shell.exchange import CommandExchange
from cfs_agents.tools import ShellClosed, ShellUnavailable
from tests.agents.tools.shells import KINDS, AnyShell, until
from tests.census import Census


@pytest.mark.parametrize(
    ("first", "then", "output"),
    [
        ("mkdir -p a/b; cd a/b", 'echo "${PWD##*/}"', "b\n"),
        ("export X=1; Y=2", 'echo "$X $Y"; bash -c \'echo "$X-$Y"\'', "1 2\n1-\n"),
        ('f() { echo "f of $1"; }', "f x", "f of x\n"),
        ("alias hello='echo hello there'", "hello", "hello there\n"),
        ("set -o pipefail; set -f", "false | true; echo $?; echo *", "1\n*\n"),
        ("shopt -s extglob; touch a b c", "echo !(a|.*)", "b c\n"),
        ("umask 027; ulimit -S -n 777", "umask; ulimit -n", "0027\n777\n"),
        ("set -- one two", 'echo "$# $2"', "2 two\n"),
        ("exec 3>three; echo from 3 >&3", "echo again >&3; cat three", "from 3\nagain\n"),
        ("declare -A m=([k]=v); readonly r=1", 'echo "${m[k]} $r"', "v 1\n"),
        ("false", "echo $?", "1\n"),
        ("(exit 42)", "echo $?; echo $?", "42\n0\n"),
        ("sleep 100 &", "kill $! && wait $!; echo $?", "143\n"),
        ("trap 'echo handled' USR1", "kill -USR1 $$; true", "handled\n"),
        ("cd /; cd /tmp", "cd - ", "/\n"),
    ],
)
def test_state_stays_from_command_to_command(shell: AnyShell, first: str, then: str, output: str) -> None:
    """As if both had been typed into one terminal."""
    assert shell.run(first).output == ""
    assert shell.run(then).output == output


@pytest.mark.parametrize(
    ("command", "output", "status"),
    [
        ("echo hi", "hi\n", 0),
        ("printf 'no newline'", "no newline", 0),
        ("printf '\\n\\n  x \\n\\n'", "\n\n  x \n\n", 0),
        ("printf 'a\\r\\nb\\tc\\033[1mbold\\033[0m'", "a\r\nb\tc\033[1mbold\033[0m", 0),
        ("echo out; echo err >&2; echo out", "out\nerr\nout\n", 0),
        ("printf '$ '", "$ ", 0),
        ("echo 'Are you sure? [y/N]'; printf 'Password: '", "Are you sure? [y/N]\nPassword: ", 0),
        (
            "cat <<'X' | tr a-z A-Z\n$HOME 'quotes' \"double\"\nX",
            "$HOME 'QUOTES' \"DOUBLE\"\n",
            0,
        ),
        ("for i in 1 2\ndo\n  if [ $i = 2 ]; then\n    echo two\n  fi\ndone", "two\n", 0),
        ("echo one; \\\necho two # a remark", "one\ntwo\n", 0),
        ("echo '日本語 ü 🙂'", "日本語 ü 🙂\n", 0),
        ("echo hello! !! !x", "hello! !! !x\n", 0),
        ("", "", 0),
        ("# nothing but a remark", "", 0),
        ("exit_status() { return 7; }; exit_status", "", 7),
        ("return 9", "", 9),
        ("bash -c 'kill -TERM $$'", "", 143),
        ("no_such_program_anywhere", "bash: no_such_program_anywhere: command not found\n", 127),
        ("echo $LINENO\n\necho $LINENO", "1\n3\n", 0),
        ('echo "$0"; declare -F; jobs; alias', "bash\n", 0),
        ("true & wait; echo waited", "waited\n", 0),
        ("echo a > >(cat); wait $!", "a\n", 0),
    ],
)
def test_output_and_status_are_exact(shell: AnyShell, command: str, output: str, status: int) -> None:
    """No echo, no prompt, no escape sequence but the command's own; what is written on both outputs keeps its order."""
    result = shell.run(command)
    assert (result.output, result.status) == (output, status)
    assert (result.timed_out, result.ended, result.left_out, result.record) == (False, None, 0, None)


@pytest.mark.parametrize(
    "wrong", ["echo 'open", 'echo "open', "if true; then", "echo a\n)", "for", "x=(1 2", "cat <<X | ("]
)
def test_syntax_error_is_told_and_the_shell_lives_on(shell: AnyShell, wrong: str) -> None:
    """Whatever is left open is closed with its command."""
    shell.run("X=kept")
    result = shell.run(wrong)
    assert result.status in (1, 2)
    assert "syntax error" in result.output or "unexpected EOF" in result.output
    assert shell.run("echo $X").output == "kept\n"


@pytest.mark.parametrize(
    "command",
    [
        "read answer; echo \"status $?, answer '$answer'\"; exit_with() { return 1; }; exit_with",
        "read -p 'Continue? [y/N] ' answer",
        "python3 -c 'input(\"Name: \")'",
        "python3",
        "cat",
        "echo y >/dev/tty",
        "exec 9</dev/tty",
        "python3 -c 'import getpass; getpass.getpass()' 2>/dev/null",
        "stty -echo",
        "tty",
        "bash -i -c 'read -p sure? x'",
    ],
)
def test_question_cannot_wait_for_an_answer(shell: AnyShell, command: str) -> None:
    """Standard input is empty and there is no terminal: whatever asks is told so at once, and ends."""
    result = shell.run(command, timeout=50)
    assert not result.timed_out
    assert shell.run("echo alive").output == "alive\n"


def at_a_terminal(program: str) -> str:
    """Write the command that gives a program a terminal of its own, without a person at it."""
    inner = ["python3", "-c", program]
    return f"python3 -c {shlex.quote(f'import pty; pty.spawn({inner!r})')}"


def test_question_at_a_terminal_is_reported_and_interrupted(shell: AnyShell) -> None:
    """Long before its time is over; the shell keeps its state."""
    shell.run("X=kept")
    result = shell.run(at_a_terminal("input('Overwrite? [y/N] ')"), timeout=50)
    assert result.asked == "Overwrite? [y/N]"
    assert not result.timed_out
    assert result.status != 0
    assert shell.run("echo $X").output == "kept\n"


def test_question_that_comes_late_is_reported_whole(shell: AnyShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program waits for an answer before its question has passed the program that has the terminal."""
    passes, passed = shell.run("pwd").output.strip() + "/passes", shell.run("pwd").output.strip() + "/passed"
    terminal = f"""
        import os, pty, time
        pid, master = pty.fork()
        if pid == 0:
            input("Overwrite? [y/N] ")
        question = os.read(master, 1000)
        while not os.path.exists({passes!r}):
            time.sleep(0.01)
        os.write(1, question)
        open({passed!r}, "w").close()
        os.waitpid(pid, 0)
    """
    look = ShellCore._awaits_input

    def looks(core: ShellCore, exchange: CommandExchange) -> bool:
        waits = look(core, exchange)
        if waits:
            Path(passes).touch()
            until(Path(passed).exists)
        return waits

    monkeypatch.setattr(ShellCore, "_awaits_input", looks)
    assert shell.run(f"python3 -c {shlex.quote(dedent(terminal))}", timeout=50).asked == "Overwrite? [y/N]"


def test_work_after_a_text_like_a_question_is_not_interrupted(shell: AnyShell) -> None:
    """Not what a program writes counts, but that it reads."""
    program = "import time; print('Continue? [y/N] ', end='', flush=True); time.sleep(2.5); print('done')"
    for command in (at_a_terminal(program), f"python3 -c {shlex.quote(program)}"):
        result = shell.run(command, timeout=50)
        assert result.asked is None
        assert result.status == 0
        assert result.output.rstrip().endswith("Continue? [y/N] done")


def test_question_in_the_background_interrupts_nothing(shell: AnyShell) -> None:
    """It is not waited for."""
    asks = at_a_terminal("input('Overwrite? ')")
    result = shell.run(f"{asks} >/dev/null & sleep 2.5; echo done", timeout=50)
    assert result.asked is None
    assert result.output == "done\n"


@pytest.mark.parametrize("program", ["top", "nano", "less", "more", "passwd", "ssh", "su", "man"])
def test_program_for_a_terminal_ends_by_itself(shell: AnyShell, program: str) -> None:
    """It finds none."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    commands = {"ssh": "ssh -o ConnectTimeout=1 -o BatchMode=no 127.0.0.1 true", "su": "su nobody", "man": "man man"}
    assert not shell.run(commands.get(program, program), timeout=50).timed_out


@pytest.mark.parametrize("kind", KINDS)
def test_editor_that_waits_for_keys_is_ended_in_time(kind: str, hasty: ShellSettings) -> None:
    """Vim ignores Ctrl-C; the shell goes on with its state."""
    if shutil.which("vi") is None:
        pytest.skip("vi is not installed")
    with closing(KINDS[kind](hasty)) as shell:
        shell.run("X=kept")
        assert shell.run("vi", timeout=0.2).timed_out
        assert shell.run("echo $X").output == "kept\n"


def test_background_child_cannot_hang_a_command(shell: AnyShell) -> None:
    """Nor can it write into the output of a later one; what it writes goes on record."""
    result = shell.run("{ until test -e go; do sleep 0.02; done; echo late; sleep 100; } & echo started")
    assert (result.output, result.status, result.still_running) == ("started\n", 0, True)
    later = shell.run(">go; while ! grep -q late .cfs/*; do sleep 0.05; done; echo mine")
    assert later.output == "mine\n"
    assert result.record
    assert result.record.read_text() == "started\nlate\n"


def test_background_child_that_writes_much_goes_on(shell: AnyShell) -> None:
    """More than a pipe holds: nothing may block it, and nothing may break its pipe."""
    result = shell.run("{ until test -e go; do sleep 0.02; done; seq 500000; touch done; } & true")
    shell.run(">go; while [ ! -e done ]; do sleep 0.05; done")
    assert result.record
    shell.run("kill -0 $! 2>/dev/null; wait")
    assert shell.run("cat .cfs/*output.txt | tail -n 1").output == "500000\n"


def test_stragglers_of_a_command_still_belong_to_it(shell: AnyShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bash does not wait for a process substitution; what comes right after the end is still read."""
    monkeypatch.setattr("cfs_agents.shell.exchange._STRAGGLE_SECONDS", 30.0)  # "right after", on a busy machine
    assert shell.run("echo through > >(sleep 0.01; cat)").output == "through\n"


def test_long_output_is_bounded_in_memory_and_whole_on_record(shell: AnyShell) -> None:
    """Ten megabytes: beginning and end are kept, cut at ends of lines."""
    result = shell.run("seq 1400000; echo the end")
    whole = "".join(f"{number}\n" for number in range(1, 1_400_001)) + "the end\n"
    assert len(whole) > 10_000_000
    assert result.record
    assert result.record.read_text() == whole
    assert len(result.output) < 33_000
    head, _, tail = result.output.partition(f"[... {result.left_out:,} bytes left out ...]\n")
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert head.endswith("\n")
    assert tail.endswith("the end\n")
    assert len(head) + len(tail) + result.left_out == len(whole)


def test_record_of_an_output_has_a_bound(settings: ShellSettings) -> None:
    """A program that writes without end does not fill the disk; the end of it is still shown."""
    with PersistentShell(ShellSettings(directory=settings.directory, most_recorded=100_000, keep=1000)) as shell:
        result = shell.run("yes | head -c 5000000; echo the end")
        assert result.record
        assert result.record.stat().st_size == 100_000
        assert result.output.endswith("the end\n")


def test_bytes_that_are_no_text_are_replaced_and_said(shell: AnyShell) -> None:
    """The record would have them as they are."""
    result = shell.run("printf 'a\\xffb\\xc3'")
    assert (result.output, result.binary) == ("a\ufffdb\ufffd", True)
    assert shell.run("head -c 10 /dev/zero").binary
    assert not shell.run("echo ü").binary


def test_outputs_can_be_kept_apart(settings: ShellSettings) -> None:
    """By a setting; then each has its own text."""
    with PersistentShell(ShellSettings(directory=settings.directory, merge=False)) as shell:
        result = shell.run("echo out; echo err >&2; (exit 3)")
        assert (result.output, result.errors, result.status) == ("out\n", "err\n", 3)


def test_directory_for_one_command_only(shell: AnyShell, tmp_path: Path) -> None:
    """Variables that are set there stay, the directory does not, also when the command goes elsewhere."""
    other = tmp_path / "a $HOME `x` \"y\" 'z' ü"
    other.mkdir()
    shell.run("mkdir sub; cd sub")
    result = shell.run("pwd; X=kept; cd /; false", directory=other)
    assert (result.output, result.status) == (f"{other}\n", 1)
    after = shell.run('echo "$? $X ${PWD##*/}"')
    assert after.output == "1 kept sub\n"
    assert after.directory.endswith("/workspace/sub")
    shell.run(f"cd {quote(str(other))}")
    assert shell.run("true", directory=tmp_path).directory == str(other)


def test_directory_that_is_not_there_is_refused(shell: AnyShell, tmp_path: Path) -> None:
    """Nothing is run."""
    with pytest.raises(NotADirectoryError):
        shell.run("touch ran", directory=tmp_path / "nowhere")
    assert shell.run("ls").output == ""


def test_command_with_nul_is_refused(shell: AnyShell) -> None:
    """No shell could take it."""
    with pytest.raises(ValueError, match="NUL"):
        shell.run("echo \0")


def test_very_long_command_is_run(shell: AnyShell) -> None:
    """A heredoc of a megabyte, as models write files."""
    text = "x" * 99 + "\n"
    assert shell.run("wc -c <<'END'\n" + text * 10_000 + "END").output == "1000000\n"


def test_job_in_the_background_writes_to_its_log(shell: AnyShell) -> None:
    """It has the shell's state, its own process group, and its log tells how it ended."""
    shell.run('f() { echo "from f, $X"; return 3; }; X=1')
    job = shell.background("f\necho err >&2\nf")
    shell.run(f"while ! grep -q ended {job.log}; do sleep 0.02; done", timeout=50)
    assert job.log.read_text() == "from f, 1\nerr\nfrom f, 1\n[ended with exit status 3]\n"
    long = shell.background("sleep 100; echo no")
    assert long.pid != job.pid
    shell.run(f"kill -- -{long.pid}; while kill -0 {long.pid} 2>/dev/null; do sleep 0.02; done", timeout=50)
    assert long.log.read_text() == ""
    assert shell.run("case $- in *m*) echo on;; *) echo off;; esac").output == "off\n"


def test_job_with_a_syntax_error_says_so_in_its_log(shell: AnyShell) -> None:
    """It was started, and ended."""
    job = shell.background("echo 'open")
    shell.run(f"while ! grep -q ended {job.log}; do sleep 0.02; done", timeout=50)
    assert "unexpected EOF" in job.log.read_text()


def test_shell_starts_with_its_first_command_and_ends_once(settings: ShellSettings) -> None:
    """Closing twice does no harm; what is closed runs nothing."""
    shell = PersistentShell(settings)
    assert not settings.directory.exists()
    assert shell.run("pwd").output == f"{settings.directory}\n"
    shell.close()
    shell.close()
    with pytest.raises(ShellClosed):
        shell.run("true")


def test_shell_that_cannot_start_says_why(settings: ShellSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, not a stack trace; and nothing is left behind."""
    before = Census.now()
    settings.directory.parent.joinpath("file").write_text("")
    with (
        PersistentShell(ShellSettings(directory=settings.directory.parent / "file" / "below")) as shell,
        pytest.raises((ShellUnavailable, NotADirectoryError)),
    ):
        shell.run("true")
    monkeypatch.setenv("PATH", str(settings.directory))
    with PersistentShell(settings) as shell, pytest.raises(ShellUnavailable, match="no bash"):
        shell.run("true")
    assert before.added() == []
