"""curl: uploads of known and unknown length, parts, conditions (W1, W2)."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fuse.support import GUARD_SECONDS, Stage

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

ONE = "User: one\nAssistant: one\n"


@dataclass(frozen=True)
class Curl:
    """curl at the mounts of one server."""

    root: str
    folder: Path

    def __call__(self, path: str, *flags: str, text: str | None = None) -> str:
        """Make a request; return the body."""
        done = subprocess.run(
            ["curl", "-sS", "--noproxy", "*", *flags, f"{self.root}{path}"],
            input=text,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=GUARD_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, path: str, *flags: str, text: str | None = None) -> int:
        """Make a request; return the status."""
        return int(self(path, "-o", "/dev/null", "-w", "%{http_code}", *flags, text=text))

    def etag(self, path: str) -> str:
        """Ask for the version."""
        head = dict(line.lower().split(": ", 1) for line in self(path, "-I").splitlines() if ": " in line)
        return head["etag"]


@pytest.fixture
def curl(stage: Stage, tmp_path: Path) -> Curl:
    return Curl(f"{stage.url}/dav", tmp_path)


def test_uploads(curl: Curl, stage: Stage, name: str) -> None:
    """Of a file, from a pipe (chunked), and with `Expect: 100-continue`."""
    path = f"/sessions/{name}"
    (curl.folder / "file").write_text("one\n")
    assert curl.status(path, "-T", "file") == 201
    assert curl(path) == ONE
    assert curl.status(path, "-T", "-", text="two\n") == 204
    assert curl.status(path, "-T", "file", "-H", "Expect: 100-continue") == 204
    assert stage.asked(name) == ["one", "two", "one"]


def test_the_transcript_with_something_added(curl: Curl, stage: Stage, name: str) -> None:
    path = f"/sessions/{name}"
    stage.say(name, "one")
    assert curl.status(path, "-T", "-", text=ONE + "two\n") == 204
    assert curl.status(path, "-T", "-", text=ONE.replace("one", "ONE")) == 409
    assert stage.asked(name) == ["one", "two"]


def test_an_edit_with_the_present_version_replaces_the_history(curl: Curl, stage: Stage, name: str) -> None:
    """With an older one it is refused (S14)."""
    path = f"/sessions/{name}"
    stage.say(name, "one")
    old = curl.etag(path)
    stage.say(name, "two")
    edited = curl(path).replace("one", "ONE")
    assert curl.status(path, "-T", "-", "-H", f"If-Match: {old}", text=edited) == 409
    assert curl.status(path, "-T", "-", "-H", f"If-Match: {curl.etag(path)}", text=edited) == 204
    assert curl(path) == edited
    assert stage.asked(name) == ["ONE", "two"]


def test_a_file_that_ends_with_an_unanswered_message_is_answered(curl: Curl, stage: Stage, name: str) -> None:
    """As a new session, and as the edit of one (S14)."""
    path, said = f"/sessions/{name}", "User: hi\nAssistant: hello\nUser: and now?\n"
    assert curl.status(path, "-T", "-", text=said) == 201
    assert curl(path) == f"{said}Assistant: and now?\n"
    edited = said.replace("now", "then")
    assert curl.status(path, "-T", "-", "-H", f"If-Match: {curl.etag(path)}", text=edited) == 204
    assert curl(path) == f"{edited}Assistant: and then?\n"


def test_parts_and_conditions(curl: Curl, stage: Stage, name: str) -> None:
    path = f"/sessions/{name}"
    stage.say(name, "one")
    etag = curl.etag(path)
    assert curl(path, "-r", "6-8") == "one"
    assert curl(path, "-r", "-4") == "one\n"
    assert curl.status(path, "-r", "6-8") == 206
    assert curl.status(path, "-r", "1000-") == 416
    assert curl.status(path, "-H", f"If-None-Match: {etag}") == 304
    assert curl.status(path, "-T", "-", "-H", "If-None-Match: *", text="two\n") == 412
    assert curl.status(f"{path}-new", "-T", "-", "-H", "If-None-Match: *", text="two\n") == 201
    assert stage.asked(name) == ["one"]


def test_a_download_goes_on_where_it_was(curl: Curl, stage: Stage, name: str) -> None:
    stage.say(name, "one")
    (curl.folder / "part").write_text(ONE[:10])
    curl(f"/sessions/{name}", "-C", "-", "-o", "part")
    assert (curl.folder / "part").read_text() == ONE


def test_reading_without_waiting(curl: Curl, stage: Stage, name: str) -> None:
    """`Prefer: wait=0` gives what there is, and says that there is more to come."""
    with stage.held():
        stage.say(name, "one", wait=False)
        said = curl(f"/sessions/{name}", "-i", "-H", "Prefer: wait=0")
    assert said.endswith("\n\nUser: one\n")
    assert "x-cfs-state: generating" in said.lower()
    assert curl(f"/sessions/{name}") == ONE


def test_a_workspace(curl: Curl, stage: Stage, name: str) -> None:
    """Files are bytes: as large as they are, in parts, under conditions, moved and copied."""
    folder = f"/workspaces/{name}"
    assert curl.status(f"{folder}/", "-X", "MKCOL") == 201
    data = "0123456789" * 500_000
    assert curl.status(f"{folder}/big", "-T", "-", text=data) == 201
    assert curl(f"{folder}/big") == data
    assert curl(f"{folder}/big", "-r", "4999990-") == "0123456789"
    etag = curl.etag(f"{folder}/big")
    assert curl.status(f"{folder}/big", "-T", "-", "-H", "If-None-Match: *", text="x") == 412
    assert curl.status(f"{folder}/big", "-T", "-", "-H", f"If-Match: {etag}", text="x") == 204
    assert curl.status(f"{folder}/big", "-T", "-", "-H", f"If-Match: {etag}", text="y") == 412
    assert curl.status(f"{folder}/big", "-X", "MOVE", "-H", f"Destination: {curl.root}{folder}/small") == 201
    assert curl(f"{folder}/") == "small\n"
    public = curl.root.replace("http://", "https://")  # as a client writes it that is behind a proxy with TLS
    assert curl.status(f"{folder}/small", "-X", "MOVE", "-H", f"Destination: {public}{folder}/tls") == 201
    assert curl.status(f"{folder}/tls", "-X", "MOVE", "-H", "Destination: https://example.com/dav/x") == 502
    assert curl.status(f"{folder}/", "-X", "DELETE") == 204


def test_a_new_file_is_moved_over_a_session(curl: Curl, stage: Stage, name: str) -> None:
    """PUT and MOVE, as editors with WebDAV save: the addition is the message, an edit is refused and stays a file."""
    stage.say(name, "one")
    move = ("-X", "MOVE", "-H", f"Destination: {curl.root}/sessions/{name}")
    assert curl.status(f"/sessions/{name}.new", "-T", "-", text=f"{ONE}two\n") == 201
    assert curl.status(f"/sessions/{name}.new", *move) == 204
    assert stage.asked(name) == ["one", "two"]
    assert curl.status(f"/sessions/{name}.new", "-T", "-", text=ONE.replace("User: one", "User: six")) == 201
    assert curl.status(f"/sessions/{name}.new", *move) == 409
    assert stage.asked(name) == ["one", "two"]
    assert f"{name}.new" not in stage.sessions()
    assert "User: six" in curl(f"/sessions/{name}.new")
    assert curl.status(f"/sessions/{name}.new", "-X", "DELETE") == 204
    assert curl.status(f"/sessions/{name}.other", "-T", "-", text="hi") == 201
    assert curl(f"/sessions/{name}.other") == "User: hi\nAssistant: hi\n"
    assert curl.status(f"/sessions/{name}.other", *move) == 403, "it was read: a conversation replaces nothing"
