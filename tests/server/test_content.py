"""What a request says of its body is checked by all interfaces alike, and HTTP's harmless parts by none (H5, H7)."""

import base64
import hashlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server.support import MODEL, ServerHarness, running_server, serving

TEXT = b"the whole text"
CHAT = b'{"model": "", "messages": [{"role": "user", "content": "hi"}]}'
INTERFACES: dict[str, tuple[str, str, bytes, str]] = {
    "a file": ("PUT", "/v1/files/workspaces/main/note", TEXT, "application/octet-stream"),
    "a session's file": ("PUT", "/v1/files/sessions/main", TEXT, "text/plain"),
    "a file by WebDAV": ("PUT", "/dav/workspaces/main/note", TEXT, "application/octet-stream"),
    "a session by WebDAV": ("PUT", "/dav/sessions/main", TEXT, "text/plain"),
    "a temporary file": ("PUT", "/dav/sessions/note~", TEXT, "text/plain"),
    "a message": ("POST", "/v1/sessions/main/messages", TEXT, "text/plain"),
    "a session": ("POST", "/v1/sessions", b'{"id": "made"}', "application/json"),
    "settings": ("PATCH", "/v1/sessions/main/settings", b'{"temperature": 0.5}', "application/json"),
    "a completion": ("POST", "/v1/chat/completions", CHAT, "application/json"),
    "a response": ("POST", "/v1/responses", b'{"model": "", "input": "hi"}', "application/json"),
    "Ollama": ("POST", "/api/chat", CHAT.replace(b"{", b'{"stream": false, ', 1), "application/json"),
}


def sha(body: bytes) -> str:
    return base64.b64encode(hashlib.sha256(body).digest()).decode()


def md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


async def state(server: ServerHarness) -> list[object]:
    """All that the interfaces of this file can change."""
    paths = ("/v1/files/workspaces/main/note", "/dav/sessions/note~", "/v1/files/sessions/main")
    texts = [(await server.client.get(path)).content for path in paths]
    return [*texts, *((each.id, each.settings) for each in server.store)]


@pytest.mark.parametrize("interface", INTERFACES)
async def test_half_a_body_is_refused_and_changes_nothing(interface: str) -> None:
    """A part, something that would have to be decoded, or not what its digest says; the whole of it is accepted."""
    method, path, body, media = INTERFACES[interface]
    other = b"another text"
    refused: list[tuple[int, dict[str, str]]] = [
        (400, {"Content-Range": "bytes 4-17/18"}),
        (400, {"Content-Range": "bytes */18"}),
        (415, {"Content-Encoding": "gzip"}),
        (415, {"Content-Encoding": "identity, br"}),
        (400, {"Content-MD5": md5(other)}),
        (400, {"Digest": f"SHA-256={sha(other)}"}),
        (400, {"Content-Digest": f"sha-256=:{sha(other)}:"}),
        (400, {"Repr-Digest": f"unknown=:eA==:, sha-256=:{sha(other)}:"}),
        (400, {"Content-Digest": "sha-256=:no base64!:"}),
    ]
    accepted = {
        "Content-Encoding": "identity",
        "Content-MD5": md5(body),
        "Digest": f"sha-256={sha(body)},md5={md5(body)}",
        "Content-Digest": f"sha-256=:{sha(body)}:",
        "Repr-Digest": "unknown=:eA==:",
        "Want-Digest": "sha-256",
    }
    async with running_server() as server:
        await server.client.request("MKCOL", "/dav/workspaces/main")
        for before in ("/v1/files/workspaces/main/note", "/dav/sessions/note~"):
            assert (await server.client.put(before, content=b"before")).status_code == 201
        await server.create("main")
        before_all = await state(server)
        for status, headers in refused:
            answer = await server.client.request(method, path, content=body, headers={"Content-Type": media, **headers})
            assert answer.status_code == status, (headers, answer.text)
            assert answer.json(), headers
            assert await state(server) == before_all, headers
        answer = await server.client.request(method, path, content=body, headers={"Content-Type": media, **accepted})
        assert answer.status_code < 300, answer.text


@pytest.mark.parametrize("path", ["/v1/files/workspaces/main/note", "/dav/workspaces/main/note"])
async def test_a_condition_on_the_date_holds_on_both_interfaces_of_files(path: str) -> None:
    """An invalid date is ignored, and so is any date beside a version (RFC 9110, 13.1.4)."""
    early, late = "Sat, 01 Jan 2000 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"
    async with running_server() as server:
        await server.client.request("MKCOL", "/dav/workspaces/main")
        etag = (await server.client.put(path, content=b"before")).headers["etag"]
        for method in ("PUT", "DELETE"):
            answer = await server.client.request(method, path, headers={"If-Unmodified-Since": early})
            assert (answer.status_code, (await server.client.get(path)).content) == (412, b"before")
        for headers in ({}, {"If-Unmodified-Since": late}, {"If-Unmodified-Since": "soon"}):
            etag = (await server.client.put(path, content=b"after", headers=headers)).raise_for_status().headers["etag"]
        if path.startswith("/v1"):
            both = {"If-Unmodified-Since": early, "If-Match": etag}
            assert (await server.client.put(path, content=b"last", headers=both)).status_code == 200


@pytest.mark.parametrize("form", ["Qwen%2FQwen3-32B", "Qwen%2fQwen3-32B", "Qwen/Qwen3-32B"])
async def test_the_name_of_a_model_may_have_a_slash_in_either_form(form: str) -> None:
    """As the official clients encode it, and as people write it. Elsewhere an encoded slash is refused."""
    async with running_server(model=replace(MODEL, name="Qwen/Qwen3-32B")) as server:
        answer = await server.client.get(f"/v1/models/{form}")
        assert (answer.status_code, answer.json().get("id")) == (200, "Qwen/Qwen3-32B"), answer.text
        assert (await server.client.get("/v1/sessions/a%2Fb")).status_code == 400


PROGRAM = """
import java.net.URI;
import java.net.http.*;

public class Client {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        URI file = URI.create(arguments[0] + "/v1/files/workspaces/main/note");
        for (boolean waits : new boolean[] {false, true}) {
            for (int size : new int[] {0, 10, 300_000}) {
                var body = HttpRequest.BodyPublishers.ofByteArray(new byte[size]);
                var request = HttpRequest.newBuilder(file).expectContinue(waits).PUT(body).build();
                System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
                var read = client.send(HttpRequest.newBuilder(file).build(), HttpResponse.BodyHandlers.ofByteArray());
                System.out.println(read.body().length);
            }
        }
    }
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="java is not installed")
def test_the_client_of_the_jdk(tmp_path: Path) -> None:
    """It offers HTTP/2 on each new connection, as LangChain4j and Spring AI do through it."""
    (tmp_path / "Client.java").write_text(PROGRAM)
    with serving("--engine", "scripted") as server:
        done = subprocess.run(
            ["java", tmp_path / "Client.java", server.url], capture_output=True, text=True, check=False
        )
    again = ["200", "0", "200", "10", "200", "300000"]
    assert done.stdout.split() == ["201", *again[1:], *again], done.stderr
