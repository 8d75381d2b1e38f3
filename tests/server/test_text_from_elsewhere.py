"""A transcript that another program has saved is the same transcript, on every interface (S14)."""

import codecs
from pathlib import Path

import httpx
import pytest

from tests.fuse.support import mounting, reason_to_skip
from tests.server.support import TEXT, serving

TRANSCRIPT = "System: Be kind.\nUser: Zoë\n\\Assistant: quoted\nAssistant: hello\nthere\n"
PLAIN = {"Content-Type": "text/plain"}
SAVED = {
    "byte order mark": codecs.BOM_UTF8 + TRANSCRIPT.encode(),
    "CRLF": TRANSCRIPT.replace("\n", "\r\n").encode(),
    "CRLF and byte order mark": codecs.BOM_UTF8 + TRANSCRIPT.replace("\n", "\r\n").encode(),
    "CR": TRANSCRIPT.replace("\n", "\r").encode(),
}


def test_a_saved_transcript_is_the_same_transcript(tmp_path: Path) -> None:
    """New by REST, WebDAV and the mount; put back by REST and WebDAV. A mark before a message is no part of it."""
    with serving("--engine", "scripted", "--data-dir", str(tmp_path)) as server, httpx.Client() as client:

        def text(session: str) -> str:
            answer = client.get(f"{server.url}/v1/sessions/{session}", headers=TEXT)
            assert answer.status_code == 200, answer.text
            return answer.text

        for number, saved in enumerate(SAVED.values()):
            new = {"id": f"rest{number}", "transcript": saved.decode()}
            assert client.post(f"{server.url}/v1/sessions", json=new).status_code == 201
            assert client.put(f"{server.url}/dav/sessions/dav{number}", content=saved).status_code == 201
            for session in (f"rest{number}", f"dav{number}"):
                assert text(session) == TRANSCRIPT
            for url in (f"/v1/sessions/rest{number}/transcript", f"/dav/sessions/dav{number}"):
                etag = client.get(f"{server.url}{url.removesuffix('/transcript')}").headers["ETag"]
                again = client.put(f"{server.url}{url}", content=saved, headers={"If-Match": etag} | PLAIN)
                assert again.is_success, again.text
            assert text(f"rest{number}") == text(f"dav{number}") == TRANSCRIPT
        said = codecs.BOM_UTF8 + b"User: hi\n"
        sent = client.post(f"{server.url}/v1/sessions/said/messages?wait=true", content=said, headers=PLAIN)
        assert sent.json()["reply"] == "hi"
        assert text("said").startswith("User: hi\n")


@pytest.mark.skipif(reason_to_skip() is not None, reason=f"{reason_to_skip()}")
def test_a_saved_transcript_is_the_same_in_the_mount(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with serving("--engine", "scripted", "--data-dir", data) as server, mounting(server.url, tmp_path / "mnt"):
        for number, saved in enumerate(SAVED.values()):
            path = tmp_path / "mnt" / f"copy{number}"
            for _ in range(2):  # the same again adds nothing
                path.write_bytes(saved)
                assert path.read_text() == TRANSCRIPT
