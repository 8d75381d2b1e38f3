"""What a shell is made of that needs no shell: marks, bounded outputs, the environment, settings."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs_agents.shell import PersistentShell, Sandbox, ShellSettings
from cfs_agents.shell.capture import Capture
from cfs_agents.shell.environment import FIXED, environment
from cfs_agents.shell.orders import Mark, MarkReader


@given(
    st.integers(0, 255), st.none() | st.integers(1, 10**7), st.text(min_size=1).filter(lambda text: "\0" not in text)
)
def test_mark_is_found_however_it_is_cut(status: int, background: int | None, directory: str) -> None:
    """Byte by byte, behind marks of other commands, and with a directory of any name."""
    directory = directory.encode("utf-8", "surrogateescape" if directory.isascii() else "replace").decode()
    data = f"old 1 2 /\nold\nnew {status} {background or ''} {directory}\nnew\n".encode()
    reader = MarkReader("new")
    found = [reader.feed(data[at : at + 1]) for at in range(len(data))]
    assert found[-1] == Mark(status, directory, background)
    assert set(found[:-1]) == {None} or "\nnew" in directory


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 60))
def test_capture_keeps_beginning_and_end(pieces: list[bytes], keep: int) -> None:
    """Never more than it may, everything when that is little enough, and it knows how much is missing."""
    capture = Capture(keep)
    for piece in pieces:
        capture.feed(piece)
    whole, held = b"".join(pieces), capture.held()
    assert capture.total == len(whole)
    assert len(held) <= max(keep, 0)
    if len(whole) <= keep:
        assert (held, capture.left_out) == (whole, 0)
    else:
        assert capture.left_out == len(whole) - len(held)
        head = keep - keep // 3
        assert held[:head] == whole[:head]
        assert held[head:] == whole[len(whole) - (keep // 3) :]
    capture.shown().text.encode()


@given(st.text(min_size=200, max_size=400, alphabet="aé日🙂\n"), st.integers(20, 100))
def test_output_is_cut_between_characters(text: str, keep: int) -> None:
    """Shortening text does not make it binary, and says how many bytes are missing."""
    capture = Capture(keep)
    capture.feed(text.encode())
    shown = capture.shown()
    head, mark, tail = shown.text.partition(f"[... {shown.left_out:,} bytes left out ...]\n")
    assert mark
    assert not shown.binary
    assert text.endswith(tail)
    assert text.startswith((head, head.removesuffix("\n")))


@pytest.mark.parametrize(
    "name",
    [
        *("MYSQL_PWD", "SLACK_WEBHOOK_URL", "CI_JOB_JWT", "AZURE_STORAGE_CONNECTION_STRING", "DATABASE_URL"),
        *("CFS_TOKEN", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "SSH_AUTH_SOCK", "http_proxy"),
        *("BASH_ENV", "PS1", "IFS", "LD_PRELOAD", "PYTHONSTARTUP", "LANGUAGE", "MY_PATH", "PATHS", "LC_", "lang", ""),
    ],
)
def test_variable_that_is_not_listed_is_left_out(name: str) -> None:
    """Whatever it is called; a user who needs it names it."""
    assert name not in environment({name: "x"}, {}, frozenset(), "/home")
    assert environment({name: "x"}, {}, frozenset({name}), "/home")[name] == "x"
    assert environment({}, {name: "x"}, frozenset(), "/home")[name] == "x"


def test_harmless_variables_are_kept() -> None:
    """And those that keep programs quiet are set."""
    inherited = {"PATH": "/bin", "TZ": "UTC", "USER": "me", "LC_TIME": "C", "HOME": "/root", "TERM": "xterm"}
    kept = environment(inherited, {}, frozenset(), "/work")
    assert kept == FIXED | {"PATH": "/bin", "TZ": "UTC", "USER": "me", "LC_TIME": "C", "HOME": "/work"}
    assert environment(inherited, {}, frozenset({"TERM"}), "/work")["TERM"] == "xterm"


def test_what_bash_takes_orders_from_is_left_out(settings: ShellSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """No startup file, no trap in the environment, no prompt; programs are told that no person is there."""
    for name in ("BASH_ENV", "ENV", "PROMPT_COMMAND", "SHELLOPTS", "BASHOPTS", "BASH_FUNC_ls%%", "CDPATH", "PS1"):
        monkeypatch.setenv(name, "() { echo hacked; }" if name.startswith("BASH_F") else "xtrace:extglob")
    monkeypatch.setenv("MY_TOKEN", "secret")
    with PersistentShell(settings) as shell:
        text = shell.run("env; type -t ls; echo $-").output
    assert "hacked" not in text
    assert "secret" not in text
    assert text.endswith("file\nhBis\n") or "x" not in text.splitlines()[-1]
    lines = set(text.splitlines())
    assert {"TERM=dumb", "PAGER=cat", "GIT_PAGER=cat", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"} <= lines
    assert f"HOME={settings.directory}" in lines


def test_sandbox_knows_places_by_both_names() -> None:
    """The machine's directories, as commands see them."""
    sandbox = Sandbox(readable=(Path("/srv/a"),), places={"/workspace": Path("/srv/a/workspace")})
    assert sandbox.inside(Path("/srv/a/workspace/b")) == "/workspace/b"
    assert sandbox.inside(Path("/srv/a/workspace")) == "/workspace"
    assert sandbox.inside(Path("/srv/a/storage")) == "/srv/a/storage"
    assert ShellSettings(directory=Path("/srv")).inside(Path("/srv/x")) == "/srv/x"
