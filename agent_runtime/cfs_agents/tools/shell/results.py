"""What a shell says of a command."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """A command that was run.

    `output` is exactly what it wrote (standard error too, unless that is kept apart in `errors`), shortened in the
    middle by `left_out` bytes when it was long; `record` is the file that then holds all of it, and what processes
    that are `still_running` write from now on. `binary` says that some of it was no text and was replaced.

    `status` is the exit status (128 + n for a command that signal n ended). `directory` is where the shell is now, in
    its own words. When `ended` is set the shell itself ended, for that reason, and the next command gets a fresh one.
    `fresh` says that this command got one because the last had ended unseen.
    """

    output: str
    errors: str | None = None
    status: int
    seconds: float
    directory: str
    timed_out: bool = False
    ended: str | None = None
    fresh: bool = False
    left_out: int = 0
    binary: bool = False
    record: Path | None = None
    still_running: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A background job: `pid` is its process, and its process group's id; `log` gets its output as it comes."""

    pid: int
    log: Path
