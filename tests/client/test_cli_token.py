"""The token of the command line: from the environment or from a file, and what the server says without (G9, C10)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.client.terminal import cfs, ended
from tests.server.support import run_cfs, serving


class Guarded(NamedTuple):
    """A server that wants tokens, and one for a part of it."""

    url: str
    token: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """`cfs serve --tokens`."""
    tokens = str(tmp_path_factory.mktemp("tokens") / "tokens.toml")
    made = run_cfs("token", "create", "alice", "--grant", "/sessions/alice", "--tokens", tokens)
    assert made.returncode == 0, made.stderr
    with serving("--engine", "scripted", "--tokens", tokens) as server:
        yield Guarded(server.url, made.stdout.strip())


def test_the_token_comes_from_the_environment(guarded: Guarded) -> None:
    assert ended(cfs(guarded.url, "send", "alice", "hello", CFS_TOKEN=guarded.token)) == (0, "hello\n", "")


def test_the_token_comes_from_a_file(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(guarded.token + "\n")
    asked = ["send", "alice", "hello", "--token-file", str(tmp_path / "token")]
    assert ended(cfs(guarded.url, *asked, CFS_TOKEN="stale")) == (0, "hello\n", "")  # noqa: S106 - it is none


def test_without_a_token_the_server_says_no_in_a_line(guarded: Guarded) -> None:
    code, output, errors = ended(cfs(guarded.url, "ls"))
    assert (code, output, errors.count("\n")) == (1, "", 1)


def test_what_is_not_granted_is_refused(guarded: Guarded) -> None:
    code, _, errors = ended(cfs(guarded.url, "send", "bob", "hello", CFS_TOKEN=guarded.token))
    assert (code, errors.count("\n")) == (1, 1)


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff", b"a\nb"])
def test_a_file_without_a_token_is_told(guarded: Guarded, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    code, _, errors = ended(cfs(guarded.url, "ls", "--token-file", str(tmp_path / "token"), COLUMNS="300"))
    assert code == 2
    assert "does not hold one token" in errors or "the file is not text" in errors


def test_doctor_knows_whose_token_it_is(guarded: Guarded) -> None:
    found = json.loads(cfs(guarded.url, "doctor", "--json", CFS_TOKEN=guarded.token).stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["token"]["status"] == "ok"
    assert "you are alice and may use /sessions/alice" in checks["token"]["found"]
    assert checks["engine"]["status"] == "warning"
    assert "a token that may list '/'" in checks["engine"]["advice"]


def test_a_refused_token_names_where_to_give_another(guarded: Guarded) -> None:
    for token in ("", "wrong"):
        code, output, errors = ended(cfs(guarded.url, "ls", CFS_TOKEN=token))
        assert (code, output, errors.count("\n")) == (1, "", 1)
        assert "CFS_TOKEN" in errors
        assert "--token-file" in errors


def test_a_link_is_made_listed_and_revoked(guarded: Guarded) -> None:
    assert cfs(guarded.url, "send", "alice", "hello", CFS_TOKEN=guarded.token).returncode == 0
    for access in ("read", "write"):
        command = ["share", "create", "alice", "--access", access, "--expires", "2h"]
        code, output, errors = ended(cfs(guarded.url, *command, CFS_TOKEN=guarded.token))
        address, _, token = output.strip().partition("/#share=")
        assert (code, address) == (0, guarded.url)
        (share,) = re.findall(r"cfs share revoke (\S+)`", errors)
        assert cfs(guarded.url, "cat", "alice", CFS_TOKEN=token).returncode == 0
        sent = cfs(guarded.url, "send", "alice", "more", "--no-wait", CFS_TOKEN=token).returncode
        assert sent == (0 if access == "write" else 1)
        listed = ended(cfs(guarded.url, "share", "list", "alice", CFS_TOKEN=guarded.token))[1]
        assert re.fullmatch(rf"{share}  {access:<5}  ends \d{{4}}-\d\d-\d\d \d\d:\d\dZ\n", listed)
        assert ended(cfs(guarded.url, "share", "revoke", share, CFS_TOKEN=guarded.token)) == (0, "", "")
        assert cfs(guarded.url, "cat", "alice", CFS_TOKEN=token).returncode == 1
        assert ended(cfs(guarded.url, "share", "list", "alice", CFS_TOKEN=guarded.token))[1] == ""
