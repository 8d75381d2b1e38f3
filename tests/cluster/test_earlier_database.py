"""A database that an earlier version has written is migrated by the first replica, and its sessions go on.

`tests/fixtures/databases/schema1.sql` is a dump of what two replicas wrote before the index for searches: seven
sessions, one with a child, one renamed, one forked, one with a setting, and a deleted one.
"""

import time
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.cluster.support import names, replicas, say, text_of
from tests.postgres import PostgresServer

DUMP = Path(__file__).parent.parent / "fixtures/databases/schema1.sql"
OF_TODAY = """
UPDATE cfs.kept SET value = jsonb_set(value::jsonb, '{at}', to_jsonb(extract(epoch FROM now())))::text
WHERE space = 'idempotency'
"""
"""Keys of requests are kept for a day, and the dump is older."""
KITE = "a red kite over the harbour"


def test_replicas_serve_the_sessions_of_an_earlier_version(postgres: PostgresServer) -> None:
    """Both start at once. Nothing is lost, words are found, and a repeated request does nothing."""
    database = postgres.url(postgres.new_database())
    with psycopg.connect(database) as connection:
        connection.execute(DUMP.read_bytes())
        connection.execute(OF_TODAY)
    with replicas(2, database) as found:
        one, two = found.urls
        assert names(two) == ["copied", "new-name", "s0", "s1", "s2", "s3", "s4"]
        for number in range(5):
            lines = text_of(found.urls[number % 2], f"s{number}").splitlines()
            words = [f"{KITE} {number}", f"second {number}", f"a third {number}"]
            assert lines[:6] == [line for text in words for line in (f"User: {text}", f"Assistant: {text}")]
        assert text_of(one, "copied") == text_of(two, "s3")
        assert text_of(one, "s0/kid") == "User: hello from the child\nAssistant: hello from the child\n"
        assert text_of(one, "new-name") == "User: before the rename\nAssistant: before the rename\n"
        assert get(one, "/v1/sessions/s1/settings")["temperature"] == 0.3
        assert httpx.get(f"{two}/v1/sessions/s5", timeout=60, trust_env=False).status_code in (404, 410)
        assert found_in(two, "kite") == {"copied", "s0", "s1", "s2", "s3", "s4"}
        assert found_in(one, "日本") == {"s4"}
        again = {"Idempotency-Key": "key-of-old"}
        httpx.post(f"{two}/v1/sessions/s4/messages", content=b"once", headers=again, timeout=60).raise_for_status()
        assert text_of(one, "s4").count("User: once") == 1
        assert say(one, "s1", "after")["reply"] == "after"
        assert text_of(two, "s1").endswith("User: after\nAssistant: after\n")


def found_in(url: str, words: str) -> set[str]:
    """Return the sessions with these words, once all messages are in the index."""
    while (page := get(url, f"/v1/search?limit=100&q={words}"))["indexing"]:
        time.sleep(0.02)
    return {result["session"] for result in page["results"]}


def get(url: str, path: str) -> dict[str, Any]:
    """Return what a replica answers as JSON."""
    answer = httpx.get(url + path, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
