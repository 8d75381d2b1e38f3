"""Three replicas behind Debian's haproxy, one PostgreSQL server, and what can happen to them.

Each replica reaches the database by a proxy of its own, so that it alone can be cut off.
"""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psycopg

from cfs_server.journal.postgres_database import prepare
from outages import Proxy

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.postgres import PostgresServer, running_postgres

CFS = Path(sys.executable).with_name("cfs")
HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SLOTS = 6
_START_SECONDS = 60.0
_SETTLE_SECONDS = 60.0
_DEFECT = re.compile(r"(?m)^Traceback.*\n(?:[ ].*\n)*(\S.*)|(^.*(?:defect|never retrieved).*)")
"""The last line of a traceback, or a line of the log."""
_EXPECTED = ("cfs_server.cluster.relay.Broken", "httpcore.")
"""A response that broke off, because its replica was lost."""
_CONFIG = Path(__file__).parents[1] / "deploy/haproxy/haproxy.cfg"
_SERVERS = re.compile(r"(?:^    server replica-.*\n)+", re.MULTILINE)


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment() -> dict[str, str]:
    """Return the environment without settings of CFS."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CFS_")}


class ReplicaProcess:
    """`cfs serve` on one port, which ends and starts again."""

    def __init__(self, number: int, folder: Path, database: PostgresServer, name: str, flags: Sequence[str]) -> None:
        self.number = number
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"replica{number}.log"
        self.way = Proxy(database.port)
        """The way to the database."""
        store = f"postgresql://cfs:{database.password}@127.0.0.1:{self.way.port}/{name}"
        self._command = [
            *(str(CFS), "serve", "--port", f"{self.port}", "--store", store, "--data-dir", str(folder / "data")),
            *("--engine", "scripted", "--scripted-interval", "0.005", "--log-level", "warning", *flags),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process is not None
        return self._process.pid

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, env=environment())

    async def start(self) -> None:
        """Start it, and return when it listens."""
        self._spawn()
        assert self._process is not None
        output = self._process.stdout
        assert output is not None
        line = await asyncio.wait_for(asyncio.to_thread(output.readline), _START_SECONDS)
        if not line.startswith(b"listening"):
            raise RuntimeError(f"a replica does not start: {self.log.read_text(errors='replace')[-2000:]}")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it as the kernel does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    async def ended(self) -> int:
        """Wait for its end, and return its exit status."""
        assert self._process is not None
        await asyncio.to_thread(self._process.communicate)
        return self._process.returncode


class ReplicaSet:
    """The replicas, their database and the load balancer."""

    def __init__(self, server: PostgresServer, folder: Path, count: int, flags: Sequence[str]) -> None:
        self.server = server
        name = server.new_database()
        self.database = server.url(name)
        prepare(self.database, SLOTS)
        self.replicas = [ReplicaProcess(number, folder, server, name, flags) for number in range(count)]
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._balancer: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start everything, and return when all slots have an owner."""
        await asyncio.gather(*(replica.start() for replica in self.replicas))
        self._balance()
        await self.settle()

    def _balance(self) -> None:
        """Start haproxy with the file of `deploy/`, and its lines for two replicas replaced by one for each."""
        servers = "".join(f"    server replica-{each.number} 127.0.0.1:{each.port}\n" for each in self.replicas)
        config = self._folder / "haproxy.cfg"
        config.write_text(_SERVERS.sub(servers, _CONFIG.read_text(encoding="utf-8")))
        assert HAPROXY is not None
        with (self._folder / "haproxy.log").open("ab") as log:
            self._balancer = subprocess.Popen(
                [HAPROXY, "-db", "-f", config],
                stdout=log,
                stderr=log,
                env=os.environ | {"CFS_LISTEN": f"127.0.0.1:{self.port}"},
            )

    def stop(self) -> None:
        """End everything."""
        for replica in self.replicas:
            replica.kill()
        if self._balancer is not None:
            self._balancer.kill()
            self._balancer.communicate()

    async def settle(self) -> None:
        """Wait until all replicas are ready, each slot has the owner that stays, and all of them agree about it."""
        end = time.monotonic() + _SETTLE_SECONDS
        async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
            while not await self._is_settled(http):
                if time.monotonic() > end:
                    raise RuntimeError(f"the replicas do not settle: {await asyncio.to_thread(self.owners)}")
                await asyncio.sleep(0.05)

    async def _is_settled(self, http: httpx.AsyncClient) -> bool:
        try:
            owners = list((await asyncio.to_thread(self.owners)).values())
            if {*owners} != {replica.url for replica in self.replicas}:
                return False
            for replica in self.replicas:
                text = (await http.get(f"{replica.url}/metrics")).text
                found = {name: float(value) for name, value in re.findall(r"(?m)^(cfs_cluster_\w+) (\S+)$", text)}
                if (found.get("cfs_cluster_slots"), found.get("cfs_cluster_replicas")) != (
                    owners.count(replica.url),
                    len(self.replicas),
                ):
                    return False
            return (await http.get(f"{self.url}/readyz")).status_code == 200
        except (httpx.HTTPError, psycopg.Error):
            return False

    def owners(self) -> dict[int, str | None]:
        """Return the address of each slot's owner, as the database has it."""
        query = "SELECT slot, url FROM cfs.slots LEFT JOIN cfs.replicas ON id = owner ORDER BY slot"
        with psycopg.connect(self.database) as connection:
            return dict(connection.execute(query).fetchall())

    def epochs(self) -> dict[int, int]:
        """Return how often each slot has been claimed."""
        with psycopg.connect(self.database) as connection:
            found = connection.execute("SELECT slot, count(*) FROM cfs.epochs GROUP BY slot").fetchall()
        return dict(found)

    # -- what can happen ------------------------------------------------------------------------------------------

    async def kill(self, replica: ReplicaProcess, seconds: float) -> None:
        """Kill a replica, and start a new one in its place after some time."""
        replica.kill()
        await asyncio.sleep(seconds)
        await replica.start()

    async def replace(self, replica: ReplicaProcess) -> None:
        """Ask a replica to end, and start a new one in its place, as an upgrade does."""
        replica.signal(signal.SIGTERM)
        if (status := await replica.ended()) != 0:
            raise RuntimeError(f"a replica ended with {status}: {replica.log.read_text(errors='replace')[-2000:]}")
        await replica.start()

    async def freeze(self, replica: ReplicaProcess, seconds: float) -> None:
        """Stop the process of a replica for some time."""
        replica.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            replica.signal(signal.SIGCONT)

    async def cut(self, replica: ReplicaProcess, seconds: float) -> None:
        """Cut a replica off from the database for some time."""
        replica.way.cut()
        try:
            await asyncio.sleep(seconds)
        finally:
            replica.way.mend()

    async def restart_database(self, how: signal.Signals, seconds: float) -> None:
        """Stop the database, and start it again after some time."""
        await asyncio.to_thread(self.server.stop, how)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.server.start)

    def complaints(self) -> list[str]:
        """Return what the logs say of defects."""
        texts = {each.number: each.log.read_text(errors="replace") for each in self.replicas if each.log.exists()}
        found = [(number, line) for number, text in texts.items() for line in map(max, _DEFECT.findall(text))]
        return [f"replica {number} logs {line!r}" for number, line in found if not line.startswith(_EXPECTED)]


@asynccontextmanager
async def replica_set(folder: Path, count: int = 3, *flags: str) -> AsyncIterator[ReplicaSet]:
    """Run replicas until the end of the block. Skips a test where PostgreSQL is not installed."""
    with running_postgres() as server:
        found = ReplicaSet(server, folder, count, flags)
        try:
            await found.start()
            yield found
        finally:
            found.stop()
