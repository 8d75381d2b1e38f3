"""One bash: its process, the descriptors to it, and what it may be sent."""

import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from cfs_agents.tools.registry import ShellUnavailable
from cfs_agents.tools.shell.confinement import USER, ShellSettings, bubblewrap, environment, ulimits

_CONTROL = 230
"""Number of the control descriptor in bash, or above: none that scripts use."""

_NS_GET_USERNS = 0xB701
_NEVER_USED_AGAIN = 300
"""Numbers of processes that Linux gives only once."""

COOKIE = "CFS_SHELL"
"""Variable by which everything that a shell started can be found."""


class Bash:
    """A running bash. What it is told goes to `send`; `control` is readable when it has said something.

    `group` is the process group (and session) of its commands: the shell's own, as it has no job control.
    `exit` is readable when it has ended, where the system can say so (Linux); else None. `signs` are the descriptors
    that are worth watching. `complaints` is the last line of what it said when it did not start.
    """

    def __init__(self, settings: ShellSettings, private: Path, cookie: str) -> None:
        """Start it; raises `ShellUnavailable`. Blocks for some milliseconds."""
        program = shutil.which("bash")
        if program is None:
            raise ShellUnavailable("there is no bash here")
        self.complaints = ""
        who = identity(settings.user)
        watched = settings.warden.environment if settings.warden else {}
        self.limits = ulimits(settings.limits, who.get("user", os.getuid()), cores=settings.sandbox is not None)
        with ExitStack() as ours, ExitStack() as theirs:
            orders, self._input = _pipe(theirs, ours)
            self.control, low = _pipe(ours, theirs)
            self.control_number = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _CONTROL)
            theirs.callback(os.close, self.control_number)
            teller = theirs.enter_context(ExitStack())
            told, tell = _pipe(theirs, teller)
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
                self.process = subprocess.Popen(  # noqa: S603 - running commands is what it is for
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
                        start,
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
            inner = _inner_process(told)
            self.group = inner or self.process.pid
            if inner and settings.limits.processes and who.get("user", os.getuid()) == 0:
                _bound_processes(inner, settings.limits.processes)
        os.set_blocking(self.control, False)
        os.set_blocking(self._input, False)
        os.set_blocking(self._said, False)
        self.exit = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else None
        self.signs = [each for each in (self.control, self.exit) if each is not None]

    def send(self, text: str) -> None:
        """Tell it something; it takes nothing more once it has ended, which shows elsewhere.

        Never blocks: the last order has been read before the next is sent, and one fits into the pipe.
        """
        with suppress(OSError):  # it has ended, or was told the last
            os.write(self._input, text.encode("utf-8", "surrogateescape"))

    def listen(self) -> bytes:
        """Return what it has said. When it can say nothing any more, it is told nothing any more."""
        try:
            data = os.read(self.control, 65536)
        except BlockingIOError:
            return b""
        if not data:
            self.signs.remove(self.control)
            self.hang_up()
        return data

    def hang_up(self) -> None:
        """Tell it that there is nothing more to come: it ends when it looks for the next order."""
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    def interrupt(self) -> None:
        """Send what Ctrl-C sends, to the shell and the command that it waits for.

        Background processes ignore it: without job control bash starts them so.
        """
        self.take_complaints()  # where nobody reads them, bash would wait one day
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signal.SIGINT)

    def kill(self) -> None:
        """End the process group at once, all of it in one step: not even a fork bomb in it gets away.

        Not when it has been waited for: its number may be another's by now.
        """
        if self.process.returncode is None:
            for group in {self.group, self.process.pid}:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)

    def take_complaints(self) -> None:
        """Read what it has said apart from its commands: why it does not start, or a line for each Ctrl-C."""
        with suppress(OSError):  # it said nothing
            self.complaints = os.read(self._said, 65536).decode("utf-8", "replace").strip().rpartition("\n")[2]

    def release(self) -> int:
        """Let go of it once it has ended, or is about to; returns its exit status, negative for a signal."""
        self.hang_up()
        status = self.process.wait()
        self.take_complaints()
        os.close(self._said)
        os.close(self.control)
        if self.exit is not None:
            os.close(self.exit)
        return status


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Make a pipe, and say who closes its two ends."""
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
    """Read what bubblewrap says of the process that it started; nothing when there is no bubblewrap, or it failed."""
    with os.fdopen(descriptor, closefd=False) as report:  # ends when it has written, or ended
        text = report.read()
    try:
        return int(json.loads(text)["child-pid"])
    except (ValueError, KeyError):
        return None


def _bound_processes(inner: int, most: int) -> None:
    """Bound the processes of root's sandbox, which its limits do not: by the largest number that one may have there.

    Linux has that for each namespace since 6.14; before, it is one for the machine, and left alone. `inner` is the
    first process of the sandbox. No command runs in there yet.
    """
    program = shutil.which("nsenter")
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if program is None or release is None or (int(release[1]), int(release[2])) < (6, 14):
        return
    with ExitStack() as stack, suppress(OSError):  # it has ended: that is found out later
        processes = os.open(f"/proc/{inner}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, processes)
        owner = fcntl.ioctl(processes, _NS_GET_USERNS)
        stack.callback(os.close, owner)
        order = f"echo {most + _NEVER_USED_AGAIN} >/proc/sys/kernel/pid_max"
        entering = [program, f"--user=/proc/self/fd/{owner}", f"--pid=/proc/self/fd/{processes}", "sh", "-c", order]
        subprocess.run(entering, pass_fds=(owner, processes), capture_output=True, check=False)  # noqa: S603


def identity(user: str | int | None) -> dict[str, Any]:
    """Say as whom a process runs: a user with its own group, and no other; nothing for ourselves."""
    if user is None:
        return {}
    try:
        known = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        if not isinstance(user, int):
            raise ShellUnavailable(f"there is no user {user!r} here") from None
        return {"user": user, "group": user, "extra_groups": []}  # a number without a name will do
    return {"user": known.pw_uid, "group": known.pw_gid, "extra_groups": []}


def _resetting() -> Callable[[], None] | None:
    """Return what lets a child take Ctrl-C where we ignore it ourselves (started by `nohup` or with `&`).

    Bash cannot undo what it inherits. Only then, as such a function costs `vfork` and safety among threads.
    """
    ignored = [number for number in (signal.SIGINT, signal.SIGQUIT) if signal.getsignal(number) is signal.SIG_IGN]

    def reset() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)

    return reset if ignored else None
