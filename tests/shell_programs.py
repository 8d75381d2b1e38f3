"""A `cfs` for shells: a program on their path that has the test's process start the real one as a fork.

A page's commands start many programs, each of which would import `cfs` anew. The program on the path passes on its
arguments, directory, variables and streams, then signals, and ends as the real one does. If it is killed, the real one
is killed, too.
"""

import atexit
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

from tests.fork_server import CFS, Program

_SHIM = """#!{python} -IS
import json, os, signal, socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, {largest})
connection.connect({path!r})
request = {{"arguments": sys.argv[1:], "directory": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: connection.send(b"%d" % number))
code = int(connection.recv(16))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
_LARGEST = 1 << 20


@cache
def shell_path() -> str:
    """Return a folder for the beginning of `PATH`, which is removed at the end of this process."""
    folder = Path(tempfile.mkdtemp(prefix="cfs-shell-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shim = folder / "bin/cfs"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(python=sys.executable, path=str(folder / "socket"), largest=_LARGEST))
    shim.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / "socket"))
    listener.listen()
    threading.Thread(target=_accept, args=[listener], daemon=True).start()
    return str(shim.parent)


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LARGEST)
        threading.Thread(target=_start, args=[connection], daemon=True).start()


def _start(connection: socket.socket) -> None:
    """Start a program, and pass on its end and what it is sent."""
    with connection:
        message, streams, _, _ = socket.recv_fds(connection, _LARGEST, 3)
        request = json.loads(message)
        program = Program(
            [CFS, *request["arguments"]],
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            cwd=request["directory"],
            env=request["environment"],
        )
        for stream in streams:
            os.close(stream)
        threading.Thread(target=_pass_on_signals, args=[connection, program], daemon=True).start()
        code = program.wait()
        with contextlib.suppress(OSError):
            connection.send(str(code).encode())
            connection.shutdown(socket.SHUT_WR)


def _pass_on_signals(connection: socket.socket, program: Program) -> None:
    with contextlib.suppress(OSError):
        while number := connection.recv(16):
            program.send_signal(int(number))
    program.kill()
