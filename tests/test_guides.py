"""The tutorial, the how-to guides and the explanations are true: a reader types every block of a page, in its order."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cfs_agents.tools import sandbox_trouble
from ports import free_port
from tests.documentation import BLOCKS, ROOT, Reader, missing
from tests.fuse import support as fuse

FOLDERS = ("how-to", "explanation")
GUIDES = {
    "docs/tutorial.md",
    *(path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / "docs" / folder).glob("*.md")),
}
TYPED = sorted({block.page for block in BLOCKS if block.page in GUIDES and (block.mark or "").startswith("tested")})
NGINX = "docs/how-to/nginx.md"
SANDBOX = "docs/how-to/sandbox.md"
PROGRAMS = "docs/how-to/coding-agents.md"
"""Its blocks need programs and a model that calls tools: tests/test_coding_agents.py does them."""
EMBEDDINGS = "docs/how-to/embeddings.md"
"""Its blocks need a model for embeddings: tests/protocols/test_embeddings.py does them."""
MOUNTED = {"docs/tutorial.md", "docs/how-to/remote-mount.md"}
MODEL = ROOT / "server/cfs_server/models/cfs-demo.gguf"


@contextmanager
def reading(page: str, home: Path, replace: dict[str, str] | None = None) -> Iterator[Reader]:
    """A reader of a page, with a server unless the page starts one; in the end nothing is left of either."""
    port = free_port()
    reader = Reader(home, port, {"https://cfs.example": f"http://127.0.0.1:{port}"} | (replace or {}))
    try:
        if not any(block.page == page and block.text.startswith(("cfs serve", "scripts/up")) for block in BLOCKS):
            reader.start("cfs serve").wait_for("listening on ...")
        yield reader
    finally:
        fuse.unmount(home / "cfs")
        reader.leave()


@pytest.mark.external
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page for page in TYPED if page not in (NGINX, PROGRAMS, EMBEDDINGS)])
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    """From its first block to its last, in one shell, with the embedded model."""
    if page in MOUNTED and (reason := fuse.reason_to_skip()):
        pytest.skip(reason)
    if page == SANDBOX and (reason := sandbox_trouble()):
        pytest.skip(reason)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    replace = {"scripts/up": f"{ROOT}/scripts/up --no-mount", "path/to/model.gguf": str(MODEL)}
    with reading(page, tmp_path, replace) as reader:
        reader.read(page)


MAIN = """
pid {home}/nginx.pid;
error_log {home}/nginx.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    include {home}/cfs.conf;
}}
"""
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
)


@pytest.mark.external
@pytest.mark.timeout(300)
def test_nginx_stands_in_front(tmp_path: Path) -> None:
    """With the page's own configuration: refusals, a reply, a stream, and a rename by WebDAV, all over TLS."""
    if shutil.which("nginx") is None or shutil.which("openssl") is None:
        pytest.skip("needs nginx and openssl: scripts/test installs nginx on Debian")
    (tmp_path / "main.conf").write_text(MAIN.format(home=tmp_path))
    key, certificate, port = tmp_path / "privkey.pem", tmp_path / "fullchain.pem", free_port()
    command = f"{CERTIFICATE} -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True)
    run = f"nginx -p {tmp_path} -c main.conf"
    replace = {
        "sudo tee /etc/nginx/conf.d/cfs.conf": "tee cfs.conf",
        "sudo nginx -t": f"{run} -t",
        "sudo systemctl reload nginx": f"{run}\nexport CURL_CA_BUNDLE={certificate} SSL_CERT_FILE={certificate}",
        "/etc/letsencrypt/live/cfs.example": str(tmp_path),
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "https://cfs.example": f"https://localhost:{port}",
        "server_name cfs.example": "server_name localhost",
    }
    try:
        with reading(NGINX, tmp_path, replace) as reader:
            reader.read(NGINX)
    finally:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((tmp_path / "nginx.pid").read_text()), signal.SIGTERM)


@pytest.mark.parametrize(
    ("expected", "shown", "left"),
    [
        ("one\nthree\n", "one\ntwo\nthree\n", []),
        ("one\nthree\n", "three\none\n", ["three"]),
        ("12 tokens, 0.5 s", "7 tokens, 1.25 s", []),
        ("Assistant: Hello!", "Assistant: Good morning!", []),
        ("Assistant: Hello!", "User: Hello!", ["Assistant: Hello!"]),
        ("main ... 2 messages", "main   idle   14 messages", []),
    ],
)
def test_shown_output_is_compared_line_by_line(expected: str, shown: str, left: list[str]) -> None:
    """Numbers, and what the model says, may be others; more lines between are no difference."""
    assert missing(expected, shown) == left


def test_each_guide_says_what_to_do_when_it_fails() -> None:
    """A how-to guide has a goal, and a last section for what goes wrong; the list of guides names all of them."""
    folder = ROOT / "docs/how-to"
    index = (folder / "README.md").read_text(encoding="utf-8")
    for path in folder.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        assert path.name == "README.md" or f"]({path.name})" in index, path.name
        if path.name not in ("README.md", "coming-from.md"):
            assert "\nGoal: " in text, path.name
            assert "\n## When it fails\n" in text, path.name


def test_commands_in_running_text_exist() -> None:
    """What a page names in passing, such as `cfs agent tree`, is a command of the program."""
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^## `(cfs .+?)`$", text, re.MULTILINE)) | {"cfs model", "cfs agent", "cfs token"}
    for page in GUIDES:
        named = re.findall(r"`(cfs [a-z]+(?: [a-z]+)?)", (ROOT / page).read_text(encoding="utf-8"))
        assert [name for name in named if name not in known and name.rpartition(" ")[0] not in known] == [], page
