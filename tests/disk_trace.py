"""Watches the system calls of a program with strace: what was on the disk when it acknowledged something.

A file that was written, and a directory in which a name came or went, is *dirty* until it is flushed by `fsync`. A
power loss may take back what is dirty. strace prints the path of each descriptor, so no list of them is kept here.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_WRITING = frozenset(
    {"write", "pwrite64", "writev", "pwritev", "ftruncate", "fallocate", "copy_file_range", "sendfile"}
)
_NAMING = frozenset(
    {"link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "symlink"}
    | {"symlinkat"}
)
_FLUSHING = frozenset({"fsync", "fdatasync"})
_SENDING = frozenset({"sendto", "sendmsg", "write", "writev"})
_CALLS = ",".join(sorted(_WRITING | _NAMING | _FLUSHING | _SENDING))
_LINE = re.compile(r"(?P<pid>\d+) +(?P<rest>.*)")
_CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*?)\)? += (?P<result>-?\d+|\?)")
_DESCRIPTOR = re.compile(r"(?:\d+|AT_FDCWD)<(?P<path>/[^>]*)>(?:\(deleted\))?")
_NAMED = re.compile(r"(?:(?:\d+|AT_FDCWD)<(?P<folder>[^>]*)>, )?\"(?P<name>(?:[^\"\\]|\\.)*)\"")


@cache
def works() -> bool:
    """Whether programs can be traced here."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0


def traced(log: Path, command: Sequence[str]) -> list[str]:
    """Return the command that runs another one and writes its system calls to a file."""
    flags = ["-f", "-y", "-qq", "-s", "80", "-e", f"trace={_CALLS}", "-e", "signal=none"]
    return ["strace", *flags, "-o", str(log), *command]


def signal_traced(strace: int, number: signal.Signals) -> None:
    """Send a signal to the program that a strace runs; strace then ends by itself, and its file is complete."""
    for child in Path(f"/proc/{strace}/task/{strace}/children").read_text().split():
        os.kill(int(child), number)


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Something that was sent, and what was dirty then."""

    text: str
    dirty: frozenset[str]


def acknowledgements(log: Path, root: Path, sent: str) -> list[Acknowledgement]:
    """Return what was sent that begins with `sent` (a regular expression), with what was dirty below a root."""
    dirty: set[str] = set()
    found = []
    for name, arguments in _calls(log):
        if name in _SENDING and (text := re.search(f'"({sent}[^"]*)', arguments)):
            found.append(Acknowledgement(text[1], frozenset(each for each in dirty if _within(each, root))))
        elif name in _FLUSHING:
            dirty -= set(_descriptors(arguments))
        elif name in _WRITING:
            dirty |= set(_descriptors(arguments)[:1])
        elif name in _NAMING:
            dirty |= set(_folders(arguments))
            if name.startswith("rename"):  # what had the new name is gone
                old, new = _names(arguments)
                dirty = (dirty - {old, new}) | ({new} if old in dirty else set())
    return found


def changes(log: Path, root: Path) -> int:
    """Count the writes and names that came or went below a root, to see that anything was traced."""
    count = 0
    for name, arguments in _calls(log):
        paths = _descriptors(arguments) if name in _WRITING else _folders(arguments) if name in _NAMING else []
        count += any(_within(path, root) for path in paths)
    return count


def _within(path: str, root: Path) -> bool:
    return path == str(root) or path.startswith(f"{root}/")


def _calls(log: Path) -> Iterator[tuple[str, str]]:
    """Yield the calls that succeeded, in the order of their ends: name and arguments."""
    begun: dict[str, str] = {}
    for line in log.read_text(errors="replace").splitlines():
        if (parts := _LINE.fullmatch(line)) is None:
            continue
        pid, rest = parts["pid"], parts["rest"]
        if rest.endswith("<unfinished ...>"):
            begun[pid] = rest.removesuffix("<unfinished ...>").rstrip()
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>", rest):
            rest = begun.pop(pid, "") + rest[resumed.end() :]
        if (call := _CALL.match(rest)) and not call["result"].startswith("-"):
            yield call["name"], call["arguments"]


def _descriptors(arguments: str) -> list[str]:
    return [found["path"] for found in _DESCRIPTOR.finditer(arguments)]


def _folders(arguments: str) -> list[str]:
    """Return the directories whose names a call changed; the source of a link under /proc is no name."""
    return [os.path.dirname(path) for path in _names(arguments) if not path.startswith("/proc/")]  # noqa: PTH120


def _names(arguments: str) -> list[str]:
    named = _NAMED.finditer(arguments)
    return [os.path.normpath(os.path.join(each["folder"] or "/", each["name"])) for each in named]  # noqa: PTH118
