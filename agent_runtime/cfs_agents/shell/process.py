"""The bash process of a shell: how it starts, gets orders, is interrupted and ends."""

import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from cfs_agents.base.logs import get_logger
from cfs_agents.shell.environment import environment
from cfs_agents.shell.errors import ShellUnavailable
from cfs_agents.shell.limits import ulimits
from cfs_agents.shell.sandbox import USER, bubblewrap
from cfs_agents.shell.settings import ShellSettings

_log = get_logger(__name__)
_CONTROL = 230
"""Least number of the control descriptor in bash; scripts do not use such high numbers."""

_NS_GET_USERNS = 0xB701
_MAP_SECONDS = 10.0
"""How long bubblewrap may take to map the users of a process that it has reported."""
_NEVER_USED_AGAIN = 300
"""Process numbers that Linux does not use again after they wrap around."""

COOKIE = "CFS_SHELL"
"""Environment variable that marks all processes of a shell."""


class Bash:
    """A running bash. `send` gives it orders; the descriptor `control` becomes readable when it reports something.

    - `group` is the process group (and session) of its commands: the shell's own, because it has no job control.
    - `exit` is a descriptor that becomes readable when bash has ended; None if the system has none (not Linux).
    - `signs` are the descriptors to watch.
    - `complaints` is the last line of its own error output, the reason if it did not start.
    """

    def __init__(self, settings: ShellSettings, private: Path, cookie: str) -> None:
        """Start bash; raises `ShellUnavailable`. Blocks for some milliseconds."""
        program = shutil.which("bash")
        if program is None:
            raise ShellUnavailable("there is no bash here")
        self.complaints = ""
        who = identity(settings.user)
        watched = settings.reaper.environment if settings.reaper else {}
        self.limits = ulimits(settings.limits, who.get("user", os.getuid()), cores=settings.sandbox is not None)
        with ExitStack() as ours, ExitStack() as theirs:
            orders, self._input = _pipe(theirs, ours)
            self.control, low = _pipe(ours, theirs)
            self.control_number = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _CONTROL)
            theirs.callback(os.close, self.control_number)
            teller = theirs.enter_context(ExitStack())
            read_end, tell = _pipe(theirs, teller)
            self._said, say = _pipe(ours, theirs)
            start = settings.inside(settings.directory)
            command = ["bash", "--norc", "--noprofile", "--noediting", "-i", "-s"]
            passed = [self.control_number]
            named: dict[str, str] = {}
            if settings.sandbox:

                def data(text: bytes) -> int:
                    passed.append(theirs.enter_context(_text(text)))
                    return passed[-1]

                command = [*bubblewrap(settings.sandbox, start, private, tell, data), *command]
                passed.append(tell)
                named = {"USER": USER, "LOGNAME": USER}
            try:
                self.process = subprocess.Popen(  # noqa: S603 - a shell runs commands
                    command,
                    executable=None if settings.sandbox else program,
                    stdin=orders,
                    stdout=subprocess.DEVNULL,
                    stderr=say,
                    cwd=None if settings.sandbox else settings.directory,
                    env=environment(
                        os.environ,
                        {**named, COOKIE: cookie, **watched, **settings.environment},
                        settings.keep_variables,
                        settings.inside(settings.home or settings.directory),
                    ),
                    pass_fds=passed,
                    start_new_session=True,
                    preexec_fn=_resetting(),
                    **who,
                )
            except OSError as error:
                raise ShellUnavailable(f"bash does not start: {error.strerror}") from error
            ours.pop_all()
            teller.close()
            inner = _inner_process(read_end)
            self.group = inner or self.process.pid
            if inner and settings.limits.processes and who.get("user", os.getuid()) == 0:
                _bound_processes(inner, settings.limits.processes)
        os.set_blocking(self.control, False)
        os.set_blocking(self._input, False)
        os.set_blocking(self._said, False)
        self.exit = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else None
        self.signs = [descriptor for descriptor in (self.control, self.exit) if descriptor is not None]

    def send(self, text: str) -> None:
        """Send an order to bash. If bash has ended nothing is sent, and `exit` or `control` reports the end.

        Never blocks: bash has read the last order before the next is sent, and one order fits into the pipe.
        """
        with suppress(OSError):  # bash has ended, or its input is closed
            os.write(self._input, text.encode("utf-8", "surrogateescape"))

    def listen(self) -> bytes:
        """Return the bytes on the control descriptor. At its end, also close the input of bash."""
        try:
            data = os.read(self.control, 65536)
        except BlockingIOError:
            return b""
        if not data:
            self.signs.remove(self.control)
            self.hang_up()
        return data

    def hang_up(self) -> None:
        """Close the input of bash, so that bash ends when it reads the next order."""
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    def interrupt(self) -> None:
        """Send SIGINT to the shell and to the command that it waits for, as Ctrl-C does.

        Background processes ignore it, because bash starts them so without job control.
        """
        self.take_complaints()  # or the pipe would fill up one day, and bash would block
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signal.SIGINT)

    def kill(self) -> None:
        """Kill the whole process group with one signal, which also stops a fork bomb.

        Does nothing after `release`, because another process may have the number by then.
        """
        if self.process.returncode is None:
            for group in {self.group, self.process.pid}:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)

    def take_complaints(self) -> None:
        """Read bash's own error output: the reason why it does not start, or a line for each Ctrl-C."""
        with suppress(OSError):  # there is none
            self.complaints = os.read(self._said, 65536).decode("utf-8", "replace").strip().rpartition("\n")[2]

    def release(self) -> int:
        """Wait for the end of bash and close all descriptors; returns the exit status, negative for a signal."""
        self.hang_up()
        status = self.process.wait()
        self.take_complaints()
        os.close(self._said)
        os.close(self.control)
        if self.exit is not None:
            os.close(self.exit)
        return status


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Return a new pipe whose two ends are closed by these stacks."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


@contextmanager
def _text(text: bytes) -> Iterator[int]:
    """Yield a descriptor from which a text can be read."""
    descriptor = os.memfd_create("cfs")
    try:
        os.write(descriptor, text)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _inner_process(descriptor: int) -> int | None:
    """Return the process that bubblewrap reports to have started; None without bubblewrap, or if it failed."""
    with os.fdopen(descriptor, closefd=False) as report:  # ends when bubblewrap has reported, or has ended
        text = report.read()
    try:
        return int(json.loads(text)["child-pid"])
    except (ValueError, KeyError):
        return None


def _bound_processes(inner: int, max_processes: int) -> None:
    """Limit the number of processes in a sandbox of root, for which `RLIMIT_NPROC` does not apply, by `pid_max`.

    Linux has `pid_max` for each namespace since 6.14. Before, there is one for the machine, which stays as it is.
    `inner` is the first process of the sandbox; no command runs in it yet.
    """
    program = shutil.which("nsenter")
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if program is None or release is None or (int(release[1]), int(release[2])) < (6, 14):
        return
    with ExitStack() as stack, suppress(OSError):  # bash has ended; this is noticed later
        processes = os.open(f"/proc/{inner}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, processes)
        owner = fcntl.ioctl(processes, _NS_GET_USERNS)
        stack.callback(os.close, owner)
        await_users(inner)
        order = f"echo {max_processes + _NEVER_USED_AGAIN} >/proc/sys/kernel/pid_max"
        entering = [program, f"--user=/proc/self/fd/{owner}", f"--pid=/proc/self/fd/{processes}", "sh", "-c", order]
        done = subprocess.run(entering, pass_fds=(owner, processes), capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            _log.warning("shell.processes_not_bounded", reason=done.stderr.strip())


def await_users(process: int) -> None:
    """Wait until the users of a process are mapped: bubblewrap reports it earlier, when no limit can be set yet."""
    end = time.monotonic() + _MAP_SECONDS
    while not Path(f"/proc/{process}/uid_map").read_bytes() and time.monotonic() < end:
        time.sleep(0.001)


def identity(user: str | int | None) -> dict[str, Any]:
    """Return the arguments of `Popen` for a user with only its own group; empty for the user of the runtime."""
    if user is None:
        return {}
    try:
        account = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        if not isinstance(user, int):
            raise ShellUnavailable(f"there is no user {user!r} here") from None
        return {"user": user, "group": user, "extra_groups": []}  # a number needs no name
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _resetting() -> Callable[[], None] | None:
    """Return a function that lets a child accept Ctrl-C if the runtime ignores it (started by `nohup` or with `&`).

    Bash cannot reset signals that it inherits as ignored. Otherwise the result is None, because such a function
    prevents `vfork` and is not safe among threads.
    """
    ignored = [number for number in (signal.SIGINT, signal.SIGQUIT) if signal.getsignal(number) is signal.SIG_IGN]

    def reset() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)

    return reset if ignored else None
