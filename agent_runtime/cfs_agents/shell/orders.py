"""Orders to bash and the marks by which it reports the end of a command (A5). No I/O.

Bash reads its orders from standard input, as an interactive shell without a terminal. Why interactive: only an
interactive bash handles Ctrl-C as a user expects. It stops the whole command, with its loops and lists, and keeps its
state. An order has two lines. The first makes bash `source` a file with the command, with new standard descriptors
and without the control descriptor. The second writes the exit status to the control descriptor, between random marks.

Why a file and not `eval`: a sourced file does not behave as at a prompt (no `[1] 1234` after `&`, no "exit"), and its
lines are numbered from 1. Why descriptors for each command: a background process of an earlier command cannot write
into the output of a later one, `exec >file` ends with its command, and `set -x` does not show the orders. The trace
of the orders goes to the standard error of the shell, which is /dev/null.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

JOB_MARK = "CFS_JOB"
"""Environment variable that marks the programs of a background job."""

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
        mark, ended, _ = self._data.removeprefix(self._begin).rpartition(self._end)
        match = _MARK.fullmatch(mark) if begin >= 0 and ended else None
        if match is None:
            return None
        status, background, directory = (part.decode("utf-8", "surrogateescape") for part in match.groups())
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
    change_directory = rf"\builtin cd -- {quote(directory)} && " if directory else ""
    output, errors = quote(pipes[0]), quote(pipes[1]) if len(pipes) > 1 else "&1"
    return rf"{change_directory}\builtin source {quote(script)} </dev/null >{output} 2>{errors} {control}>&-" + "\n"


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


def background(script: str, log: str, mark: str) -> str:
    """Return the command that starts the file `script` as a background job with its own process group.

    The output goes to the file `log`, whose last line is the exit status of the job. The programs that the job starts
    have `mark` in their environment. The job runs in a shell of its own, so that `exit` does not leave out that line.
    """
    job = (
        rf"{{ ( \builtin export {JOB_MARK}={mark}; \builtin source {quote(script)} );"
        rf" \builtin printf '[ended with exit status %s]\n' $?; }}"
        rf" </dev/null >{quote(log)} 2>&1 &"
    )
    return rf"case $- in *m*) {job} ;; *) \builtin set -m; {job} \builtin set +m ;; esac" + "\n"
