"""What bash is told in order to run a command, and how the end of it is recognised (A5). Pure: no I/O.

Bash reads its orders from standard input, as an interactive shell without a terminal. Why interactive: only such a one
takes Ctrl-C as a user means it: it gives up the whole command, with its loops and lists, and lives on with its state.
An order is two lines. The first lets bash `source` a file that holds the command, its standard descriptors opened for
it alone, and the control descriptor closed. The second tells on the control descriptor how it ended, between marks that
nobody can guess.

Why a file and not `eval`: while it sources, bash does not behave as at a prompt (no `[1] 1234` after `&`, no "exit"),
and lines are numbered from 1. Why descriptors for each command: what an earlier one left behind cannot write into the
output of a later one, `exec >file` ends with its command, and `set -x` shows nothing of the orders, whose own trace
goes to the standard error of the shell, which is /dev/null.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

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
