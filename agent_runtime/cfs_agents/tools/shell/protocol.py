"""Work on a shell as steps that say what they wait for, and the two ways to take them: blocking, and in a loop.

What a shell does is written once, as a generator. It never waits: it yields what it wants to wait for and is sent the
answer. `take` and `async_take` are the only places that know how to wait.
"""

import asyncio
import re
import secrets
import select
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from shlex import quote
from typing import Any, TypeAlias, TypeVar

import structlog

from cfs_agents.tools.registry import in_thread
from cfs_agents.tools.shell.census import boot_ticks
from cfs_agents.tools.shell.output import PIPE_SIZE, Outlet
from cfs_agents.tools.shell.process import Bash

# What bash is told in order to run a command, and how the end of it is recognised (A5). Pure: no I/O.
#
# Bash reads its orders from standard input, as an interactive shell without a terminal. Why interactive: only such a
# one takes Ctrl-C as a user means it: it gives up the whole command, with its loops and lists, and lives on with its
# state. An order is two lines. The first lets bash `source` a file that holds the command, its standard descriptors
# opened for it alone, and the control descriptor closed. The second tells on the control descriptor how it ended,
# between marks that nobody can guess.
#
# Why a file and not `eval`: while it sources, bash does not behave as at a prompt (no `[1] 1234` after `&`, no "exit"),
# and lines are numbered from 1. Why descriptors for each command: what an earlier one left behind cannot write into the
# output of a later one, `exec >file` ends with its command, and `set -x` shows nothing of the orders, whose own trace
# goes to the standard error of the shell, which is /dev/null.

_LONGEST_MARK = 64 << 10
_MARK = re.compile(rb"(\d{1,3}) (\d{0,10}) (.*)", re.DOTALL)
_SPECIAL = re.compile(r'([\\"$`])')


@dataclass(frozen=True, slots=True)
class Mark:
    """How a command ended: exit status, the shell's directory now, and its newest background process."""

    status: int
    directory: str
    background: int | None


class MarkReader:
    """Finds the mark of one command in what comes on the control descriptor, cut anywhere.

    A command can write there, too, as much as it likes: what is no mark is dropped, and a mark has a bound.
    """

    def __init__(self, token: str) -> None:
        self._begin, self._end = f"\n{token} ".encode(), f"\n{token}\n".encode()
        self._data = b"\n"

    def feed(self, data: bytes) -> Mark | None:
        """Take what was read; return the mark when it is complete."""
        self._data += data
        begin = self._data.find(self._begin)
        self._data = self._data[begin if begin >= 0 else 1 - len(self._begin) :][-_LONGEST_MARK:]
        told, ended, _ = self._data.removeprefix(self._begin).rpartition(self._end)
        found = _MARK.fullmatch(told) if begin >= 0 and ended else None
        if found is None:
            return None
        status, background, directory = (part.decode("utf-8", "surrogateescape") for part in found.groups())
        return Mark(int(status), directory, int(background) if background else None)


def opening(limits: list[str]) -> str:
    """Say what makes an interactive shell a quiet one, and set its limits (arguments of `ulimit`)."""
    lines = [
        r"\builtin set +H +o history",  # "!" is a letter
        r"\builtin shopt -s execfail",  # a missing program does not end the shell
        r"\builtin unset HISTFILE MAILCHECK",
        "PS1= PS2=",
        *(rf"\builtin ulimit {limit} || \builtin exit 125" for limit in limits),
        r"\builtin exec 2>/dev/null",
    ]
    return "\n".join(lines) + "\n"


def order(script: str, pipes: Sequence[str], control: int, directory: str | None = None) -> str:
    """Say that the command in the file `script` is to be run, and write to named pipes: to one, or to one for each.

    With `directory` it runs there; `report` brings the shell back.
    """
    there = rf"\builtin cd -- {quote(directory)} && " if directory else ""
    output, errors = quote(pipes[0]), quote(pipes[1]) if len(pipes) > 1 else "&1"
    return rf"{there}\builtin source {quote(script)} </dev/null >{output} 2>{errors} {control}>&-" + "\n"


def report(token: str, control: int, back: str | None = None) -> str:
    r"""Say that the end of a command is to be told, and leave `$?` as it was for the next one.

    Why a function that removes itself: `return` is the only way to set `$?` without a new process, and a name that
    stays would show up in the model's `declare -F`. `$?` and `$!` are put into the text before it is evaluated. The
    backslashes keep aliases away, `builtin` functions of the same names.
    """
    begin, end = rf"\builtin printf '%s %s %s ' {token} STATUS 'BACKGROUND'", rf"\builtin printf '%s\n' {token}"
    body = [
        r"\builtin unset -f __cfs_end",
        *([rf"\builtin cd -- {quote(back)}"] if back else []),
        rf"{{ {begin}; \builtin pwd; {end}; }} >&{control}",
        r"\builtin return STATUS",
    ]
    text = _SPECIAL.sub(r"\\\1", "__cfs_end() { " + "; ".join(body) + "; }; __cfs_end")
    text = text.replace("STATUS", "$?").replace("BACKGROUND", "${!-}")
    return rf'\builtin eval "{text}"' + "\n"


def background(script: str, log: str) -> str:
    """Write the command that starts the file `script` as a background job with its own process group.

    Its output goes to the file `log`, which ends with a line that tells how the job ended.
    """
    job = (
        rf"{{ \builtin source {quote(script)}; \builtin printf '[ended with exit status %s]\n' $?; }}"
        rf" </dev/null >{quote(log)} 2>&1 &"
    )
    return rf"case $- in *m*) {job} ;; *) \builtin set -m; {job} \builtin set +m ;; esac" + "\n"


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Readable:
    """Wait until one of these descriptors can be read, for so many seconds at most; the answer is which."""

    descriptors: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Call something that may block for a moment; the answer is what it returns. Once begun it is done to its end."""

    call: Callable[[], Any]


Steps: TypeAlias = Generator[Readable | Work, Any, _T]


def take(steps: Steps[_T]) -> _T:
    """Take steps, blocking. What is raised while waiting (Ctrl-C) is raised inside of them, so that they clean up."""
    answer: Any = None
    failed: BaseException | None = None
    while True:
        try:
            wanted = steps.throw(failed) if failed else steps.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result
        failed = None
        try:
            answer = _ready(wanted) if isinstance(wanted, Readable) else wanted.call()
        except BaseException as error:  # noqa: BLE001 - raised again by the steps
            failed = error


async def async_take(steps: Steps[_T]) -> _T:
    """Take steps in a loop. A cancellation is raised inside of them, so that they clean up."""
    answer: Any = None
    failed: BaseException | None = None
    while True:
        try:
            wanted = steps.throw(failed) if failed else steps.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result
        failed = None
        try:
            answer = await (_async_ready(wanted) if isinstance(wanted, Readable) else _worked(wanted.call))
        except BaseException as error:  # noqa: BLE001 - raised again by the steps
            failed = error


async def _worked(call: Callable[[], Any]) -> Any:
    """Run it to its end also when cancelled meanwhile: it is short, and half of it would leave things behind."""
    work = asyncio.ensure_future(in_thread(call))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def _ready(wanted: Readable) -> set[int]:
    poll = select.poll()
    for descriptor in wanted.descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(max(0.0, wanted.seconds) * 1000)}


async def _async_ready(wanted: Readable) -> set[int]:
    if ready := _ready(Readable(wanted.descriptors, 0)):
        await asyncio.sleep(0)  # a command that writes all the time must not keep the loop to itself
        return ready
    loop = asyncio.get_running_loop()
    some = asyncio.Event()
    for descriptor in wanted.descriptors:
        loop.add_reader(descriptor, some.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(wanted.seconds):
                await some.wait()
    finally:
        for descriptor in wanted.descriptors:
            loop.remove_reader(descriptor)
    return _ready(Readable(wanted.descriptors, 0))


# One command on its way: its output is taken, its end is recognised, or brought about (A5).

_log = structlog.get_logger(__name__)

LAST_RESORT_SECONDS = 20.0
"""How long something may take that takes milliseconds: the start of bash, its end after SIGKILL."""

_STRAGGLE_SECONDS = 0.05
"""How long to read on after the end of a command whose output is still open: for what it wrote by way of others."""

_PRESSES = 2
_TRIES = 6
_POLL_SECONDS = 0.02


class Exchange:
    """A command that bash was given, or will be. Times are in seconds."""

    def __init__(self, bash: Bash) -> None:
        self.bash = bash
        self.began = time.monotonic()
        self.ticks = boot_ticks()
        self.token = secrets.token_hex(16)
        self.outlets: list[Outlet] = []
        self.report = ""
        """The order to tell the end of the command; empty as long as the command was not sent."""
        self.mark: Mark | None = None
        self.taken = 0
        """Bytes of output so far."""
        self._reader = MarkReader(self.token)
        self._exited = False

    @property
    def over(self) -> bool:
        """Whether the command, or bash, has ended."""
        return self.mark is not None or self._exited

    def follow(self, seconds: float) -> Steps[None]:
        """Take what comes until it is over or the time is."""
        deadline = time.monotonic() + seconds
        while not self.over and (left := deadline - time.monotonic()) > 0:
            watched = {outlet.descriptor: outlet for outlet in self.outlets if outlet.descriptor is not None}
            signs = self.bash.signs
            # Without a descriptor for the end of a process (not on Linux) one has to look now and then.
            ready = yield Readable((*watched, *signs), left if self.bash.exit in signs else min(left, _POLL_SECONDS))
            for descriptor in ready & watched.keys():
                yield from self._take(watched[descriptor])
            if self.bash.control in ready:
                self.mark = self._reader.feed(self.bash.listen())
            if self.mark is None:
                self._exited = self.bash.process.poll() is not None

    def stop(self, grace: float, kill: Callable[[set[int], int], object]) -> Steps[None]:
        """Bring it to its end: as Ctrl-C does, then by force, then with bash.

        Why Ctrl-C twice: when a program of a list ends by itself just as the first comes, bash takes it that the
        program has dealt with it, and goes on with the next. `kill(spare, since)` kills what the shell started since
        a time, but for some processes.
        """
        for _ in range(_PRESSES):
            if not self.over:
                self._interrupt()
                yield from self.follow(grace / _PRESSES)
        for _ in range(_TRIES):
            if self.over:
                return
            yield Work(partial(kill, {self.bash.process.pid, self.bash.group}, self.ticks))
            self._interrupt()  # bash goes on with the next command of a loop when the last was killed
            yield from self.follow(grace / _TRIES)
        _log.info("shell.killed", reason="it did not come back after Ctrl-C")
        self.bash.kill()
        yield from self.follow(LAST_RESORT_SECONDS)

    def _interrupt(self) -> None:
        """Press Ctrl-C, and ask again for the report: it may be the report that bash gives up."""
        self.bash.interrupt()
        self.bash.send(self.report)

    def take_rest(self) -> Steps[None]:
        """Take what it wrote before it was over: all that is in its pipes, and what stragglers write right after."""
        end = time.monotonic() + _STRAGGLE_SECONDS
        for outlet in self.outlets:
            taken = 0
            while outlet.descriptor is not None:
                more = yield from self._take(outlet)
                taken += more
                left = end - time.monotonic()
                if left <= 0 and (not more or taken > PIPE_SIZE):  # more than was there came from others
                    break
                if not more and outlet.descriptor is not None:
                    yield Readable((outlet.descriptor,), left)

    def _take(self, outlet: Outlet) -> Steps[int]:
        """Take what an outlet has; returns how many bytes that were."""
        data = outlet.read()
        self.taken += len(data or b"")
        if data == b"":
            outlet.end()
        elif data:
            if outlet.recorded or outlet.capture.overflows(len(data)):
                yield Work(partial(outlet.take, data))
            else:
                outlet.take(data)
        return len(data or b"")
