"""A console in a process of its own, whose reader reads, waits, or leaves (A8)."""

import io
import os
import subprocess
import sys
from pathlib import Path

from cfs_agents.base.events import Text
from cfs_agents.main.console import ConsoleStreamHandler

PROGRAM = """
import sys
from cfs_agents.console import ConsoleStreamHandler
from cfs_agents.events import Finished, Text
console = ConsoleStreamHandler()
for line in sys.stdin:
    console.show(Text(line.rstrip("\\n") + " "))
console.show(Finished("answered"))
print(console.closed, file=sys.stderr)
"""


def started() -> subprocess.Popen[bytes]:
    """A console that shows what it is told on standard input."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_reader_of_a_pipe_sees_each_sentence_as_it_comes() -> None:
    """The program still waits for its next input when the first sentence is read."""
    with started() as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for said in (b"One.", b"Two."):
            program.stdin.write(said + b"\n")
            program.stdin.flush()
            assert os.read(program.stdout.fileno(), 100) == said + b" "
        rest, errors = program.communicate()
    assert rest.startswith(b"\n[0 steps")
    assert (program.returncode, errors) == (0, b"False\n")


def test_a_reader_that_leaves_ends_nothing() -> None:
    """No error, no trace on the way out; the program goes on and knows it."""
    with started() as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.close()
        program.stdin.write(b"One.\nTwo.\nThree.\n")
        program.stdin.close()
        assert program.stderr is not None
        errors = program.stderr.read()
    assert (program.returncode, errors) == (0, b"True\n")


def test_letters_that_the_output_does_not_know_are_replaced() -> None:
    raw = io.BytesIO()
    console = ConsoleStreamHandler(io.TextIOWrapper(raw, encoding="ascii"))
    console.show(Text("Grüße. "))
    assert raw.getvalue() == b"Gr??e. "


def test_a_full_disk_ends_nothing() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        console = ConsoleStreamHandler(full)
        console.show(Text("One. "))
        assert console.closed
        console.show(Text("Two. "))


def test_a_closed_stream_ends_nothing() -> None:
    out = io.StringIO()
    console = ConsoleStreamHandler(out)
    out.close()
    console.show(Text("One. "))
    assert console.closed
