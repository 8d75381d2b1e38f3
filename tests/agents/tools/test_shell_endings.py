"""A command or its shell comes to an unplanned end: the shell lives on, or says that it did not (A5, B8)."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cfs_agents.shell import AsyncPersistentShell, Limits, PersistentShell, ShellSettings, census
from cfs_agents.tools import ShellClosed
from tests.agents.tools.shells import (
    KINDS,
    SLEEP,
    STRANGER,
    AnyShell,
    InALoop,
    comes,
    given_up,
    is_alive,
    until,
    with_argument,
)
from tests.census import Census


@pytest.mark.parametrize(
    "command",
    [
        "sleep SLEEP; touch after",
        "while true; do sleep SLEEP; done; touch after",
        "while :; do :; done; touch after",
        "f() { sleep SLEEP; touch after; }; f; touch after",
        "( sleep SLEEP; touch after ) && touch after\ntouch after",
        "sleep SLEEP | cat; touch after",
        "x=$(sleep SLEEP); touch after",
        "bash -c 'sleep SLEEP; touch after'; touch after",
        "cat <(sleep SLEEP); touch after",
        "sleep SLEEP & wait; touch after",
    ],
)
def test_time_out_is_ctrl_c(shell: AnyShell, command: str, tmp_path: Path) -> None:
    """The whole command is given up, with its loops and lists; the shell keeps its state, also the newest."""
    shell.run("cd /; cd - >/dev/null; X=kept; f() { echo f; }")
    command = command.replace("SLEEP", SLEEP)
    result = given_up(shell, f"echo before; Y=new; : >../begun\n{command}", tmp_path / "begun")
    assert (result.output, result.status, result.timed_out, result.ended) == ("before\n", 130, True, None)
    after = shell.run("echo $? $X $Y; ls")
    assert after.output == "130 kept new\n"
    assert not after.fresh


def test_time_out_is_ctrl_c_to_a_program_that_catches_it(shell: AnyShell, settings: ShellSettings) -> None:
    """It ends by the signal in its own way. Until it has started it may just fail, and bash goes on."""
    loop = "open('begun', 'w')\nwhile True:\n    pass"
    command = f'rm -f after; python3 -c "{loop}" 2>/dev/null; touch after'
    result = given_up(shell, command, settings.directory / "begun")
    assert (result.output, result.status, result.timed_out) == ("", 130, True)
    assert shell.run("ls").output == "begun\n"


def test_ctrl_c_at_any_moment_is_only_that(settings: ShellSettings) -> None:
    """Also when the command ends just then, or bash is telling its end: the shell keeps its state."""
    with PersistentShell(settings) as shell:
        shell.run("X=kept")
        for step in range(120):
            result = shell.run("for i in 1 2 3 4 5 6 7 8; do /bin/true; done; (exit 3)", timeout=0.0005 + step / 5000)
            assert result.ended is None
            assert result.status in ((130, 3, 0) if result.timed_out else (3,))
        assert shell.run("echo $X; declare -F").output == "kept\n"


def test_program_that_ends_well_after_ctrl_c_lets_the_command_go_on(shell: AnyShell, settings: ShellSettings) -> None:
    """As in a terminal: it is the program that says what Ctrl-C means to it."""
    program = f'trap "echo cleaned up; exit 0" INT; : >begun; sleep {SLEEP}'
    result = given_up(shell, f"bash -c '{program}'; echo next", settings.directory / "begun")
    assert (result.output, result.status, result.timed_out) == ("cleaned up\nnext\n", 0, True)


STUBBORN = [
    "(trap '' INT; : >begun; sleep SLEEP)",
    'python3 -c \'import signal, time; signal.signal(2, signal.SIG_IGN); open("begun", "w"); time.sleep(SLEEP)\'',
    "timeout 1000 bash -c ': >begun; exec sleep SLEEP'",
    "setsid -w bash -c ': >begun; exec sleep SLEEP'",
    "(trap '' INT TERM HUP; : >begun; while :; do sleep SLEEP; done)",
]
"""Commands that do not end by Ctrl-C. Each takes the whole grace, so one of the two shells tries one of them only."""


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        pytest.param(kind, command, marks=pytest.mark.slow if shell and number else ())
        for shell, kind in enumerate(KINDS)
        for number, command in enumerate(STUBBORN)
    ],
)
def test_what_ignores_ctrl_c_is_killed(kind: str, hasty: ShellSettings, command: str) -> None:
    """The shell keeps its state, and a background process of before lives on."""
    with closing(KINDS[kind](hasty)) as shell:
        shell.run(f"X=kept; sleep {SLEEP}0 & echo $! >pid")
        result = given_up(shell, command.replace("SLEEP", SLEEP), hasty.directory / "begun")
        assert (result.timed_out, result.ended) == (True, None)
        assert result.status in (130, 137)
        assert shell.run("echo $X; kill -0 $(cat pid) && echo alive").output == "kept\nalive\n"
        assert with_argument(SLEEP) == []


@pytest.mark.parametrize("kind", KINDS)
def test_shell_that_does_not_come_back_is_replaced(kind: str, settings: ShellSettings) -> None:
    """A loop in bash itself that ignores Ctrl-C can only end with bash; the result says so."""
    with closing(KINDS[kind](replace(settings, grace=0.4))) as shell:
        command = f"X=1; trap '' INT; : >begun; while :; do sleep {SLEEP}; done"
        result = given_up(shell, command, settings.directory / "begun")
        assert result.timed_out
        assert result.ended == "it was killed by signal 9"
        assert shell.run("echo X=$X").output == "X=\n"
        assert with_argument(SLEEP) == []


@pytest.mark.parametrize(
    ("command", "output", "status", "reason"),
    [
        ("echo out; exit", "out\n", 0, "it ended with exit status 0"),
        ("exit 3", "", 3, "it ended with exit status 3"),
        ("exec true", "", 0, "it ended with exit status 0"),
        ("exec bash -c 'sleep 0.1; echo other; exit 4'", "other\n", 4, "it ended with exit status 4"),
        ("echo out; kill -9 $$", "out\n", 137, "it was killed by signal 9"),
        ("set -e; false; echo not reached", "", 1, "it ended with exit status 1"),
        ("trap 'echo bye' EXIT; exit 5", "bye\n", 5, "it ended with exit status 5"),
        ("trap 'exit 6' ERR; false", "", 6, "it ended with exit status 6"),
        ("f() { exit 7; }; f", "", 7, "it ended with exit status 7"),
        ("sleep 1000 & exit 8", "", 8, "it ended with exit status 8"),
    ],
)
def test_shell_that_ends_is_replaced_and_says_so(
    shell: AnyShell, command: str, output: str, status: int, reason: str
) -> None:
    """The result has the output until then and the status; the next command gets a fresh shell where it all began."""
    shell.run("X=1; cd /")
    result = shell.run(command)
    assert (result.output, result.status, result.ended, result.timed_out) == (output, status, reason, False)
    after = shell.run('echo "X=$X ${PWD##*/}"')
    assert (after.output, after.status, after.ended) == ("X= workspace\n", 0, None)


def test_shell_that_died_between_two_commands_is_replaced_and_says_so(shell: AnyShell, settings: ShellSettings) -> None:
    """It ended unseen; the next command says that it has a fresh one."""
    pid = int(shell.run("echo $$; (until test -e go; do sleep 0.02; done; kill -9 $$) & disown").output)
    (settings.directory / "go").touch()
    until(lambda: not is_alive(pid))
    result = shell.run("echo back")
    assert (result.output, result.fresh, result.ended) == ("back\n", True, None)
    assert not shell.run("true").fresh


@pytest.mark.parametrize(
    ("first", "then", "output"),
    [
        ("PROMPT_COMMAND='echo prompt'; PS1='$ '; PS0='> '", "echo hi", "hi\n"),
        ("exec >/dev/null", "echo hi", "hi\n"),
        ("exec >lost 2>&1; echo into the file", "cat lost", "into the file\n"),
        ("exec </dev/null 1>&- 2>&-", "echo hi", "hi\n"),
        ("exec 230>&- 231>&- 232>&- 255>&-", "echo hi", "hi\n"),
        ("set -v", "set +v; echo hi", "set +v; echo hi\nhi\n"),
        ("set -u; set -C; set -f; set -o noglob; IFS=x", "echo hi", "hi\n"),
        ("set -o posix", "echo hi", "hi\n"),
        ("trap 'echo debug' DEBUG", "echo hi", "hi\n"),
        ("trap 'echo failed' ERR; true", "false", "failed\n"),
        ("trap '' EXIT; trap 'echo out' EXIT", "echo hi", "hi\n"),
        ("trap 'echo int' INT TERM HUP", "echo hi", "hi\n"),
        ("cd() { echo my cd; }; printf() { :; }; pwd() { :; }", "unset -f printf; printf hi", "hi"),
        ("eval() { echo my eval; }; source() { echo s; }; unset() { :; }; return() { echo r; }", "echo hi", "hi\n"),
        ("alias builtin='echo my' source='echo s' eval='echo e' case='echo c' cd='echo d'", "echo hi", "hi\n"),
        ('echo() { command echo "[$*]"; }', "echo hi", "[hi]\n"),
        ("readonly PWD OLDPWD PS1 PS2 IFS", "echo hi", "hi\n"),
        ("unset PWD HOME PATH; PATH=", "echo hi", "hi\n"),
        ("export LC_ALL=C LANG=tr_TR.UTF-8", "echo hi", "hi\n"),
        ("echo $((1/0)); echo not reached", "echo hi", "hi\n"),
        ("set -u; echo $missing; echo not reached", "echo hi", "hi\n"),
        ("exec no_such_program", "echo hi", "hi\n"),
        (": ${missing:?no}; echo not reached", "echo hi", "hi\n"),
        ("kill $$; kill -HUP 0 2>/dev/null || true; kill -QUIT $$", "echo hi", "hi\n"),
        ("kill -INT $$; echo not reached", "echo hi", "hi\n"),
        ("__cfs_end() { echo mine; }", "echo hi", "hi\n"),
        ("exec 10>ten", "echo hi", "hi\n"),
        ("shopt -s extdebug expand_aliases lastpipe xpg_echo; set -E -T", "echo hi", "hi\n"),
        ("history -c; set -o history; set -H", "echo hi", "hi\n"),
        ("mkdir gone; cd gone; rmdir ../gone", "echo hi", "hi\n"),
        ("unalias -a; shopt -u execfail", "echo hi", "hi\n"),
        ("TMOUT=1; sleep 0; MAILCHECK=0; MAIL=/etc/passwd", "echo hi", "hi\n"),
    ],
)
def test_what_a_command_does_to_the_shell_does_not_break_it(
    shell: AnyShell, first: str, then: str, output: str
) -> None:
    """What is said of the end of a command comes neither by its outputs nor by what can be redefined."""
    assert not shell.run(first).timed_out
    result = shell.run(then)
    assert (result.output, result.ended, result.timed_out) == (output, None, False)


@pytest.mark.parametrize(
    ("first", "replaced"),
    [
        ('for n in {3..300}; do eval "exec $n>&-"; done', True),
        ("set -r", True),
        ("ulimit -n 12", True),
        ('rm -rf /tmp/cfs-shell-* "${TMPDIR:-/nowhere}"/cfs-shell-*', False),
    ],
)
def test_shell_that_lost_what_it_needs_is_replaced(
    shell: AnyShell, first: str, replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a command closes every descriptor, or removes the files of the shell."""
    if not replaced:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        shell.close()
        shell = KINDS["sync"](ShellSettings(directory=tmp_path / "w"))
        first = f"rm -rf {tmp_path}/cfs-shell-*"
    shell.run("X=old")
    ends = [shell.run(first).ended, shell.run("true").ended]
    result = shell.run("echo hi $X")
    assert (result.output, result.status, result.ended) == ("hi\n" if replaced else "hi old\n", 0, None)
    assert any(ends) == replaced
    if not replaced:
        shell.close()


def test_marks_cannot_be_forged(shell: AnyShell) -> None:
    """A command that writes onto the control descriptor, where it can reach it, says nothing that is believed."""
    result = shell.run(
        "for fd in /proc/$$/fd/*; do case $(readlink $fd) in pipe:*) echo '00000000000000000000000000000000 0 0 /' "
        ">>$fd;; esac 2>/dev/null; done; (exit 9)"
    )
    assert result.status == 9
    assert shell.run("echo hi").output == "hi\n"


def test_xtrace_shows_the_command_and_nothing_of_ours(shell: AnyShell) -> None:
    """Lines of the trace are those of the command."""
    shell.run("set -x")
    traced = shell.run("echo hi\nfalse").output
    assert [line.lstrip("+ ") for line in traced.splitlines()] == ["echo hi", "hi", "false"]
    assert shell.run("set +x").output.lstrip("+ ") == "set +x\n"


def test_closing_ends_every_process(shell: AnyShell) -> None:
    """In the background, stopped, deaf to signals, in sessions of their own, orphaned: nothing is left."""
    shell.run(f"sleep {SLEEP} & nohup sleep {SLEEP} >/dev/null 2>&1 & (trap '' INT TERM HUP; sleep {SLEEP}) &")
    shell.run(f"setsid sleep {SLEEP} & setsid bash -c 'sleep {SLEEP} & sleep {SLEEP} & disown -a' &")
    shell.run(f"sleep {SLEEP} & until grep -q sleep /proc/$!/comm; do :; done; kill -STOP $!")
    shell.run(f"(setsid -f env -i sleep {SLEEP}); bash -c 'setsid sleep {SLEEP} &'")
    shell.background(f"sleep {SLEEP}")
    shell.run("exit")  # what the first bash left behind must be found too
    shell.run(f"sleep {SLEEP} &")
    until(lambda: len(with_argument(SLEEP)) == 11, f"only {len(with_argument(SLEEP))} have been started")
    orphan = [pid for pid in with_argument(SLEEP) if not Path(f"/proc/{pid}/environ").read_bytes()]
    shell.close()
    until(lambda: set(with_argument(SLEEP)) <= set(orphan))
    for pid in orphan:  # it left the session, its parents and the environment: only a sandbox holds that
        os.kill(pid, signal.SIGKILL)


def test_closing_runs_what_is_to_be_run_at_exit(shell: AnyShell, tmp_path: Path) -> None:
    """As when a terminal is left."""
    shell.run(f"trap 'echo bye >{tmp_path}/bye' EXIT")
    shell.close()
    assert (tmp_path / "bye").read_text() == "bye\n"


def test_closing_ends_a_command_that_runs(settings: ShellSettings) -> None:
    """The caller that waits for it gets an error: the shell has ended."""
    shell = PersistentShell(replace(settings, grace=0.4))
    shell.run("true")
    results = []
    waiting = threading.Thread(target=lambda: results.append(shell.run(f"touch started; sleep {SLEEP}")))
    waiting.start()
    until((settings.directory / "started").exists)
    shell.close()
    waiting.join(20)
    assert [result.ended for result in results] == ["it was killed by signal 9"]
    assert with_argument(SLEEP) == []


async def test_closing_ends_a_command_that_another_task_waits_for(settings: ShellSettings) -> None:
    """And one that waits for its turn is refused."""
    shell = AsyncPersistentShell(replace(settings, grace=0.4))
    await shell.run("true")
    running = asyncio.create_task(shell.run(f"touch started; sleep {SLEEP}"))
    waiting = asyncio.create_task(shell.run("true"))
    await comes(settings.directory / "started")
    await shell.close()
    assert (await running).ended == "it was killed by signal 9"
    with pytest.raises(ShellClosed):
        await waiting


async def cancelled(shell: AsyncPersistentShell, command: str) -> None:
    """Run a command that makes the file `started`, and cancel it then."""
    task = asyncio.create_task(shell.run(command))
    await comes(shell.settings.directory / "started")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelling_a_command_keeps_the_shell(settings: ShellSettings) -> None:
    """Ctrl-C again; the task ends at once, nothing runs on."""
    async with AsyncPersistentShell(settings) as shell:
        await shell.run("X=kept")
        await cancelled(shell, f"touch started; sleep {SLEEP}; touch after")
        assert with_argument(SLEEP) == []
        result = await shell.run("echo $X; ls")
        assert (result.output, result.fresh) == ("kept\nstarted\n", False), result


async def test_cancelling_a_silent_command_keeps_the_shell_beside_what_runs_on(settings: ShellSettings) -> None:
    """A background process still has the output of the command, and has written nothing."""
    async with AsyncPersistentShell(settings) as shell:
        await shell.run("X=kept")
        await cancelled(shell, f"sleep {SLEEP} & touch started; wait")
        result = await shell.run("echo $X; kill %1")
        assert (result.output, result.fresh) == ("kept\n", False), result


async def test_a_cancelled_command_that_ends_by_the_second_ctrl_c_keeps_the_shell(hasty: ShellSettings) -> None:
    async with AsyncPersistentShell(hasty) as shell:
        await shell.run("X=kept")
        program = "trap 'trap - INT' INT; touch started; while :; do sleep 0.05; done"
        await cancelled(shell, f'bash -c "{program}"')
        result = await shell.run("echo $X")
        assert (result.output, result.fresh) == ("kept\n", False), result


async def test_cancelling_twice_does_not_wait_for_what_ignores_it(settings: ShellSettings) -> None:
    """Then the shell goes with the command, and the next one is fresh."""
    async with AsyncPersistentShell(settings) as shell:
        task = asyncio.create_task(shell.run(f"trap '' INT; touch started; while :; do sleep {SLEEP}; done"))
        await comes(settings.directory / "started")
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await shell.run("echo hi")).output == "hi\n"
    assert with_argument(SLEEP) == []


async def test_cancelling_at_any_moment_leaves_a_shell_that_works(hasty: ShellSettings) -> None:
    """While it starts, is given the command, runs it, or is read: never half a shell, nothing left behind."""
    async with AsyncPersistentShell(hasty) as shell:
        await shell.run("true")
    await asyncio.to_thread(is_alive, 1)  # the thread that waits for the others in the end
    before = Census.now()
    for step in range(30):
        async with AsyncPersistentShell(hasty) as shell:
            task = asyncio.create_task(shell.run(f"seq 20000; sleep {SLEEP}"))
            for _ in range(step):
                await asyncio.sleep(0)
            await asyncio.sleep(step / 2000)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await shell.run("echo hi; ulimit -c; echo ${HISTFILE-none}")).output == "hi\n0\nnone\n"
    await asyncio.to_thread(until, lambda: before.added() == [], before.added)
    assert before.added() == []
    assert with_argument(SLEEP) == []


async def test_tasks_take_turns_and_the_loop_stays_free(settings: ShellSettings) -> None:
    """Commands of one shell never mix; others' work goes on meanwhile."""
    async with AsyncPersistentShell(settings) as shell, AsyncPersistentShell(settings) as other:
        commands = [f"echo {n}; until test -e quick; do sleep 0.01; done; echo {n}" for n in range(4)]
        slow = [asyncio.create_task(shell.run(command)) for command in commands]
        assert (await other.run("echo quick")).output == "quick\n"
        assert not any(task.done() for task in slow)
        (settings.directory / "quick").touch()
        assert [(await task).output for task in slow] == [f"{n}\n{n}\n" for n in range(4)]


def test_ctrl_c_at_the_program_ends_the_command_and_keeps_the_shell(settings: ShellSettings) -> None:
    """What a blocking shell waits for is ended when the program's own user presses Ctrl-C."""
    with PersistentShell(settings) as shell:
        shell.run("X=kept")

        def press() -> None:
            until((settings.directory / "started").exists)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            shell.run(f"touch started; sleep {SLEEP}")
        assert shell.run("echo $X").output == "kept\n"
    assert with_argument(SLEEP) == []


def test_program_that_ignores_ctrl_c_itself_can_still_send_it(tmp_path: Path) -> None:
    """Started with `nohup ... &` the runtime ignores SIGINT, and its children would inherit that."""
    program = (
        "import signal, pathlib; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from cfs_agents.shell import PersistentShell, ShellSettings\n"
        f"with PersistentShell(ShellSettings(directory=pathlib.Path({str(tmp_path)!r}), grace=30)) as shell:\n"
        "    result = shell.run('sleep 1357', timeout=0.2)\n"
        "    print(result.status, result.ended, shell.run('echo hi').output)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-2:] == ["130 None hi", ""]


@pytest.mark.parametrize("shells", [14, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_many_shells_leave_nothing(kind: str, shells: int, tmp_path: Path) -> None:
    """No process, no zombie, no descriptor, no thread, no file of ours; whatever way they ended."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    endings = ["true", f"sleep {SLEEP} &", "exit 3", "kill -9 $$", f"sleep {SLEEP}", "seq 20000", "exec 231>&-"]

    def one(number: int) -> None:
        shell = KINDS[kind](ShellSettings(directory=tmp_path / "w", grace=0.3))
        shell.run(endings[number % len(endings)], timeout=0.1 if number % len(endings) == 4 else 30)
        shell.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(temporary))
        threads = threading.active_count()
        one(0)
        until(lambda: threading.active_count() <= threads)
        before = Census.now()
        for number in range(shells):
            one(number)
    until(lambda: before.added() == [], before.added)
    assert with_argument(SLEEP) == []
    assert list(temporary.iterdir()) == []


def processes_of(user: int) -> list[int]:
    """Find the living processes of a user; what is dead is for the system's first process to take away."""
    found = [each.pid for each in psutil.process_iter(["uids"]) if each.info["uids"].real == user]
    return list(filter(is_alive, found))


def test_fork_bomb_ends_with_its_shell() -> None:
    """A bounded one, of a user who may have few processes: the machine stays usable, and nothing is left."""
    if os.getuid() != 0:
        pytest.skip("only root can run commands as another user, whose processes can be bounded")
    bomb = f"bomb() {{ sleep {SLEEP} & bomb | bomb & }}; bomb"
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, STRANGER, STRANGER)
        limits = Limits(processes=60)
        with PersistentShell(ShellSettings(directory=Path(name), user=STRANGER, limits=limits, grace=0.3)) as shell:
            assert shell.run("id -u; id -g").output == f"{STRANGER}\n{STRANGER}\n"
            shell.run(bomb, timeout=1)
            until(lambda: len(processes_of(STRANGER)) > 40)
            shell.run(f"sleep {SLEEP}", timeout=1)
            assert len(processes_of(STRANGER)) <= 60
    assert processes_of(STRANGER) == with_argument(SLEEP) == []


def test_loop_of_the_asynchronous_shell_has_no_reader_left(settings: ShellSettings) -> None:
    """The descriptors that were watched are watched no more."""
    shell = InALoop(settings)
    shell.run("echo hi; sleep 0.05")
    selector = shell._runner.get_loop()._selector  # type: ignore[attr-defined]
    assert len(selector.get_map()) == 1, "the loop's own"
    shell.close()


def test_the_program_that_ends_what_is_left_refuses_a_word_that_others_may_have() -> None:
    """It would end their processes, too."""
    command = [sys.executable, "-I", "-S", census.__file__, "x", "/nowhere"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.wait(60) == 1  # while its standard input is open, it ends nothing
        finally:
            program.kill()
        assert program.stderr is not None
        assert "short cookie" in program.stderr.read()


def test_the_program_that_ends_what_is_left_starts_fast() -> None:
    """Each runtime with a shell starts it: it imports nothing that takes longer than the interpreter."""
    code = f"import sys; sys.path.insert(0, {str(Path(census.__file__).parent)!r}); import census; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert {"dataclasses", "pathlib", "re", "secrets", "shutil", "typing"}.isdisjoint(done.stdout.split())
