"""A `cfs` for shells: a program on their path that has the test's process start the real one as a fork.

A page's commands start many programs, each of which would import `cfs` anew. The program on the path passes on its
arguments, directory, variables and streams, then signals, and ends as the real one does. If it is killed, the real one
is killed, too.
"""

import ast
import atexit
import contextlib
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
import _signal, _socket, posix, sys
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, {largest})
connection.connect({path!r})
request = ascii((sys.argv[1:], posix.getcwd(), posix.environ)).encode()
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
    _signal.signal(number, lambda number, _: connection.send(b"%d" % number))
code = int(connection.recv(16))
if code < 0:
    _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""
"""It imports only what is a part of the interpreter: any other module takes as long as all of this."""
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
        arguments, directory, variables = ast.literal_eval(message.decode())
        program = Program(
            [CFS, *arguments],
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            cwd=directory,
            env={os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()},
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
