"""Commands in bubblewrap: what they can reach, and that they are a persistent shell all the same (A5)."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from cfs_agents.shell import Limits, PersistentShell, Sandbox, ShellSettings
from cfs_agents.shell.orders import Mark, MarkReader
from cfs_agents.shell.process import await_users
from cfs_agents.shell.seccomp import seccomp_filter
from cfs_agents.tools import ShellUnavailable, agent_shell, sandbox_trouble
from tests.agents.tools.shells import KINDS, SLEEP, STRANGER, AnyShell, until, with_argument
from tests.census import Census


def reason_to_skip() -> str | None:
    """Say why there is no sandbox here; None where there is."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    probe = [
        "bwrap",
        "--unshare-user-try",
        "--unshare-pid",
        "--unshare-net",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "true",
    ]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    return tried.stderr.strip() or "bubblewrap does not work here" if tried.returncode else None


needs_bubblewrap = pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What an agent has, beside something that it has not."""
    (tmp_path / "agent" / "workspace").mkdir(parents=True)
    (tmp_path / "agent" / "storage").mkdir()
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "agent"


def boxed(root: Path) -> ShellSettings:
    """Settings for a shell in a sandbox."""
    workspace = root / "workspace"
    sandbox = Sandbox(
        writable=(workspace, root / "storage"), places={"/workspace": workspace, "/storage": root / "storage"}
    )
    return ShellSettings(directory=workspace, sandbox=sandbox, grace=2.0)


@pytest.fixture(params=KINDS)
def box(request: pytest.FixtureRequest, root: Path) -> Iterator[AnyShell]:
    """A shell of each kind in a sandbox."""
    shell = KINDS[request.param](boxed(root))
    yield shell
    shell.close()


@needs_bubblewrap
def test_workspace_has_the_name_that_file_tools_use(box: AnyShell, root: Path) -> None:
    """And its real one; both are the same directory."""
    assert (
        box.run("pwd; echo $HOME; echo hi >/workspace/a; echo there >/storage/b").output == "/workspace\n/workspace\n"
    )
    assert (root / "workspace" / "a").read_text() == "hi\n"
    assert (root / "storage" / "b").read_text() == "there\n"
    assert box.run(f"cat {root}/workspace/a").output == "hi\n"
    assert box.run("pwd; ls", directory=root / "storage").output == "/storage\nb\n"


@needs_bubblewrap
@pytest.mark.parametrize(
    "attempt",
    [
        "cat SECRET",
        "touch /usr/bin/evil",
        "touch /etc/evil",
        "cat /etc/shadow",
        "ls ~root /home",
        "ln -s SECRET link; cat link",
        "kill -9 OUTER",
        "cat /proc/OUTER/environ",
        "mount -t tmpfs x /usr",
        "chroot /proc/1/root true",
        "exec 3<>/dev/tcp/127.0.0.1/PORT",
    ],
)
def test_sandbox_holds(box: AnyShell, root: Path, attempt: str) -> None:
    """Neither the machine's files nor its processes nor its network are there."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        words = {"SECRET": f"{root.parent}/secret", "OUTER": str(os.getpid()), "PORT": str(server.getsockname()[1])}
        for word, value in words.items():
            attempt = attempt.replace(word, value)
        result = box.run(attempt)
    assert result.status != 0
    assert result.output != "secret"


@needs_bubblewrap
def test_sandboxed_shell_is_persistent_and_can_be_interrupted(box: AnyShell) -> None:
    """All that holds for a shell holds in there."""
    box.run("cd /storage; X=1; f() { echo f; }")
    assert box.run("echo $X; f; pwd").output == "1\nf\n/storage\n"
    result = box.run(f"sleep {SLEEP}; echo after", timeout=0.3)
    assert (result.output, result.status, result.timed_out, result.ended) == ("", 130, True, None)
    result = box.run(f"(trap '' INT; sleep {SLEEP})", timeout=0.2)
    assert (result.timed_out, result.ended) == (True, None)
    assert box.run("echo $X").output == "1\n"
    assert box.run("exit 3").ended == "it ended with exit status 3"
    assert box.run("pwd").output == "/workspace\n"


@needs_bubblewrap
def test_nothing_leaves_a_sandbox(box: AnyShell) -> None:
    """Its processes end with it, also one that left its session, its parents and its environment."""
    box.run(f"(setsid -f env -i sleep {SLEEP}); sleep {SLEEP} & setsid sleep {SLEEP} &")
    until(lambda: len(with_argument(SLEEP)) == 3)
    box.close()
    until(lambda: with_argument(SLEEP) == [])


@needs_bubblewrap
def test_job_and_long_output_are_where_files_are_read(box: AnyShell, root: Path) -> None:
    """Their files are in the workspace, by the machine's path here and by the other one in there."""
    job = box.background("echo from the job")
    until(lambda: job.log.exists() and "ended" in job.log.read_text())
    assert job.log.is_relative_to(root / "workspace" / ".cfs")
    assert box.run(f"cat /workspace/.cfs/{job.log.name}").output.startswith("from the job\n")
    result = box.run("seq 100000")
    assert result.record
    assert result.record.stat().st_size == 588_895


@needs_bubblewrap
def test_sandboxed_shells_leave_nothing(root: Path) -> None:
    """No process, descriptor or thread."""

    def one() -> None:
        with PersistentShell(boxed(root)) as shell:
            shell.run(f"sleep {SLEEP} & true")

    one()
    before = Census.now()
    for _ in range(10):
        one()
    until(lambda: before.added() == [])


@needs_bubblewrap
def test_sandbox_that_cannot_be_made_says_why(root: Path) -> None:
    """In the words of bubblewrap."""
    sandbox = Sandbox(writable=(root / "missing",))
    with (
        PersistentShell(ShellSettings(directory=root / "workspace", sandbox=sandbox)) as shell,
        pytest.raises(ShellUnavailable, match=r"bwrap: .*missing"),
    ):
        shell.run("true")


def test_missing_bubblewrap_is_told(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands never run outside of a sandbox that was asked for."""
    bash = shutil.which("bash")
    assert bash
    (tmp_path / "bash").symlink_to(bash)
    monkeypatch.setenv("PATH", str(tmp_path))
    with PersistentShell(boxed(root)) as shell, pytest.raises(ShellUnavailable, match="no bubblewrap"):
        shell.run("true")


@needs_bubblewrap
def test_missing_libseccomp_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the filter of calls there is no sandbox, by `cfs doctor` neither."""
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    seccomp_filter.cache_clear()
    with PersistentShell(boxed(root)) as shell, pytest.raises(ShellUnavailable, match="needs the library libseccomp"):
        shell.run("touch ran")
    assert "libseccomp" in str(sandbox_trouble())
    assert list((root / "workspace").iterdir()) == []
    monkeypatch.undo()
    assert sandbox_trouble() is None


@pytest.mark.parametrize(
    ("limits", "command", "reason"),
    [
        (Limits(file_bytes=100_000), "head -c 1000000 /dev/zero >big; stat -c %s big", "99328"),
        (Limits(memory_bytes=600 << 20), "python3 -c 'bytearray(10**9)'", "MemoryError"),
        (Limits(cpu_seconds=1), "python3 -c 'while True: pass'", ""),
    ],
)
def test_limits_hold_each_process(settings: ShellSettings, limits: Limits, command: str, reason: str) -> None:
    """Of file size, memory and processor time; the shell lives on."""
    with PersistentShell(ShellSettings(directory=settings.directory, limits=limits)) as shell:
        result = shell.run(command, timeout=50)
        assert reason in result.output
        assert result.status in (0, 1, 137, 152)
        assert not result.timed_out
        assert shell.run("ulimit -c; echo alive").output == "0\nalive\n"


SHARED = "$(dirname $(readlink /proc/self/fd/2))"
"""The directory of the shell's pipes and scripts, as commands find it."""


@needs_bubblewrap
@pytest.mark.parametrize(
    "attempt",
    [
        f"ln -sf CANARY {SHARED}/complaints; ln -sf CANARY /tmp/cfs-shells-*/*/complaints; exit",
        f"ln -sf CANARY {SHARED}/new",
        f"rm -f {SHARED}/command && ln -s CANARY {SHARED}/command",
        f"for pipe in {SHARED}/output-*; do mv $pipe {SHARED}/moved && ln -s CANARY $pipe; done",
        f"echo overwritten >{SHARED}/command",
        f"chmod 777 {SHARED}; mkdir {SHARED}/new",
        f"rm -rf {SHARED}",
        "rm -rf /workspace/.cfs; ln -s OUTSIDE /workspace/.cfs; seq 1 200000",
        "rm -rf /workspace/.cfs; ln -s OUTSIDE/new /workspace/.cfs; seq 1 200000",
        "rm -rf /workspace/.cfs; mkfifo /workspace/.cfs; seq 1 200000",
        "mkdir -p .cfs; (sleep 0.1; seq 200000) & rm -rf .cfs; ln -s OUTSIDE .cfs; exit",
    ],
)
def test_runtime_opens_nothing_that_a_command_has_replaced(box: AnyShell, root: Path, attempt: str) -> None:
    """What is outside is neither written nor read, and the shell works as before."""
    canary, outside = root.parent / "secret", root.parent / "outside"
    outside.mkdir()
    box.run(attempt.replace("CANARY", str(canary)).replace("OUTSIDE", str(outside)))
    for _ in range(3):
        result = box.run("echo hi; seq 20000 >/dev/null; (exit 3)")
        assert (result.output, result.status) == ("hi\n", 3)
    box.run("seq 20000")
    with suppress(ShellUnavailable):
        box.background("echo job")
    assert canary.read_text() == "secret"
    assert list(outside.iterdir()) == []


@needs_bubblewrap
def test_directory_of_scripts_and_pipes_is_read_only_in_a_sandbox(box: AnyShell) -> None:
    """A file that another process makes there, or removes, would be opened by the runtime."""
    for attempt in ("touch D/new", "rm D/command", "mv D/command D/x", "ln D/command D/x", "mkfifo D/x", "chmod 777 D"):
        result = box.run(attempt.replace("D", SHARED))
        assert result.status != 0, attempt
        assert "Read-only file system" in result.output, attempt


@needs_bubblewrap
def test_descriptors_of_the_runtime_are_not_in_a_sandbox(box: AnyShell, root: Path) -> None:
    """Bash has its orders and what it answers on; a command has its input and its output."""
    files = root / "workspace"
    told = box.run("for each in self $$ 1; do for fd in /proc/$each/fd/*; do readlink $fd; done >$each; done").output
    assert told == ""
    found = {line.partition("[")[0] for each in ("self", "1", "2") for line in (files / each).read_text().splitlines()}
    assert found <= {"/dev/null", "pipe:", "anon_inode:", "/workspace/self", "/workspace/1", "/workspace/2"} | {
        line for line in found if line.startswith("/run/cfs-shell/output-")
    }


def test_long_flood_on_the_control_descriptor_is_dropped() -> None:
    """A command can write there what it likes: memory stays bounded, nonsense ends nothing, and the mark is found."""
    reader = MarkReader("token")
    for _ in range(200):
        assert reader.feed(b"x" * 65536 + b"\ntoken") is None
        assert reader.feed(b"\ntoken 9999999999 -1 y\ntoken\n") is None
        assert len(reader._data) <= 65536
    assert MarkReader("token").feed(b"noise\ntoken 3 77 /there\ntoken\n") == Mark(3, "/there", 77)


def test_directory_inside_a_writable_one_is_refused(root: Path) -> None:
    """Commands could put a link in its place, which the next shell would bind."""
    with pytest.raises(ValueError, match="could replace it"):
        Sandbox(writable=(root,), places={"/workspace": root / "workspace"})
    with pytest.raises(ValueError, match="could replace it"):
        Sandbox(writable=(root,), readable=(root / "workspace",))


def test_leftovers_have_a_bound(settings: ShellSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that all leave something behind do not use up descriptors or threads: the oldest is let go."""
    monkeypatch.setattr("cfs_agents.shell.output._MOST_LEFTOVERS", 5)
    before = Census.now()
    with PersistentShell(settings) as shell:
        for _ in range(12):
            assert shell.run(f"sleep {SLEEP} & echo hi").still_running
        until(lambda: len([line for line in before.added() if "output.txt" in line]) <= 5)
        assert sum(line.startswith("thread") for line in before.added()) == 1
    until(lambda: before.added() == [])


BOMB = """
import os, time
started = 0
try:
    while started < 600:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        started += 1
except OSError as error:
    print(started, error.strerror)
"""


@needs_bubblewrap
@pytest.mark.skipif(os.getuid() != 0, reason="only root may map users as here")
def test_nothing_is_set_before_the_users_of_a_sandbox_are_there() -> None:
    """bubblewrap reports a process that has none yet: to bound its processes failed then, and none were bounded."""
    mapped: list[str] = []
    with subprocess.Popen(["unshare", "--user", "sleep", "60"]) as process:
        users = Path(f"/proc/{process.pid}/uid_map")
        until(lambda: users.read_text() == "")

        def wait() -> None:
            await_users(process.pid)
            mapped.append(users.read_text())

        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.05)
        users.write_text("0 0 1")
        waiting.join()
        process.kill()
    assert mapped[0].split() == ["0", "0", "1"]


@needs_bubblewrap
@pytest.mark.parametrize("user", [None, STRANGER], ids=["oneself", "a stranger"])
def test_processes_of_a_sandbox_are_bounded(user: int | None) -> None:
    """Root's, too, where the kernel can (Linux 6.14); and those of the machine are not."""
    if user is not None and os.getuid() != 0:
        pytest.skip("only root can run commands as another user")
    release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    if user is None and os.getuid() == 0 and release < (6, 14):
        pytest.skip("this kernel does not bound the processes of root")
    outside = Path("/proc/sys/kernel/pid_max").read_text()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        workspace = Path(name, "workspace")
        workspace.mkdir()
        if user is not None:
            os.chown(workspace, user, user)
        settings = replace(agent_shell(Path(name), sandbox=True), user=user, limits=Limits(processes=100), grace=0.2)
        settings = replace(settings, sandbox=Sandbox(writable=(workspace,), places={"/workspace": workspace}))
        with PersistentShell(settings) as shell:
            started, _, why = shell.run(f"python3 -c '{BOMB}'; kill -9 -1").output.partition(" ")
            assert why == "Resource temporarily unavailable\n"
            assert 80 <= int(started) < 400  # of root's, 300 numbers are given once and not counted
            assert shell.run("echo alive").output == "alive\n"
    assert Path("/proc/sys/kernel/pid_max").read_text() == outside
