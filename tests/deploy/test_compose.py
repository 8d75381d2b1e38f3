"""`docker-compose.yml`: one server as ever, and the profile `cluster`, whose processes work together."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cfs_server.config.settings import ServerSettings
from ports import free_port
from tests.cluster.support import metric, replicas
from tests.deploy.test_haproxy import CONFIGURATION, HAPROXY, SCRIPTED, balanced
from tests.server.support import serving

ROOT = Path(__file__).parent.parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ROUTER = Path(sys.executable).with_name("vllm-router")


def addresses(text: str) -> set[str]:
    """Return the names of services that a text calls, with their ports."""
    return set(re.findall(r"(?:https?://|@)([a-z0-9-]+:[0-9]+)", text))


def test_without_a_profile_one_server_starts() -> None:
    """Its own port, volume and settings; all others are in the profile."""
    assert [name for name, service in SERVICES.items() if "profiles" not in service] == ["server"]
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["cluster"]} == {
        *("balancer", "replica-1", "replica-2", "database", "router", "worker-1", "worker-2")
    }
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["server", "balancer"]
    assert SERVICES["server"]["volumes"] == ["data:/data", "./models:/models:ro"]


def test_settings_are_those_of_the_server_and_addresses_those_of_services() -> None:
    ports = {"database": "5432", "router": "9000"}
    known = {f"{name}:{ports.get(name, '8000')}" for name in SERVICES}
    settings = ServerSettings.model_fields.keys()
    for name, service in SERVICES.items():
        environment = service.get("environment", {})
        ours = {variable.removeprefix("CFS_").lower() for variable in environment if variable.startswith("CFS_")}
        assert ours <= settings, name
        called = addresses(" ".join([*map(str, environment.values()), service.get("command", "")]))
        assert called <= known | {"0.0.0.0:9000"}, name
    for text in re.findall(r"replica-[0-9]:[0-9]+", CONFIGURATION.read_text(encoding="utf-8")):
        assert text in known


def test_replicas_differ_in_their_address_only() -> None:
    """The same database, workspaces, tokens and model: else a session would depend on the replica."""
    replicas = {name: service for name, service in SERVICES.items() if name.startswith("replica-")}
    for name, service in replicas.items():
        assert service["environment"]["CFS_REPLICA_URL"] == f"http://{name}:8000"
        assert name in service["environment"]["CFS_ALLOWED_HOSTS"], "replicas call each other by these names"
    first, *others = (
        service | {"environment": service["environment"] | {"CFS_REPLICA_URL": ""}} for service in replicas.values()
    )
    assert others == [first]
    assert "shared:/data" in first["volumes"]
    assert first["environment"]["CFS_WORKSPACES"] == "/data/workspaces"


def test_a_server_ends_before_it_is_killed() -> None:
    for name, service in SERVICES.items():
        if service["image"] == "cfs":
            grace = float(service.get("environment", {}).get("CFS_SHUTDOWN_GRACE", ServerSettings().shutdown_grace))
            assert grace < float(service["stop_grace_period"].removesuffix("s")), name


@asynccontextmanager
async def router(*workers: str) -> AsyncIterator[str]:
    """Run the router as the file does, in front of other workers; yield its address."""
    words = shlex.split(SERVICES["router"]["command"])
    kept = words[: words.index("--worker-urls")]
    port = free_port()
    for flag, value in (("--host", "127.0.0.1"), ("--port", str(port))):
        kept[kept.index(flag) + 1] = value
    command = (*kept, "--prometheus-port", str(free_port()), "--worker-urls", *workers)
    process = await asyncio.create_subprocess_exec(
        ROUTER, *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=5, trust_env=False) as client:
            while not await _is_healthy(client):
                assert process.returncode is None
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def _is_healthy(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.skipif(HAPROXY is None, reason="needs haproxy: scripts/test installs it on Debian")
@pytest.mark.skipif(not ROUTER.exists(), reason=f"needs vllm-router, which there is not for {os.uname().sysname}")
async def test_all_services_answer_together(database: str) -> None:
    """The processes of the profile without containers: a message passes all of them."""
    with serving(*SCRIPTED, "--store", "memory") as one, serving(*SCRIPTED, "--store", "memory") as two:
        async with router(one.url, two.url) as upstream:
            with replicas(2, database, "--upstream", upstream) as found:
                async with balanced(*found.urls) as proxy:
                    for number in range(6):
                        answer = await proxy.say(f"s{number}", f"hello {number}")
                        assert (answer.status_code, answer.json()["reply"]) == (200, f"hello {number}")
                assert {await asyncio.to_thread(metric, url, "cfs_cluster_replicas") for url in found.urls} == {2}
