"""The steps of a shell, for both kinds of shells (A5).

`PersistentShell` and `AsyncPersistentShell` run these steps. A command can end in four ways:

1. The command ends, and bash reports it on the control descriptor. Its background processes may continue to write.
2. The time limit passes. The command gets Ctrl-C, and the shell keeps its state. Processes that ignore Ctrl-C are
   killed, and so is bash if it does not return.
3. Bash ends with the command (`exit`, `exec`, `set -e`, `kill -9 $$`). The next command gets a new bash.
4. The control descriptor is closed, but bash runs (a command closed the descriptor, or `exec` replaced bash by a
   program). The runtime closes the input of bash, so that bash ends after the command, as in case 3.
"""

import os
import secrets
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from cfs_agents.base.logs import get_logger
from cfs_agents.shell import orders
from cfs_agents.shell.census import awaits_input, kill_all, left_behind, members, new_cookie
from cfs_agents.shell.errors import ShellClosed, ShellUnavailable
from cfs_agents.shell.exchange import LAST_RESORT_SECONDS, CommandExchange
from cfs_agents.shell.jobs import JobProcess
from cfs_agents.shell.output import INSIDE, BackgroundOutputs, OutputStream, PrivateDirectory, Records
from cfs_agents.shell.process import Bash, identity
from cfs_agents.shell.results import Job, ShellResult
from cfs_agents.shell.settings import ShellSettings
from cfs_agents.shell.steps import AwaitReadable, Steps, Work
from cfs_filesystem import open_beneath

_log = get_logger(__name__)

_KILL_PASSES = 1

_LONGEST_QUESTION = 200
_FIRST_LOOK, _LAST_LOOK = 1.0, 8.0
"""Seconds without output before the first check for a prompt, and the longest pause between two checks."""
_SECOND_LOOK = 0.2
"""Seconds until a prompt is confirmed: its text may still be on its way through the program that has the terminal."""


def _last_line(stream: OutputStream) -> str:
    return stream.capture.shown().text.rpartition("\n")[2].strip()[-_LONGEST_QUESTION:]


class ShellCore:
    """The state of one shell, and the steps of its operations, which run one at a time."""

    def __init__(self, settings: ShellSettings) -> None:
        self.settings = settings
        self.closed = False
        """Set before `close` waits for the running command, so that no new command starts."""
        self._bash: Bash | None = None
        self._directory = ""
        self._newest: int | None = None
        self._private: PrivateDirectory | None = None
        self._background_outputs = BackgroundOutputs()
        self._cookie = new_cookie()
        self._number = 0
        self._destroyed = False

    @property
    def directory(self) -> Path:
        """Directory of the next command: the current one of the shell, or the first one of a new shell."""
        alive = self._bash is not None and self._bash.process.poll() is None
        return Path(self._directory) if alive and self._directory else self.settings.directory

    def run(
        self, command: str, timeout: float | None, directory: Path | None, merge: bool | None = None
    ) -> Steps[ShellResult]:
        """Run a command to its end, to its time limit, or until it waits for input.

        Raises `ShellUnavailable` if no shell can start, `NotADirectoryError` for an invalid `directory`, and
        `ValueError` for a command with NUL. An exception raised into the generator ends the command like a time-out,
        and is raised again.
        """
        if "\0" in command:
            raise ValueError("a command cannot hold NUL")
        bash, fresh = yield from self._living()
        exchange = CommandExchange(bash)
        timed_out, prompt = False, None
        try:
            yield Work(partial(self._begin, exchange, command, directory, merge))
            prompt = yield from self._followed(exchange, self.settings.timeout if timeout is None else timeout)
            if not exchange.over:
                timed_out = prompt is None
                yield from exchange.stop(self.settings.grace, self._kill)
        except GeneratorExit:
            self.abandon()
            raise
        except BaseException:
            try:
                if exchange.report:
                    yield from exchange.stop(self.settings.grace, self._kill)
                    yield from exchange.take_available()
            except BaseException:  # a second interruption: do not wait any longer
                self.abandon()
                raise
            finally:
                yield Work(partial(self._settle, exchange))
            raise
        yield from exchange.take_rest()
        result: ShellResult = yield Work(
            partial(self._settle, exchange, timed_out=timed_out, fresh=fresh, asked=prompt)
        )
        return result

    def _followed(self, exchange: CommandExchange, seconds: float) -> Steps[str | None]:
        """Follow a command to its end or time limit; returns its question if it waits for input at a terminal.

        Commands have no terminal, but a program such as `script` gives one to its child, and that child waits for
        ever. A command without output is checked with growing pauses, because a check takes some milliseconds. It has
        asked if it waits at two checks without output in between.
        """
        end, pause, waited = time.monotonic() + seconds, _FIRST_LOOK, False
        while (left := end - time.monotonic()) > 0:
            taken = exchange.taken
            yield from exchange.follow(min(pause, left))
            if exchange.over:
                return None
            if exchange.taken > taken:
                pause, waited = _FIRST_LOOK, False
                continue
            waits: bool = yield Work(partial(self._awaits_input, exchange))
            if waits and waited:
                return next(filter(None, map(_last_line, exchange.streams)), "")
            pause, waited = _SECOND_LOOK if waits else min(2 * pause, _LAST_LOOK), waits
        return None

    def _awaits_input(self, exchange: CommandExchange) -> bool:
        return any(map(awaits_input, members(self._sessions(), self._cookie, exchange.ticks)))

    def background(self, command: str, directory: Path | None) -> Steps[Job]:
        """Start a command as a background job with a copy of the shell's current state."""
        log, mark = self._record("job"), secrets.token_hex(8)
        script = yield Work(partial(self._write_job, command))
        order = orders.background(script, self.settings.inside(log), mark)
        result = yield from self.run(order, None, directory)
        if self._newest is None or result.ended:
            raise ShellUnavailable(f"the job was not started: {result.ended or result.output}")
        return Job(self._newest, log, mark)

    def process_of(self, job: Job) -> JobProcess:
        """Return the process of a job that this shell has just started. Blocks for some milliseconds."""
        return JobProcess(job, self.processes)

    def processes(self) -> set[int]:
        """Return the living processes of this shell, and of the shells that have ended before it. Blocks."""
        return members(self._sessions(), self._cookie)

    def left_processes(self) -> dict[int, str]:
        """Return the processes that commands have left behind, with their command lines. Blocks."""
        return left_behind(self.processes(), self._sessions()) if self._number else {}

    def log_since(self, job: Job, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return the last `max_bytes` of a job's log behind an offset, and the size of the log. Blocks.

        A log that was removed or replaced is empty.
        """
        with suppress(OSError), self._records().open(job.log.name) as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(offset, size - max_bytes))
            return log.read(max_bytes), size
        return b"", 0

    def close(self) -> Steps[None]:
        """End the shell and all processes that it started, after its exit commands (`trap ... EXIT`)."""
        if self._bash is not None:
            self._bash.hang_up()
            if self._bash.exit is not None:
                yield AwaitReadable((self._bash.exit,), self.settings.grace)
        yield Work(self._destroy)

    def abandon(self) -> None:
        """Kill the shell's processes at once, from any thread; a running command ends with the end of the shell."""
        if self._bash is not None:
            self._bash.kill()

    def _begin(self, exchange: CommandExchange, command: str, directory: Path | None, merge: bool | None) -> None:
        """Open the streams, write the script, and send the order."""
        bash, settings = exchange.bash, self.settings
        if directory is not None:
            self._require_directory(directory)
        private = self._private_directory()
        create = self._records().create
        self._number += 1
        for name in ["output"] if (settings.merge if merge is None else merge) else ["output", "errors"]:
            pipe = f"{name}-{self._number}-{secrets.token_hex(4)}"
            stream = OutputStream(private, pipe, self._record(name), create, settings.keep, settings.most_recorded)
            exchange.streams.append(stream)
        private.script("command", command + "\n")
        inner_directory, back = (settings.inside(directory), self._directory) if directory else (None, None)
        pipes = [self._shared(stream.pipe) for stream in exchange.streams]
        exchange.report = orders.report(exchange.token, bash.control_number, back)
        bash.send(orders.order(self._shared("command"), pipes, bash.control_number, inner_directory) + exchange.report)

    def _settle(
        self, exchange: CommandExchange, *, timed_out: bool = False, fresh: bool = False, asked: str | None = None
    ) -> ShellResult:
        """Close the streams, or leave those that still have a writer to `BackgroundOutputs`; returns the result."""
        still = [stream for stream in exchange.streams if stream.descriptor is not None]
        for stream in exchange.streams:
            if exchange.report and stream in still:
                self._background_outputs.adopt(stream)
            else:
                stream.close()
        status, ended = self._ending(exchange)
        captures = [stream.capture.shown() for stream in exchange.streams]
        records = [stream.record for stream in exchange.streams if stream.recorded]
        return ShellResult(
            output=captures[0].text if captures else "",
            errors=captures[1].text if len(captures) > 1 else None,
            status=status,
            seconds=time.monotonic() - exchange.began,
            directory=self._directory,
            timed_out=timed_out,
            ended=ended,
            fresh=fresh,
            left_out=sum(capture.left_out for capture in captures),
            binary=any(capture.binary for capture in captures),
            record=records[0] if records else None,
            still_running=bool(still),
            asked=asked,
        )

    def _ending(self, exchange: CommandExchange) -> tuple[int, str | None]:
        """Return a command's status, and why its shell ended, if it did."""
        if exchange.mark is None:
            return self._bury(exchange.bash) if exchange.report else (0, None)
        self._directory, self._newest = exchange.mark.directory, exchange.mark.background
        if all(stream.opened for stream in exchange.streams):
            return exchange.mark.status, None
        exchange.bash.kill()
        self._bury(exchange.bash)
        return exchange.mark.status, "it could not run the command: it may open no files, or has no descriptors left"

    def _write_job(self, command: str) -> str:
        """Write the script of a background job. It stays until `close`, because bash may read it later."""
        script = f"job-{secrets.token_hex(4)}"
        self._private_directory().script(script, command + "\n")
        try:
            self._records().make()
        except OSError as error:
            raise ShellUnavailable(f"the job was not started: no log can be written: {error.strerror}") from None
        return self._shared(script)

    def _living(self) -> Steps[tuple[Bash, bool]]:
        """Return the running bash, or a new one, and whether the last one had ended between two commands."""
        if self.closed:
            raise ShellClosed("the shell has been closed")
        died = self._bash is not None and self._bash.process.poll() is not None
        if self._bash is not None and died:
            yield Work(partial(self._bury, self._bash))
        return self._bash or (yield from self._start()), died

    def _start(self) -> Steps[Bash]:
        """Start bash and send the first order. An exception meanwhile ends bash, so that none is left half started."""
        started: CommandExchange | None = None
        try:
            started = CommandExchange((yield Work(self._spawn)))
            bash = started.bash
            bash.send(orders.opening(bash.limits) + orders.report(started.token, bash.control_number))
            yield from started.follow(LAST_RESORT_SECONDS)
        finally:
            if self._bash is not None and (started is None or started.mark is None):
                self._bash.kill()
                yield Work(partial(self._bury, self._bash))
        if started.mark is None:
            raise ShellUnavailable(f"bash did not start: {bash.complaints or 'it said nothing'}")
        self._directory, self._newest = started.mark.directory, None
        _log.debug("shell.started", pid=bash.process.pid)
        return bash

    def _spawn(self) -> Bash:
        self._below(self.settings.directory).make()
        self._bash = Bash(self.settings, self._private_directory().path, self._cookie)
        return self._bash

    def _bury(self, bash: Bash) -> tuple[int, str]:
        """Release a bash that has ended; returns its status, as bash counts, and the reason."""
        self._bash = None
        status = bash.release()
        if status < 0:
            return 128 - status, f"it was killed by signal {-status}"
        return status, f"it ended with exit status {status}"

    def _kill(self, spare: set[int], since: int) -> None:
        kill_all(self._sessions(), self._cookie, spare, since, _KILL_PASSES)

    def _sessions(self) -> set[int]:
        """Return the sessions of the running bash. Those of an ended one may have been given to other processes."""
        return {self._bash.process.pid, self._bash.group} if self._bash else set()

    def _destroy(self) -> None:
        """End all processes and remove the private directory; a second call does nothing."""
        if self._destroyed:
            return
        self._destroyed = True
        self.abandon()
        if not kill_all(self._sessions(), self._cookie):
            _log.warning("shell.processes_left")
        if self._bash is not None:
            self._bury(self._bash)
        self._background_outputs.close()
        if self._private is not None:
            self._private.close()

    def _private_directory(self) -> PrivateDirectory:
        """Return the directory of pipes and scripts; it is created again if it was removed."""
        if self._private is None or not self._private.is_whole():
            if self._private is not None:
                self._private.close()
            watched = self.settings.reaper.directory() if self.settings.reaper else None
            self._private = PrivateDirectory(watched, identity(self.settings.user).get("group"))
        return self._private

    def _shared(self, name: str) -> str:
        """Return the path in bash of a file in the private directory."""
        return f"{INSIDE if self.settings.sandbox else self._private_directory().path}/{name}"

    def _records(self) -> Records:
        """Return the directory of records; if commands run as another user, that user owns it."""
        return self._below(self.settings.record_directory, identity(self.settings.user).get("user"))

    def _below(self, directory: Path, owner: int | None = None) -> Records:
        base = self.settings.unmovable(directory)
        return Records(base, directory.relative_to(base).parts, owner)

    def _require_directory(self, directory: Path) -> None:
        """Raise `NotADirectoryError` if the directory does not exist; with a sandbox, no link is followed."""
        base = self.settings.unmovable(directory) if self.settings.sandbox else directory
        try:
            os.close(open_beneath(base, directory.relative_to(base).parts))
        except OSError:
            raise NotADirectoryError(f"there is no directory {directory}") from None

    def _record(self, name: str) -> Path:
        return self.settings.record_directory / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}-{name}.txt"
