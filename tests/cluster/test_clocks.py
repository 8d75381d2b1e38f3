"""Replicas whose machines do not agree about the time: nothing that they compare depends on it."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from cfs_server.cluster.clock import DatabaseClock
from tests.cluster.support import Replicas, replica
from tests.server.support import end, run_cfs

SHIFTED = Path(__file__).with_name("shifted_clock")
APART = 45
LOCK = b'<lockinfo xmlns="DAV:"><lockscope><exclusive/></lockscope><locktype><write/></locktype></lockinfo>'


@pytest.fixture
def slow_and_fast(database: str, tmp_path: Path) -> Iterator[tuple[Replicas, str]]:
    """Two replicas, whose clocks are behind and ahead of that of the database, and a token."""
    file = tmp_path / "tokens.toml"
    token = run_cfs("token", "create", "owner", "--grant", "/", "--tokens", str(file)).stdout.split()[-1]
    with ExitStack() as stack:
        found = [
            stack.enter_context(
                replica(database, "--tokens", str(file), PYTHONPATH=str(SHIFTED), CLOCK_SHIFT=str(shift))
            )
            for shift in (-APART, APART)
        ]
        both = Replicas(found, database, token)
        both.until_served()
        yield both, token


def test_clocks_that_differ_change_nothing(slow_and_fast: tuple[Replicas, str]) -> None:
    """Each replica sends requests on to the other, what they write has one time, and what they hold outlives them."""
    both, token = slow_and_fast
    slow, fast = both.processes
    names = {
        process.url: next(name for name in map("s{}".format, range(99)) if both.owner_of(name) is process)
        for process in (slow, fast)
    }
    credentials = {"Authorization": f"Bearer {token}"}
    with httpx.Client(timeout=60, trust_env=False, headers=credentials) as client:
        before = time.time()
        for name in names.values():
            for process in (slow, fast):
                said = client.post(f"{process.url}/v1/sessions/{name}/messages?wait=true", content=process.url)
                assert said.status_code == 200, said.text
            shown = client.get(f"{slow.url}/v1/sessions/{name}").json()
            assert before - 5 < shown["created_at"] <= shown["updated_at"] < time.time() + 5
        name = names[slow.url]
        made = client.post(f"{fast.url}/v1/shares", json={"session": name, "access": "write", "expires": APART})
        bearer = {"Authorization": f"Bearer {made.json()['token']}"}
        listed = client.get(f"{slow.url}/v1/shares", params={"session": name}).json()["shares"]
        assert before + APART - 5 < listed[0]["expires"] < time.time() + APART + 5
        locked = client.request(
            "LOCK", f"{fast.url}/dav/sessions/{name}", content=LOCK, headers={"Timeout": f"Second-{APART}"}
        )
        assert locked.status_code == 200, locked.text
        client.patch(f"{fast.url}/v1/sessions/{name}/settings", json={"driver": "agent"})
        client.post(f"{fast.url}/v1/sessions/{name}/messages", content=b"x")
        claimed = client.post(f"{fast.url}/v1/sessions/{name}/claim", json={"lease": APART}).json()
        assert before + APART - 5 < claimed["expires_at"] < time.time() + APART + 5
        end(slow.process)
        both.until_served(fast.url)
        assert client.get(f"{fast.url}/v1/sessions/{name}", headers=bearer).status_code == 200
        written = client.put(f"{fast.url}/dav/sessions/{name}", content=b"x")
        assert written.status_code == 423, written.text
        finish = {"claim": claimed["claim"], "reply": "done"}
        done = client.post(f"{fast.url}/v1/sessions/{name}/turns/{claimed['turn']}/finish", json=finish)
        assert done.status_code == 200, done.text


def test_a_quick_answer_of_the_database_counts_more_than_a_slow_one() -> None:
    now = 100.0
    clock = DatabaseClock(lambda: now)
    clock.learn(5_000.0, 90.0, 99.0)  # the first one counts, however long it took
    assert clock() == 5_000.0 + 100.0 - 94.5
    clock.learn(6_000.0, 100.0, 100.02)
    assert clock() == pytest.approx(5_999.99)
    clock.learn(7_000.0, 100.0, 102.0)
    assert clock() == pytest.approx(5_999.99)
    clock.learn(8_000.0, 199.0, 201.0)
    assert clock() == pytest.approx(7_900.0)


def test_a_measurement_that_says_less_does_not_set_the_clock_back() -> None:
    """A reply is never earlier than its message. Soon the clock agrees with the database again."""
    now = 100.0
    clock = DatabaseClock(lambda: now)
    clock.learn(5_000.0, 100.0, 100.0)
    assert clock() == 5_000.0
    clock.learn(4_999.9, 100.0, 100.0)
    assert clock() == 5_000.0
    now = 100.4
    assert clock() == pytest.approx(5_000.3)
