"""Starts a program in the sandbox that speaks on its standard input and output, such as an MCP server (A5).

    python -m cfs_agents.shell.confined JSON PROGRAM ARGUMENT...

This process becomes the sandbox. It has to be one of its own, because bubblewrap reads files from descriptors, and who
starts such a program often passes it none but the first three.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cfs_agents.shell.errors import ShellUnavailable
from cfs_agents.shell.sandbox import bubblewrap
from cfs_agents.shell.settings import Sandbox

_VISIBLE = ("/usr", "/opt", "/bin", "/sbin", "/lib", "/lib64")
"""Where every sandbox has programs."""
_MAX_LINE = 512


def confined(command: Sequence[str], sandbox: Sandbox, directory: Path) -> list[str]:
    """Return the command that starts a program in the sandbox, in a directory that the sandbox has."""
    settings = {
        "writable": [str(path) for path in sandbox.writable],
        "readable": [str(path) for path in sandbox.readable],
        "places": {name: str(path) for name, path in sandbox.places.items()},
        "network": sandbox.network,
        "directory": str(directory),
    }
    return [sys.executable, "-m", __spec__.name, json.dumps(settings), *command]


def program_paths(command: Sequence[str], directory: Path) -> tuple[Path, ...]:
    """Return what a sandbox must have to run a command, besides the system's programs.

    That is the installation of the program and of its interpreter, such as a virtual environment, and files that the
    arguments name with absolute paths. Raises `FileNotFoundError` if there is no such program.
    """
    paths = dict.fromkeys(_installations(command[0], directory))
    paths |= dict.fromkeys(Path(word) for word in command[1:] if word.startswith("/") and Path(word).is_file())
    return tuple(path for path in paths if not any(path.is_relative_to(visible) for visible in _VISIBLE))


def _installations(name: str, directory: Path, depth: int = 3) -> Iterator[Path]:
    program = shutil.which(directory / name if "/" in name else name)
    if program is None:
        raise FileNotFoundError(name)
    path, real = Path(program), Path(program).resolve()
    yield _installation(path)
    yield _installation(real)
    for word in _interpreter(real):
        if depth and not word.startswith("-"):
            yield from _installations(word, directory, depth - 1)


def _installation(program: Path) -> Path:
    """Return the folder that a program is installed in; the program alone if that would be a home or the root."""
    folder = program.parent
    if folder.name == ".bin" or folder.name == "bin":  # of npm
        folder = folder.parent
    elif "node_modules" in folder.parts:
        count = len(folder.parts) - folder.parts[::-1].index("node_modules")
        folder = Path(*folder.parts[:count])
    return program if folder in (Path.home(), Path("/"), Path.home() / ".local") else folder


def _interpreter(program: Path) -> list[str]:
    """Return the words behind `#!` in a script."""
    with program.open("rb") as file:
        line = file.readline(_MAX_LINE)
    return line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []


def _main() -> None:
    settings, *command = sys.argv[1:]
    values = json.loads(settings)
    sandbox = Sandbox(
        writable=tuple(map(Path, values["writable"])),
        readable=tuple(map(Path, values["readable"])),
        places={name: Path(path) for name, path in values["places"].items()},
        network=values["network"],
    )
    try:
        line = bubblewrap(sandbox, values["directory"], None, None, _descriptor)
        os.execvp(line[0], [*line, *command])  # noqa: S606 - it runs programs
    except (ShellUnavailable, OSError) as error:
        sys.exit(f"cfs: the sandbox does not start: {error}")


def _descriptor(text: bytes) -> int:
    """Return a descriptor that the sandbox inherits, and from which it reads a text."""
    descriptor = os.memfd_create("cfs", 0)
    os.write(descriptor, text)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


if __name__ == "__main__":
    _main()
