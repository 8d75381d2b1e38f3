"""A secret is shown once, to the one who makes it, and never again: not in a log, an error or an answer (G9)."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from cfs_server.access.tokens import digest, load
from tests.access.support import basic, bearer, gated, make
from tests.server.support import Process, serving
from tests.server.test_start import SCRIPTED

WRONG = "cfs_" + "Wr0ng-" * 7 + "_"
"""Looks as a token of ours does, and is none: somebody else's, or one that was revoked."""


def used_wrongly(secret: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Requests that carry a secret where none belongs, or in a way that is not understood."""
    everywhere = "".join(f"%{byte:02X}" for byte in secret.encode())
    for path in (secret, quote(secret).replace("_", "%5F").replace("-", "%2d"), everywhere):
        yield "GET", f"/v1/sessions/{path}", {}
        yield "GET", f"/{path}", {}
        yield "POST", f"/v1/sessions/a/{path}/messages", {}
        yield "GET", f"/v1/sessions/%FF{path}", {}
        yield "PUT", f"/v1/files/workspaces/a/{path}", {}
        yield "GET", f"/v1/sessions?token={path}", {}
        yield "GET", f"/v1/events?after={path}&access_token={path}", {}
    yield "GET", "/v1/whoami", {"X-Request-ID": secret}
    yield "GET", "/v1/whoami", {"X-Token": secret, "Cookie": f"token={secret}", "User-Agent": secret}
    yield "GET", "/v1/whoami", {"Authorization": secret}
    yield "GET", "/v1/whoami", {"Authorization": f"Digest {secret}"}
    yield "GET", "/v1/whoami", {"Authorization": f"Basic {secret}"}
    yield "GET", "/v1/whoami", {"Authorization": f"Bearer  {secret} {secret}"}
    yield "GET", "/v1/whoami", {"Origin": f"http://{secret}"}


def use(process: Process, secret: str) -> list[httpx.Response]:
    """Use a secret rightly and wrongly; the answers to what carried it in a header."""
    answers = []
    with httpx.Client(base_url=process.url, trust_env=False, timeout=60) as client:
        for head in (bearer(secret), basic("x", secret)):
            for method, path, wrong in used_wrongly(secret):
                client.request(method, path, headers=wrong)
                client.request(method, path, headers=head | wrong)
            answers += [client.get("/v1/whoami", headers=head), client.get("/metrics", headers=head)]
            answers += [client.get("/v1/sessions/none", headers=head), client.get("/v1/sessions?limit=0", headers=head)]
            answers += [client.post("/v1/sessions", headers=head, content=b"{"), client.get("/openapi.json")]
            answers += [client.get("/v1/events?after=x", headers=head), client.delete("/nothing", headers=head)]
    return answers


def shapes(secret: str) -> list[str]:
    """What of a secret would give it away; half of one is too much already."""
    body = secret.removeprefix("cfs_")
    encoded = base64.b64encode(f"x:{secret}".encode()).decode()
    return [body[:22], body[22:], quote(body).replace("_", "%5F").replace("-", "%2d")[:22], encoded[8:40]]


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_gets_into_the_log_wherever_it_was_written(file: Path, form: str) -> None:
    right = make(file, "alice", "/")
    with serving(*SCRIPTED, "--tokens", str(file), "--log-format", form, "--log-level", "debug") as process:
        answers = use(process, right) + use(process, WRONG)
        process.signal()
        code, log = process.ended()
    assert code == 0
    assert log.count("/v1/sessions/cfs_***") >= 4, "what was asked for is told, but for the secret in it"
    assert "%66" not in log.lower(), "a path that holds a secret is not shown with its escapes"
    if form == "json":
        lines = [json.loads(line) for line in log.splitlines()]
        assert sum(line["event"] == "request" and line["status"] == 401 for line in lines) > 20
        assert {line["principal"] for line in lines if line["event"] == "request"} == {"alice", None}
    for secret in (right, WRONG):
        for shape in (*shapes(secret), digest(secret).removeprefix("sha256:")[:16]):
            assert shape not in log
            assert [answer.text for answer in answers if shape in answer.text + str(answer.headers)] == []


async def test_nobody_is_told_a_secret_a_hash_or_who_else_there_is(file: Path) -> None:
    secrets = {"alice": make(file, "alice", "/"), "bobby": make(file, "bobby", "/sessions/bobby")}
    hashes = [token.hash.removeprefix("sha256:") for token in load(file).values()]
    async with gated(file, secrets) as gate:
        await gate["alice"].post("/v1/sessions/a/messages?wait=true", content=b"x")
        for place in ("/v1/whoami", "/metrics", "/", "/readyz", "/openapi.json", "/v1/sessions/a", "/v1/files"):
            text = (await gate["alice"].get(place)).text
            for hidden in (*secrets.values(), *hashes, "bobby"):
                assert hidden not in text, place
