"""How `cfs serve` starts with tokens, and without (G9)."""

import shlex
from pathlib import Path

import httpx
import pytest

from cfs_server.config.settings import ConfigurationError, ServerSettings
from cfs_server.main.serve import serve
from ports import free_port
from tests.access.support import basic, bearer, make
from tests.server.support import run_cfs, serving
from tests.server.test_start import SCRIPTED, nobody_listens

EVERYWHERE = "0.0.0.0"  # noqa: S104 - that is the point

FILES: dict[str, bytes | None] = {
    "missing": None,
    "no TOML": b"[tokens",
    "not UTF-8": b"# \xff",
    "unknown key": b"token = 1",
    "prefix of nothing": b"[tokens.a]\nhash = 'sha256:"
    + b"0" * 64
    + b"'\ngrants = [{prefix = '/etc', ops = ['read']}]",
    "secret for a hash": b"[tokens.a]\nhash = 'cfs_" + b"s3cr3t_" * 6 + b"'",
}


@pytest.mark.parametrize("kind", [*FILES, "folder"])
def test_tokens_that_cannot_be_read_are_told_in_one_line_before_anything_listens(tmp_path: Path, kind: str) -> None:
    content = FILES.get(kind)
    path = tmp_path if kind == "folder" else tmp_path / "tokens.toml"
    if content is not None:
        path.write_bytes(content)
    port, ready = free_port(), tmp_path / "ready"
    ended = run_cfs("serve", *SCRIPTED, "--tokens", str(path), "--port", str(port), "--ready-file", str(ready))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended.stderr
    assert ended.stderr.startswith(f"cfs: {path}: ")
    assert "s3cr3t" not in ended.stderr
    assert nobody_listens(port)
    assert not ready.exists()


async def test_a_file_that_breaks_while_the_model_is_loaded_ends_the_start_as_well(tmp_path: Path) -> None:
    broken = tmp_path / "tokens.toml"
    broken.write_text("[tokens")
    with pytest.raises(ConfigurationError, match="could not be started"):
        await serve(ServerSettings(engine="scripted", port=0, tokens=broken))


def test_without_tokens_others_are_kept_out_and_the_sentence_says_how_to_let_them_in(tmp_path: Path) -> None:
    refused = run_cfs("serve", *SCRIPTED, "--host", EVERYWHERE)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    advice = refused.stderr
    for words in (f"listening on {EVERYWHERE} would let everyone", "--host 127.0.0.1", "--allow-remote"):
        assert words in advice
    command, serve_with = shlex.split(advice.split("'")[1]), "--tokens tokens.toml"
    assert f"serve with {serve_with}" in advice
    path = str(tmp_path / "tokens.toml")
    arguments = [{"NAME": "alice", "tokens.toml": path}.get(word, word) for word in command]
    made = run_cfs(*arguments[1:])
    assert made.returncode == 0, made.stderr
    with serving(*SCRIPTED, "--host", EVERYWHERE, "--tokens", path) as process:
        url = process.url.replace(EVERYWHERE, "127.0.0.1")
        assert process.url.startswith(f"http://{EVERYWHERE}:")
        assert httpx.get(f"{url}/v1/sessions", timeout=60).status_code == 401
        assert httpx.get(f"{url}/v1/sessions", headers=bearer(made.stdout.strip()), timeout=60).status_code == 200
        process.signal()
        code, errors = process.ended()
        assert (code, "NO ACCESS CONTROL" in errors) == (0, False)


def test_with_tokens_any_name_of_the_server_will_do_unless_some_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    head = bearer(make(path, "alice", "/")) | {"Host": "cfs.example.org"}
    with serving(*SCRIPTED, "--tokens", str(path)) as process:
        assert httpx.get(f"{process.url}/v1/whoami", headers=head, timeout=60).status_code == 200
    with serving(*SCRIPTED, "--tokens", str(path), "--allowed-hosts", "other.example.org") as process:
        assert httpx.get(f"{process.url}/v1/whoami", headers=head, timeout=60).status_code == 403


def test_the_file_can_be_named_by_the_environment_and_may_be_empty(tmp_path: Path) -> None:
    """The same variable as for `cfs token`. Nobody has a token yet, so nobody comes in."""
    path = tmp_path / "tokens.toml"
    path.touch()
    with serving(*SCRIPTED, CFS_TOKENS=str(path)) as process:
        assert httpx.get(f"{process.url}/healthz", timeout=60).status_code == 200
        assert httpx.get(f"{process.url}/v1/whoami", timeout=60).status_code == 401
        assert httpx.get(f"{process.url}/v1/whoami", headers=basic("", ""), timeout=60).status_code == 401
