"""What a shell is made of that needs no shell: marks, bounded outputs, the environment, settings."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs_agents.tools.shell import Sandbox, Shell, ShellSettings
from cfs_agents.tools.shell.capture import Capture
from cfs_agents.tools.shell.environment import environment, is_secret
from cfs_agents.tools.shell.framing import Mark, MarkReader


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
        *(
            "CFS_TOKEN",
            "GITHUB_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "OPENAI_API_KEY",
            "DB_PASSWORD",
            "PGPASSWORD",
            "PASSWD",
        ),
        *(
            "NPM_AUTH",
            "SSH_AUTH_SOCK",
            "api_key",
            "GPG_PASSPHRASE",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "SENTRY_DSN",
            "KEY",
        ),
    ],
)
def test_variable_that_looks_like_a_secret_is_left_out(name: str) -> None:
    """By its name; whoever needs it names it."""
    assert is_secret(name, "x")
    assert name not in environment({name: "x"}, {}, frozenset(), "/home")
    assert environment({name: "x"}, {}, frozenset({name}), "/home")[name] == "x"
    assert environment({}, {name: "x"}, frozenset(), "/home")[name] == "x"


@pytest.mark.parametrize(
    "name", ["PATH", "USER", "GIT_AUTHOR_NAME", "KEYBOARD", "MONKEY", "COMPASS", "TZ", "VIRTUAL_ENV"]
)
def test_other_variables_are_kept(name: str) -> None:
    """Also those that only resemble secrets."""
    assert environment({name: "x"}, {}, frozenset(), "/home")[name] == "x"


def test_address_with_a_password_is_left_out() -> None:
    """Whatever the variable is called."""
    values = {
        "DATABASE_URL": "postgres://me:pw@host/db",
        "HOME_PAGE": "https://host:80/a@b",
        "PROXY": "http://host:3128",
    }
    assert set(environment(values, {}, frozenset(), "/home")) & set(values) == {"HOME_PAGE", "PROXY"}


def test_what_bash_takes_orders_from_is_left_out(settings: ShellSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """No startup file, no trap in the environment, no prompt; programs are told that nobody is there."""
    for name in ("BASH_ENV", "ENV", "PROMPT_COMMAND", "SHELLOPTS", "BASHOPTS", "BASH_FUNC_ls%%", "CDPATH", "PS1"):
        monkeypatch.setenv(name, "() { echo hacked; }" if name.startswith("BASH_F") else "xtrace:extglob")
    monkeypatch.setenv("MY_TOKEN", "secret")
    with Shell(settings) as shell:
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
