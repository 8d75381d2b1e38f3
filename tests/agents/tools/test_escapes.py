"""The hostile corpus runs in the sandbox, and nothing of it shows outside (A5).

What counts is what is outside, not an exit status: files, processes, sockets, settings of the machine, and a secret
that must not appear in an output or in the workspace. The corpus is in `escapes.toml`.
"""

import os
import re
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cfs.errors import CfsError
from cfs.wire import Message
from cfs_agents.context import ContextFileSystem, ContextItem
from cfs_agents.guards.ledger import ChangeLog
from cfs_agents.shell import ShellSettings
from cfs_agents.tools import Limits, PersistentShell, ShellUnavailable, agent_shell
from cfs_filesystem import OPERATIONS, DiskFileSystem, FileSystemError, Grant
from tests.agents.tools.shells import STRANGER, is_alive, until, with_argument
from tests.agents.tools.test_sandbox import needs_bubblewrap


@dataclass(frozen=True)
class Attempt:
    """One way out, as `escapes.toml` says it."""

    name: str
    script: str
    says: str = ""
    races: bool = False
    alone: bool = False
    timeout: float = 20.0


CORPUS = tomllib.loads(Path(__file__).with_name("escapes.toml").read_text())
ATTEMPTS = [
    *(
        Attempt(f"call: {name}", f"./k {name.split()[0].rstrip(',')} {words}", "EPERM|ENOSYS")
        for name, words in CORPUS["calls"].items()
    ),
    *(Attempt(**attempt) for attempt in CORPUS["attempt"]),
]

LEFT = "4711"
"""Seconds that only sleeping processes of the corpus have as an argument."""

VARIABLES = ("MYSQL_PWD", "SLACK_WEBHOOK_URL", "CI_JOB_JWT", "AZURE_STORAGE_CONNECTION_STRING", "MY_TOKEN")
SETTINGS = ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/pid_max", "vm/swappiness")


@dataclass
class World:
    """What is outside of a sandbox, with everything open to a process that can reach it."""

    base: Path
    token: str
    outer: subprocess.Popen[bytes]
    listeners: list[socket.socket]
    settings: dict[str, str]
    mounts: list[str]

    @property
    def words(self) -> dict[str, str]:
        """What the words in capitals of an attempt stand for."""
        return {
            "SECRET": f"{self.base}/secret",
            "CANARY": f"{self.base}/canary",
            "OUTSIDE": f"{self.base}/outside",
            "OUTER": str(self.outer.pid),
            "PORT": str(self.listeners[0].getsockname()[1]),
            "SOCKET": f"{self.base}/socket",
            "ABSTRACT": self.base.name,
            "SHARED": "$(dirname $(readlink /proc/self/fd/2))",
        }

    def restore(self) -> None:
        """Undo what an escape has done to the machine."""
        for name, value in machine_settings().items():
            if value != self.settings[name]:
                Path("/proc/sys", name).write_text(self.settings[name])

    def broken(self) -> list[str]:
        """Say what is not as it was."""
        canary, found = self.base / "canary", []
        if canary.read_text() != "precious" or canary.stat().st_mode & 0o7777 != 0o666:
            found.append("the canary was changed")
        if sorted(path.name for path in self.base.iterdir()) != sorted(
            ["agent", "canary", "outside", "secret", "socket"]
        ):
            found.append("something was made or removed outside")
        if list((self.base / "outside").iterdir()):
            found.append("something was made in the directory outside")
        if not is_alive(self.outer.pid) or Path(f"/proc/{self.outer.pid}/stat").read_text().split()[2] == "T":
            found.append("the process outside was hit")
        for listener in self.listeners:
            with suppress(BlockingIOError):
                listener.accept()[0].close()
                found.append(f"{listener.getsockname()} was reached")
        if machine_settings() != self.settings:
            found.append("a setting of the machine was changed")
        if mounts(self.base) != self.mounts:
            found.append("something was mounted outside")
        for folder, _, names in os.walk(self.base / "agent"):
            for path in (Path(folder, name) for name in names):
                with suppress(OSError):  # commands are at work there
                    status = path.lstat()
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    if status.st_mode & 0o6000:
                        found.append(f"{path.name} is a set-id program")
                    if status.st_size < 1 << 20 and self.token.encode() in read(path):
                        found.append(f"the secret is in {path.name}")
        return found


def read(path: Path) -> bytes:
    """Read a file that may have become a link or a pipe meanwhile."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read()


def mounts(base: Path) -> list[str]:
    """List what is mounted at and below the places of the system and ours; other tests mount things elsewhere."""
    ours = ("/usr", "/etc", "/bin", "/proc", "/sys", "/dev", "/run", str(base))
    others = f"{tempfile.gettempdir()}/pytest-"
    lines = {line: line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return [line for line, point in lines.items() if point.startswith(ours) and not point.startswith(others)]


def machine_settings() -> dict[str, str]:
    """Read some settings that are one for the whole machine."""
    found = {}
    for name in SETTINGS:
        with suppress(OSError):
            found[name] = Path("/proc/sys", name).read_text()
    return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Everything outside is readable and writable by all, so that nothing but the sandbox protects it."""
    token = f"s3cr3t-{secrets.token_hex(8)}"
    for name in VARIABLES:
        monkeypatch.setenv(name, token)
    with ExitStack() as stack:
        base = Path(tempfile.mkdtemp(prefix="cfs-world-", dir="/var/tmp"))  # not below folders that a sandbox replaces
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        base.chmod(0o755)
        for name, text, mode in (("secret", token, 0o644), ("canary", "precious", 0o666)):
            (base / name).write_text(text)
            (base / name).chmod(mode)
        (base / "outside").mkdir()
        (base / "outside").chmod(0o777)
        inherited = os.open(base / "secret", os.O_RDONLY)
        os.set_inheritable(inherited, True)
        stack.callback(os.close, inherited)
        listeners = [
            socket.create_server(("127.0.0.1", 0)),
            socket.socket(socket.AF_UNIX),
            socket.socket(socket.AF_UNIX),
        ]
        for listener, address in zip(listeners[1:], (f"{base}/socket", f"\0{base.name}"), strict=True):
            listener.bind(address)
            listener.listen()
        (base / "socket").chmod(0o777)
        for listener in listeners:
            listener.setblocking(False)
            stack.callback(listener.close)
        outer = subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], "SECRET": token})
        stack.callback(outer.wait)
        stack.callback(outer.kill)
        workspace = base / "agent" / "workspace"
        workspace.mkdir(parents=True)
        (workspace / "k.py").write_text(CORPUS["k"])
        shutil.copy(workspace / "k.py", workspace / "k")
        (workspace / "k").chmod(0o755)
        made = World(base, token, outer, listeners, machine_settings(), mounts(base))
        stack.callback(made.restore)
        yield made


def settings_of(world: World, account: str) -> ShellSettings:
    """Set up the shell of an agent: as ourselves, or (root only) as a user who may do nothing else here."""
    root = world.base / "agent"
    settings = agent_shell(root, sandbox=True, grace=0.3)
    if account == "ordinary":
        for path in (root, *root.rglob("*")):
            os.chown(path, STRANGER, STRANGER)
        settings = replace(settings, user=STRANGER, limits=replace(settings.limits, processes=200))
    return settings


def work(world: World, shell: PersistentShell, rounds: int) -> str:
    """Do what a runtime does in a workspace, while commands are at work there; returns what it has read."""
    workspace = world.base / "agent/workspace"
    read = []
    ledger = ChangeLog(workspace)
    ledger.mark("a")
    for number in range(rounds):
        with closing(DiskFileSystem(workspace.parent)) as disk:
            handle = disk.create_handle([Grant(prefix="/workspace/", ops=OPERATIONS)])
            for name in ("dir/file", "dir/read", "read"):
                with suppress(FileSystemError):
                    read.append(handle.read_file(f"/workspace/{name}"))
            with suppress(FileSystemError):
                handle.write("/workspace/dir/file", f"written {number}")
            with suppress(FileSystemError):
                handle.delete("/workspace/dir/file")
        with (
            ContextFileSystem(workspace / ".cfs/offloaded", "one", trusted=workspace, durable=False) as files,
            suppress(CfsError),
        ):
            files.offload([ContextItem.of(Message(role="user", content=f"text {number}"))])
            files.history()
            read.append(str(files.check_integrity()))
        read += [change.path for change in ledger.since("a")]
        read.append(str(ledger.present("dir/read")))
        read.append(shell.run("seq 8000", timeout=5).output)
        with suppress(NotADirectoryError):
            read.append(shell.run("pwd", directory=workspace / "dir", timeout=5).output)
    return "\n".join(read)


INTERFERES = {"pipe is read by somebody else", "bash's orders are stolen"}
"""Attempts that spoil the results of their own shell, which they may."""


def is_alone(attempt: Attempt) -> bool:
    """Whether an attempt needs a shell and a workspace that no other has used."""
    stays = attempt.name in INTERFERES or attempt.script.endswith("&")
    return attempt.alone or attempt.races or attempt.timeout != Attempt.timeout or stays


def tried(world: World, shell: PersistentShell, attempt: Attempt) -> list[str]:
    """Let commands make an attempt, and the next command run; say what is wrong then."""
    script = attempt.script
    for word, value in world.words.items():
        script = script.replace(word, value)
    shown = shell.run(script, timeout=attempt.timeout).output
    wrong = [] if re.search(attempt.says, shown, re.MULTILINE) else [f"it was not tried: {shown[-1000:]}"]
    if attempt.races:
        shown += work(world, shell, 5)
    for _ in range(3):  # what stole its output or its orders may have cost it a shell
        result = shell.run("echo alive", timeout=5)
        if result.output.endswith("alive\n") or attempt.name in INTERFERES:
            break
    else:
        wrong.append(f"the shell does not work any more: {result}")
    shown += result.output
    wrong += [f"{word} is in the output" for word in (world.token, "32 BITS RAN", "OPENED") if word in shown]
    return [f"{attempt.name}: {each}" for each in [*wrong, *world.broken()]]


@pytest.fixture(params=["own", "ordinary"])
def account(request: pytest.FixtureRequest) -> str:
    """Whose commands they are: those of the user who runs the tests, and of a user who may do nothing else here."""
    if request.param == "ordinary" and os.getuid() != 0:
        pytest.skip("the tests run as an ordinary user")
    return str(request.param)


@needs_bubblewrap
def test_nothing_gets_out(world: World, account: str) -> None:
    """Of anything that a command tries; and the next command runs."""
    with PersistentShell(settings_of(world, account)) as shell:
        wrong = [each for attempt in ATTEMPTS if not is_alone(attempt) for each in tried(world, shell, attempt)]
    assert wrong + world.broken() == []
    until(lambda: with_argument(LEFT) == [], "a process of the sandbox is left")


@needs_bubblewrap
@pytest.mark.parametrize("attempt", [each for each in ATTEMPTS if is_alone(each)], ids=lambda attempt: attempt.name)
def test_nothing_gets_out_meanwhile(world: World, attempt: Attempt, account: str) -> None:
    """Also not while the runtime works beside it, and when there is more of something than there should be."""
    with PersistentShell(settings_of(world, account)) as shell:
        wrong = tried(world, shell, attempt)
    assert wrong + world.broken() == []


def test_corpus_is_large_enough() -> None:
    """At least 60 ways out, all different."""
    assert len({attempt.script for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 100


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("write by path", "the canary was changed"),
        ("signals to a process outside", "the process outside was hit"),
        ("loopback", "was reached"),
        ("records go to a link", "something was made in the directory outside"),
        ("set-user-id bit by chmod", "is a set-id program"),
        ("read by path", "secret"),
    ],
)
def test_escape_would_be_seen(world: World, name: str, found: str) -> None:
    """Outside of a sandbox the same attempts succeed, and what looks for them says so."""
    (attempt,) = (attempt for attempt in ATTEMPTS if attempt.name == name)
    script = attempt.script
    for word, value in world.words.items():
        script = script.replace(word, value)
    workspace = world.base / "agent/workspace"
    with PersistentShell(
        ShellSettings(directory=workspace, limits=Limits(), keep_variables=frozenset(VARIABLES))
    ) as shell:
        output = shell.run(script, timeout=2).output
        if attempt.races:
            with suppress(ShellUnavailable):
                (workspace / ".cfs/made").touch()
    if found == "secret":
        assert world.token in output
        return
    until(lambda: found in str(world.broken()), found)  # a signal takes its time
