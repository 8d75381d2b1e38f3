"""The client in odd surroundings: proxies, full disks, closed streams, no home. One line and an exit code (C10)."""

import os
import subprocess
from pathlib import Path

import pytest

from cfs import AsyncSession, Session
from cfs.errors import InvalidRequest
from cfs.transports.http import Client
from cfs.transports.proxies import proxy_of
from tests.client.harness import HttpHarness
from tests.fork_server import CFS, run
from tests.server.support import environment

AWAY = "http://server.example:8000"
PRIVATE = "10.1.2.3"
PROXY = "http://proxy.example:3128"
SOCKS = "socks5://user:secret@127.0.0.1:9"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("", AWAY, False),
        ("*", AWAY, True),
        ("example", AWAY, True),
        (".example", AWAY, True),
        ("*.example", AWAY, True),
        ("other, server.example", AWAY, True),
        ("ver.example", AWAY, False),
        ("server.example:8000", AWAY, True),
        ("server.example:9000", AWAY, False),
        ("http://server.example", AWAY, True),
        ("[::1]", AWAY, False),
        ("::1,fe80::/10,[2001:db8::1]", "http://[2001:db8::1]:8000", True),
        ("2001:db8::1", "http://[2001:db8::1]:8000", True),
        ("2001:db8::/32", "http://[2001:db8::1]:8000", True),
        ("[2001:db8::1]:8000", "http://[2001:db8::1]:8000", True),
        ("[2001:db8::1]:9000", "http://[2001:db8::1]:8000", False),
        ("10.0.0.0/8", f"http://{PRIVATE}", True),
        (f"{PRIVATE}:80", f"http://{PRIVATE}", True),
        ("10.1.2.4", f"http://{PRIVATE}", False),
        ("[", AWAY, False),
        (",,", AWAY, False),
    ],
)
def test_no_proxy_takes_the_forms_of_other_programs(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str, direct: bool
) -> None:
    """Domains, addresses and networks, IPv6 with and without brackets, and ports, as curl and Go take them."""
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_of(url) == (None if direct else PROXY)
    Client(url).close()


def test_a_proxy_is_that_of_the_scheme_and_never_one_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "all.example:1")
    assert proxy_of(AWAY) == proxy_of("https://server.example") == "http://all.example:1"
    monkeypatch.setenv("https_proxy", PROXY)
    assert proxy_of("https://server.example") == PROXY
    for here in ("http://localhost:8000", "http://127.0.0.1", "http://[::1]:8000"):
        assert proxy_of(here) is None


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"ALL_PROXY": SOCKS}, r"the proxy socks5://127.0.0.1:9 needs another package: pip install 'httpx\[socks\]'"),
        ({"HTTP_PROXY": "socks4://proxy"}, "the proxy socks4://proxy to .* cannot be used"),
        ({"HTTP_PROXY": "http://[::1"}, r"the proxy http://\[::1 to .* cannot be used"),
        ({"SSL_CERT_FILE": "/nonexistent"}, "the certificates for .* cannot be read"),
    ],
)
def test_the_sdk_and_the_program_say_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str
) -> None:
    """Constructors raise an error of the one tree; the program prints one line, without the proxy's password."""
    url = AWAY.replace("http:", "https:") if "SSL_CERT_FILE" in variables else AWAY
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for make in (lambda: Session("a", url=url).read(), lambda: AsyncSession("a", url=url), lambda: Client(url)):
        with pytest.raises(InvalidRequest, match=reason) as caught:
            make()
        assert "secret" not in caught.value.detail
    done = run([CFS, "ls", "--url", url], timeout=60, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("cfs: ")


def test_a_proxy_that_is_not_used_does_no_harm(http_harness: HttpHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", SOCKS)
    monkeypatch.setenv("NO_PROXY", "[::1]")
    with Client(http_harness.url) as client:
        assert client.url == http_harness.url


def shell(url: str, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `cfs` with redirections."""
    return subprocess.run(
        ["sh", "-c", f"{CFS} {command}"],
        capture_output=True,
        text=True,
        env=environment(CFS_URL=url, **variables),
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "code", "lines"),
    [
        ("cat a >/dev/full", 1, ["cfs: input or output failed: No space left on device"]),
        ("send a x >/dev/full", 1, ["cfs: input or output failed: No space left on device"]),
        ("--help >/dev/full", 1, ["cfs: input or output failed: No space left on device"]),
        ("cat a >&-", 1, ["cfs: input or output failed: Bad file descriptor"]),
        ("send a <&-", 1, ["cfs: input or output failed: Bad file descriptor"]),
        ("chat a <&-", 1, ["cfs: input or output failed: Bad file descriptor"]),
        ("cat missing 2>/dev/full", 1, []),
        ("cat missing >&- 2>&-", 1, []),
        ("send a x >/dev/null 2>/dev/full", 0, []),
        ("send a x >/dev/null 2>&-", 0, []),
    ],
)
def test_streams_that_fail_are_one_line_and_an_exit_code(
    http_harness: HttpHarness, command: str, code: int, lines: list[str]
) -> None:
    """/dev/full is a full disk."""
    http_harness.write("a", "first")
    done = shell(http_harness.url, command)
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (code, "", lines)


def test_the_surroundings_of_a_service_are_enough(http_harness: HttpHarness, tmp_path: Path) -> None:
    """No home, no terminal, no locale: as cron, systemd and containers start programs."""
    bare = {"PATH": os.environ["PATH"], "CFS_URL": http_harness.url}
    sent = subprocess.run([CFS, "send", "a", "Zoë"], capture_output=True, env=bare, check=False)
    assert (sent.returncode, sent.stderr) == (0, b"")
    for variables in ({}, {"HOME": "/proc/nothing"}, {"LC_ALL": "C"}, {"LC_ALL": "xx_YY.ISO8859-15", "TERM": "odd"}):
        done = subprocess.run([CFS, "cat", "a"], capture_output=True, env=bare | variables, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert "User: Zoë\n" in done.stdout.decode()
