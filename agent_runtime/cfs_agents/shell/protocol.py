"""The protocol between the runtime and bash: orders, the report of a command's end, and how to wait for it (A5).

Each operation is written once, as a generator of steps, for blocking code and for an event loop. A generator never
waits: it yields what to wait for and gets the result. `take` and `async_take` do the waiting.
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

from cfs_agents.base.logs import get_logger
from cfs_agents.base.threads import in_thread
from cfs_agents.shell.census import boot_ticks
from cfs_agents.shell.output import PIPE_SIZE, Outlet
from cfs_agents.shell.process import Bash

# -- orders and marks (A5) --------------------------------------------------------------------------------------------
#
# Bash reads its orders from standard input, as an interactive shell without a terminal. Why interactive: only an
# interactive bash handles Ctrl-C as a user expects. It stops the whole command, with its loops and lists, and keeps its
# state. An order has two lines. The first makes bash `source` a file with the command, with new standard descriptors
# and without the control descriptor. The second writes the exit status to the control descriptor, between random marks.
#
# Why a file and not `eval`: a sourced file does not behave as at a prompt (no `[1] 1234` after `&`, no "exit"), and its
# lines are numbered from 1. Why descriptors for each command: a background process of an earlier command cannot write
# into the output of a later one, `exec >file` ends with its command, and `set -x` does not show the orders. The trace
# of the orders goes to the standard error of the shell, which is /dev/null.

_LONGEST_MARK = 64 << 10
_MARK = re.compile(rb"(\d{1,3}) (\d{0,10}) (.*)", re.DOTALL)
_SPECIAL = re.compile(r'([\\"$`])')


@dataclass(frozen=True, slots=True)
class Mark:
    """The report of a command's end: exit status, current directory, and the newest background process."""

    status: int
    directory: str
    background: int | None


class MarkReader:
    """Finds the mark of one command in the bytes of the control descriptor, which arrive in pieces.

    A command can write to this descriptor, too. Other bytes are dropped, and the length of a mark is limited.
    """

    def __init__(self, token: str) -> None:
        self._begin, self._end = f"\n{token} ".encode(), f"\n{token}\n".encode()
        self._data = b"\n"

    def feed(self, data: bytes) -> Mark | None:
        """Add bytes; returns the mark when it is complete."""
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
    """Return the first order: it turns off prompts and history, and sets limits (arguments of `ulimit`)."""
    lines = [
        r"\builtin set +H +o history",  # "!" is an ordinary character
        r"\builtin shopt -s execfail",  # a missing program does not end the shell
        r"\builtin unset HISTFILE MAILCHECK",
        "PS1= PS2=",
        *(rf"\builtin ulimit {limit} || \builtin exit 125" for limit in limits),
        r"\builtin exec 2>/dev/null",
    ]
    return "\n".join(lines) + "\n"


def order(script: str, pipes: Sequence[str], control: int, directory: str | None = None) -> str:
    """Return the order to run the file `script` with its output on named pipes.

    One pipe takes both outputs; a second one takes standard error. With `directory` the command runs there; `report`
    changes back.
    """
    there = rf"\builtin cd -- {quote(directory)} && " if directory else ""
    output, errors = quote(pipes[0]), quote(pipes[1]) if len(pipes) > 1 else "&1"
    return rf"{there}\builtin source {quote(script)} </dev/null >{output} 2>{errors} {control}>&-" + "\n"


def report(token: str, control: int, back: str | None = None) -> str:
    r"""Return the order to report the end of a command. It leaves `$?` unchanged for the next command.

    Why a function that removes itself: `return` is the only way to set `$?` without a new process, and a function that
    stays would appear in the model's `declare -F`. `$?` and `$!` are inserted into the text before it is evaluated.
    The backslashes prevent aliases, and `builtin` prevents functions of the same names.
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
    """Return the command that starts the file `script` as a background job with its own process group.

    The output goes to the file `log`, whose last line is the exit status of the job.
    """
    job = (
        rf"{{ \builtin source {quote(script)}; \builtin printf '[ended with exit status %s]\n' $?; }}"
        rf" </dev/null >{quote(log)} 2>&1 &"
    )
    return rf"case $- in *m*) {job} ;; *) \builtin set -m; {job} \builtin set +m ;; esac" + "\n"


# -- steps ------------------------------------------------------------------------------------------------------------

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Readable:
    """Wait until a descriptor is readable, for at most `seconds`; the result is the set of readable descriptors."""

    descriptors: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Call a function that may block for a short time; the result is its return value. It is never interrupted."""

    call: Callable[[], Any]


Steps: TypeAlias = Generator[Readable | Work, Any, _T]


def take(steps: Steps[_T]) -> _T:
    """Run steps, blocking. An exception while waiting (Ctrl-C) is raised in the generator, so that it cleans up."""
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
    """Run steps in an event loop. A cancellation is raised in the generator, so that it cleans up."""
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
    """Run a function in a thread and wait for its end even if cancelled: it is short, and half of it would leak."""
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
        await asyncio.sleep(0)  # a command that writes constantly must not block the loop
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


# -- one command (A5) -------------------------------------------------------------------------------------------------

_log = get_logger(__name__)

LAST_RESORT_SECONDS = 20.0
"""Time limit of operations that take milliseconds: the start of bash, and its end after SIGKILL."""

_STRAGGLE_SECONDS = 0.05
"""Time to read after the end of a command whose output is still open, for output that other processes pass on."""

_PRESSES = 2
_TRIES = 6
_POLL_SECONDS = 0.02


class Exchange:
    """One command in bash: reads its output and recognises or forces its end. Times are in seconds."""

    def __init__(self, bash: Bash) -> None:
        self.bash = bash
        self.began = time.monotonic()
        self.ticks = boot_ticks()
        self.token = secrets.token_hex(16)
        self.outlets: list[Outlet] = []
        self.report = ""
        """The order to report the end of the command; empty until the command is sent."""
        self.mark: Mark | None = None
        self.taken = 0
        """Number of bytes of output so far."""
        self._reader = MarkReader(self.token)
        self._exited = False

    @property
    def over(self) -> bool:
        """Whether the command or bash has ended."""
        return self.mark is not None or self._exited

    def follow(self, seconds: float) -> Steps[None]:
        """Read output until the end of the command, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.over and (left := deadline - time.monotonic()) > 0:
            watched = {outlet.descriptor: outlet for outlet in self.outlets if outlet.descriptor is not None}
            signs = self.bash.signs
            # Without a descriptor for the end of a process (not on Linux), poll.
            ready = yield Readable((*watched, *signs), left if self.bash.exit in signs else min(left, _POLL_SECONDS))
            for descriptor in ready & watched.keys():
                yield from self._take(watched[descriptor])
            if self.bash.control in ready:
                self.mark = self._reader.feed(self.bash.listen())
            if self.mark is None:
                self._exited = self.bash.process.poll() is not None

    def stop(self, grace: float, kill: Callable[[set[int], int], object]) -> Steps[None]:
        """End the command: with Ctrl-C, then by killing its processes, then by killing bash.

        Why Ctrl-C twice: if a program of a list ends just when the first arrives, bash assumes that the program has
        handled it, and continues with the next one. `kill(spare, since)` kills the processes that the shell has started
        since a time, except those in `spare`.
        """
        for _ in range(_PRESSES):
            if not self.over:
                self._interrupt()
                yield from self.follow(grace / _PRESSES)
        for _ in range(_TRIES):
            if self.over:
                return
            yield Work(partial(kill, {self.bash.process.pid, self.bash.group}, self.ticks))
            self._interrupt()  # after a kill bash continues with the next command of a loop
            yield from self.follow(grace / _TRIES)
        _log.info("shell.killed", reason="it did not come back after Ctrl-C")
        self.bash.kill()
        yield from self.follow(LAST_RESORT_SECONDS)

    def _interrupt(self) -> None:
        """Send Ctrl-C, and the order to report again, because Ctrl-C may have stopped the report."""
        self.bash.interrupt()
        self.bash.send(self.report)

    def take_rest(self) -> Steps[None]:
        """Read the rest of the output: what is in the pipes, and what other processes write directly after the end."""
        end = time.monotonic() + _STRAGGLE_SECONDS
        for outlet in self.outlets:
            taken = 0
            while outlet.descriptor is not None:
                more = yield from self._take(outlet)
                taken += more
                left = end - time.monotonic()
                if left <= 0 and (not more or taken > PIPE_SIZE):  # the command itself cannot have left more
                    break
                if not more and outlet.descriptor is not None:
                    yield Readable((outlet.descriptor,), left)

    def _take(self, outlet: Outlet) -> Steps[int]:
        """Read the available bytes of an outlet; returns their number."""
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
