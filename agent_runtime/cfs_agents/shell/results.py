"""The result of a command, and a command that runs on in the background."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """The result of a command.

    - `output` is its exact output. It includes standard error, unless that is separate in `errors`. `left_out` bytes
      are missing in the middle of a long output.
    - `record` is the file with a whole long output, and with later output of processes that are `still_running`.
    - `binary` is true if some bytes were not text and were replaced.
    - `status` is the exit status (128 + n if signal n ended the command).
    - `directory` is the current directory of the shell, as the shell sees it.
    - `ended` is the reason why the shell itself has ended; the next command gets a new one.
    - `fresh` is true if the last shell had ended between two commands, so that this command got a new one.
    - `asked` is set if the command was interrupted because it waited for input at a terminal of its own. It is the
      last line that the command wrote, which may be empty.
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
    asked: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A background job: `pid` is the id of its process and process group, `log` the file with its output.

    In a sandbox the id is that of the sandbox. The programs of the job have `mark` in their environment.
    """

    pid: int
    log: Path
    mark: str
