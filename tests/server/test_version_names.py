"""The names of versions in the folders of the past: what they say, and what they stand for."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from cfs_server.domain.version_names import moment_of, version_name

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("author", "file", "name"),
    [
        ("alice", "/workspaces/main/src/a.py", "@00012_2026-11-27T12.00.00Z_alice.py"),
        ("main/coder", "", "@00012_2026-11-27T12.00.00Z_main-coder"),
        ("a:b c\n", "/workspaces/main/.bashrc", "@00012_2026-11-27T12.00.00Z_a-b-c-.bashrc"),
        ("你" * 100, "/workspaces/main/Makefile", f"@00012_2026-11-27T12.00.00Z_{'你' * 21}"),
    ],
)
def test_a_name_has_number_time_author_and_suffix(author: str, file: str, name: str) -> None:
    assert version_name(12, NOON.timestamp(), author, file) == name
    assert moment_of(name) == 12


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("@0", 0),
        ("@12", 12),
        ("@00012_whatever", 12),
        ("@2026-11-27", NOON.replace(hour=0)),
        ("@2026-11-27T12:00", NOON),
        ("@2026-11-27T12.00.00Z", NOON),
        ("@2026-11-27T12:00:00+01:30", NOON.replace(tzinfo=timezone(timedelta(hours=1, minutes=30)))),
        ("@2026-13-27", None),
        ("@2026-11-27T25:00", None),
        ("@", None),
        ("@x", None),
        ("12", None),
        ("@12x", None),
        ("@١٢", None),
        ("@types", None),
    ],
)
def test_a_number_or_a_time_is_enough(name: str, moment: object) -> None:
    assert moment_of(name) == moment
