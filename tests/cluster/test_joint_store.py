"""One process with several slots answers lists once, as a server with one store does."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cfs_server.domain.placement import slot_of
from cfs_server.journal.postgres_database import prepare
from tests.cluster.support import SLOTS, replicas, say
from tests.postgres import running_postgres
from tests.server.support import serving

NAMES = [f"s{number:02}" for number in range(24)]
LISTS = [
    "/v1/sessions",
    "/v1/sessions?limit=7",
    "/v1/sessions?limit=7&after=s06",
    "/v1/sessions?prefix=s1",
    "/v1/sessions?prefix=s03/",
    "/v1/sessions?active=true",
    "/v1/files",
    "/v1/files?limit=5&after=/sessions/s04",
    "/v1/files?prefix=/sessions/s03/",
    "/v1/search?q=needle",
    "/v1/search?q=needle&limit=5",
    "/v1/search?q=nothing",
]
PASSING = {"nonce", "etag", "created_at", "updated_at", "time", "version", "life", "origin", "last_event", "usage"}
"""Fields that differ between two servers."""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    """The addresses of a replica with all slots, and of a server with one store, with the same sessions."""
    assert {slot_of(name, SLOTS) for name in NAMES} == set(range(SLOTS))
    with running_postgres() as server:
        url = server.url(server.new_database())
        prepare(url, SLOTS)
        with replicas(1, url) as found, serving("--engine", "scripted") as single:
            urls = found.urls[0], single.url
            for address in urls:
                for name in [*NAMES, "s03/below", "s03/other"]:
                    say(address, name, f"needle {name}")
            yield urls


def get(url: str, path: str, **headers: str) -> httpx.Response:
    answer = httpx.get(url + path, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code in (200, 304), answer.text
    return answer


def lasting(value: Any) -> Any:
    """Return what two servers with the same sessions say alike."""
    if isinstance(value, dict):
        return {key: lasting(part) for key, part in value.items() if key not in PASSING}
    return [lasting(part) for part in value] if isinstance(value, list) else value


def answered(url: str) -> Counter[tuple[str, str]]:
    """Return how often the application has answered: for each slot and route."""
    text = get(url, "/metrics").text
    counts = Counter[tuple[str, str]]()
    for line in re.findall(r"^cfs_request_seconds_count\{.*$", text, re.MULTILINE):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        counts[labels["slot"], labels["route"]] += int(float(line.split()[-1]))
    return counts


@pytest.mark.parametrize("path", LISTS)
def test_a_list_of_several_slots_is_that_of_one_store(servers: tuple[str, str], path: str) -> None:
    joint, single = (get(url, path) for url in servers)
    assert lasting(joint.json()) == lasting(single.json())
    assert joint.headers.keys() - {"etag"} == single.headers.keys() - {"etag"}


@pytest.mark.parametrize("path", LISTS)
def test_the_application_answers_once_for_all_slots(servers: tuple[str, str], path: str) -> None:
    url = servers[0]
    route = path.partition("?")[0]
    before = answered(url)
    get(url, path)
    assert {key: count for key, count in (answered(url) - before).items() if key[1] == route} == {("none", route): 1}


def test_a_client_that_has_a_list_gets_none(servers: tuple[str, str]) -> None:
    for url in servers:
        first = get(url, "/v1/sessions")
        assert get(url, "/v1/sessions", **{"If-None-Match": first.headers["ETag"]}).status_code == 304


def test_nothing_is_created_without_a_slot(servers: tuple[str, str]) -> None:
    url = servers[0]
    before = get(url, "/v1/sessions?limit=1000").json()
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "hello"}, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert get(url, "/v1/sessions?limit=1000").json() == before
