"""Replicas on a real database behind the HAProxy of `deploy/`: what clients see while parts of it go and come back."""

import asyncio
import signal
from contextlib import ExitStack

import httpx
import pytest

from ports import free_port
from tests.cluster.support import names, replica, replicas
from tests.cluster.test_failures import require_whole, until_written, writing
from tests.deploy.test_haproxy import HAPROXY, balanced
from tests.postgres import running_postgres
from tests.server.metrics import CLUSTER, series_in

SESSIONS = ["a", "b", "c", "d"]
pytestmark = [
    pytest.mark.skipif(HAPROXY is None, reason="needs haproxy: scripts/test installs it on Debian"),
    pytest.mark.timeout(180),
]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGTERM, id="leaves"),
        pytest.param(signal.SIGKILL, id="is killed", marks=pytest.mark.slow),  # as in tests/cluster/test_faults.py
    ],
)
async def test_each_replica_goes_and_comes_back_while_clients_write(how: signal.Signals, database: str) -> None:
    """Every message is answered, once and in order: an upgrade, and crashes."""
    ports = [str(free_port()) for _ in range(2)]
    with ExitStack() as stack:
        running = [stack.enter_context(replica(database, "--port", port)) for port in ports]
        async with balanced(*(each.url for each in running)) as proxy:
            with writing([proxy.url], SESSIONS) as answered:
                await asyncio.to_thread(until_written, answered, 3)
                for number, (gone, port) in enumerate(zip(running, ports, strict=True), 1):
                    gone.signal(how)
                    await proxy.logged(f"ready/replica-{number} is DOWN")
                    await asyncio.to_thread(gone.ended)
                    await asyncio.to_thread(until_written, answered, 3)
                    stack.enter_context(replica(database, "--port", port))
                    await proxy.logged(f"ready/replica-{number} is UP")
                    await asyncio.to_thread(until_written, answered, 3)
            await asyncio.to_thread(require_whole, proxy.url, answered)
            assert await asyncio.to_thread(names, proxy.url) == SESSIONS


async def test_while_the_database_is_away_what_is_in_memory_can_be_read() -> None:
    """No replica is ready, and the proxy asks those that live. A write is refused for now, and is accepted later."""
    with running_postgres() as server:
        url = server.url(server.new_database())
        with replicas(2, url) as found:
            async with balanced(*found.urls) as proxy:
                assert (await proxy.say("a", "hello")).json()["reply"] == "hello"
                server.stop()
                down: set[str] = set()
                while len(down) < 2:  # in any order
                    line = await proxy.logged("ready/replica-", "is DOWN", "503")
                    down |= {name for name in ("replica-1", "replica-2") if name in line}
                read = await proxy.client.get("/v1/sessions/a", headers={"Accept": "text/plain"})
                assert (read.status_code, read.text) == (200, "User: hello\nAssistant: hello\n")
                refused = await proxy.say("a", "again")
                assert refused.status_code == 503
                assert "Retry-After" in refused.headers
                server.start()
                await proxy.logged("ready/replica-", "is UP")
                while (answer := await proxy.say("a", "again")).status_code == 503:
                    assert "Retry-After" in answer.headers
                assert answer.json()["reply"] == "again"


def test_a_replica_measures_what_dashboard_and_alerts_name(database: str) -> None:
    """The list of the figures that one server does not have is complete and true."""
    with replicas(2, database) as found, httpx.Client(timeout=60, trust_env=False) as client:
        (other,) = found.others("a")
        client.get(f"{other.url}/v1/sessions/a")  # which it has to relay
        measured = series_in(client.get(f"{other.url}/metrics").text)
    ours = {name for name in measured if name.startswith("cfs_cluster_") and not name.endswith("_created")}
    assert ours == CLUSTER.keys()
    for name, labels in CLUSTER.items():
        assert measured[name].keys() == labels.keys()
        assert all(measured[name][label] <= values for label, values in labels.items())
