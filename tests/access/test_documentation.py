"""The commands of docs/access.md do what the page says."""

import os
import re
import subprocess
from pathlib import Path

from cfs_server.access.tokens import Token, load
from cfs_server.config.settings import ServerSettings, flag_of
from tests.access.support import granted
from tests.server.support import CFS, environment, run_cfs, serving
from tests.server.test_start import SCRIPTED

PAGE = (Path(__file__).parent.parent.parent / "docs/access.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The commands of the page under a name."""
    found = re.search(rf"<!-- tested: {name} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def shell(commands: str, folder: Path) -> str:
    """Run commands as a user would, up to the first that fails; return what they print."""
    path = f"{CFS.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands.replace("curl ", "curl -sSf ")],
        cwd=folder,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    listed = shell(block("make"), tmp_path)
    assert [line.split()[0] for line in listed.splitlines()] == ["root", "alice"]
    assert load(tmp_path / "tokens.toml")["alice"].grants == (
        granted("/sessions/alice"),
        granted("/workspaces/alice"),
    )
    with serving(*SCRIPTED, "--tokens", str(tmp_path / "tokens.toml")) as process:
        told = shell(block("use").replace("localhost:8000", process.url.removeprefix("http://")), tmp_path)
    assert '"name":"alice"' in told
    assert '"reply":"Hello!"' in told
    assert '"path":"/workspaces/alice/notes"' in told


def test_the_page_names_every_flag_and_every_key() -> None:
    """A new limit or a new key of the file is told there."""
    for name in (name for name in ServerSettings.model_fields if name.startswith("token")):
        assert flag_of(name) in PAGE
    shown = run_cfs("token", "create", "--help", COLUMNS="200", TERM="dumb").stdout
    for flag in set(re.findall(r"--[a-z]+", shown)) - {"--help"}:
        assert flag in PAGE
    for key in Token.model_fields:
        assert re.search(rf"^    \[?{key}\b", PAGE, re.MULTILINE), key
