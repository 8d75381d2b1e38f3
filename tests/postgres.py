"""A real PostgreSQL server for tests, started once for each process of pytest, with a new database for each test."""

import atexit
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from select import select
from threading import Thread

import psycopg
import pytest

from cfs_server.journal.postgres_database import prepare
from tests.server.support import free_port

ADVICE = "needs the programs of PostgreSQL: scripts/test installs them on Debian"
_USER = "postgres"
_ROOM_BYTES = 2 << 30
_SYNC = b"S\0\0\0\4"
"""The end of a request, in PostgreSQL's protocol."""
_numbers = count(1)


def programs() -> Path | None:
    """Return the folder with `initdb` and `postgres`: the newest version of Debian's packages, or one on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).resolve().parent if on_path else None


class PostgresServer:
    """A server with the superuser `postgres` and the user `cfs`, both with passwords, on a free port."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder, self.place = folder, place
        self.data, self.log = folder / "data", folder / "log"
        self.port = free_port()
        self.superuser_password, self.password = secrets.token_hex(8), secrets.token_hex(8)
        self._user = _USER if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """Make the files of the server: a copy of those that the first one of this process has made."""
        if self._user:
            shutil.chown(self.folder, self._user, self._user)
        made, self.superuser_password = _made_files(self.place)
        subprocess.run(["cp", "-a", made, self.data], check=True)

    def initialize(self) -> None:
        """Make new files, which takes a second."""
        if self._user:
            shutil.chown(self.folder, self._user, self._user)
        password = self.folder / "password"
        password.write_text(self.superuser_password)
        if self._user:
            shutil.chown(password, self._user, self._user)
        arguments = ["-U", _USER, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        self.run("initdb", "-D", self.data, "--pwfile", password, *arguments)

    def run(self, program: str, *arguments: str | Path) -> str:
        """Run a program of PostgreSQL as the user of the server."""
        done = subprocess.run(
            [self.place / program, *arguments], cwd=self.folder, capture_output=True, text=True, user=self._user,
            group=self._user, extra_groups=[] if self._user else None, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")
        return done.stdout

    def start(self, *settings: str) -> None:
        """Start the server and wait until it answers. A setting is like `fsync=off`."""
        options = [argument for setting in settings for argument in ("-c", setting)]
        command: list[str | Path] = [self.place / "postgres", "-D", self.data, "-p", f"{self.port}"]
        command += ["-k", self.folder, "-h", "127.0.0.1", *options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, user=self._user, group=self._user,
                extra_groups=[] if self._user else None,
            )  # fmt: skip
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                if self._process.poll() is not None:
                    raise RuntimeError(self.log.read_text(errors="replace")) from None
                time.sleep(0.02)
            else:
                return

    @property
    def pid(self) -> int:
        """The first process of the server."""
        assert self._process is not None
        return self._process.pid

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT is a fast shutdown, SIGQUIT an immediate one, which is like a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """Connect as the superuser, in autocommit mode."""
        return psycopg.connect(self.url(database, _USER, self.superuser_password), autocommit=True)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Execute a statement as the superuser."""
        with closing(self.connect(database)) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def url(self, database: str, user: str = "cfs", password: str | None = None) -> str:
        """Return the address of a database for a user."""
        return f"postgresql://{user}:{password or self.password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, *options: str) -> str:
        """Create a database that belongs to the user `cfs`, and return its name."""
        name = f"test{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} OWNER cfs {' '.join(options)}")
        return name


class Proxy:
    """Stands between a client and a server, and fails in a chosen way: once, for the next connection that does it."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = [self._listener]
        self._lose_answer = self._hold = False
        self._held: tuple[socket.socket, bytes] | None = None
        self.lost = b""
        """The answer that was lost."""
        Thread(target=self._accept, daemon=True).start()

    def lose_answer(self) -> None:
        """Deliver the next request, and close the connection in place of its answer."""
        self._lose_answer = True

    def hold(self) -> None:
        """Keep the next request, and close the connection of the client, but not that of the server."""
        self._hold = True

    def deliver(self) -> bytes:
        """Send the request that was kept to the server, and return the answer."""
        assert self._held is not None
        server, request = self._held
        try:
            server.sendall(request)
            return server.recv(1 << 16)
        except OSError:  # the server has closed the connection
            return b""
        finally:
            self.reset()

    def reset(self) -> None:
        """Fail no more, and drop the request that is kept."""
        self._lose_answer = self._hold = False
        if self._held is not None:
            with suppress(OSError):
                self._held[0].shutdown(socket.SHUT_RDWR)
            self._held = None

    def close(self) -> None:
        """Close all connections."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                Thread(target=self._requests, args=(client, server), daemon=True).start()
                Thread(target=self._answers, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while request := client.recv(1 << 20):
                if not self._hold:
                    server.sendall(request)
                    continue
                while _SYNC not in request[-10:]:
                    request += client.recv(1 << 20)
                self._hold, self._held = False, (server, request)
                client.shutdown(socket.SHUT_RDWR)
                return
            server.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while self._held is None or self._held[0] is not server:
                if not select([server], [], [], 0.05)[0]:
                    continue
                answer = server.recv(1 << 20)
                if self._lose_answer or not answer:
                    self._lose_answer, self.lost = False, answer
                    client.shutdown(socket.SHUT_RDWR)
                    server.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(answer)


@cache
def _made_files(place: Path) -> tuple[Path, str]:
    """Return files of a server, and the superuser's password in them. They are removed at the end of this process."""
    folder = Path(tempfile.mkdtemp(prefix="cfs-pg-", dir=_quick_folder()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = PostgresServer(folder, place)
    server.initialize()
    return server.data, server.superuser_password


@contextmanager
def running_postgres(*settings: str) -> Iterator[PostgresServer]:
    """Run a server of our own in a temporary folder. Skips the test where PostgreSQL is not installed."""
    place = programs()
    if place is None or (os.geteuid() == 0 and not _exists(_USER)):
        pytest.skip(ADVICE)
    folder = Path(tempfile.mkdtemp(prefix="cfs-pg-", dir=_quick_folder()))
    server = PostgresServer(folder, place)
    try:
        server.create()
        server.start(*settings)
        server.execute(f"CREATE ROLE cfs LOGIN PASSWORD '{server.password}'")
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests of this process, which must leave it running."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """The URL of a new database with one slot."""
    url = postgres.url(postgres.new_database())
    prepare(url)
    return url


def _quick_folder() -> str | None:
    """Return a folder in memory, if there is room: each database takes 8 MB in 900 files."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder in it has a random name
    return f"{memory}" if memory.is_dir() and shutil.disk_usage(memory).free > _ROOM_BYTES else None


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
