"""`/v1/connections`: administrators list, find and connect models; nobody gets a key."""

from pathlib import Path

from cfs_server.engine.host.models import EMBEDDED
from tests.connect.support import Machine, OllamaStub, copy_to, ollama, service
from tests.server.support import run_cfs
from tests.upstream.stub import KEY, MODEL

ROUTES = (
    ("GET", "/v1/connections"),
    ("POST", "/v1/connection-search"),
    ("POST", "/v1/connections"),
    ("DELETE", "/v1/connections/small"),
)


def test_a_server_finds_and_connects_what_works(machine: Machine, tiny: Path) -> None:
    copy_to(tiny, machine.home / ".lmstudio/models/owner/repo/tiny.gguf")
    with service(machine), ollama(machine, OllamaStub("one")), machine.serving() as server:
        found = server.client.post("/v1/connection-search").raise_for_status()
        candidates = {candidate["name"]: candidate for candidate in found.json()["candidates"]}
        assert {name: candidate["works"] for name, candidate in candidates.items()} == {
            "one": True,
            MODEL: True,
            "tiny": True,
        }
        assert candidates[MODEL]["key_variable"] == "OPENAI_API_KEY"
        answer = server.client.post("/v1/connections", json={"names": ["one", MODEL], "default": MODEL})
        assert answer.raise_for_status().json()["default"] == MODEL
        assert server.names() == [MODEL, "one", EMBEDDED]
        assert server.reply("chat", "it works") == "it works"
        again = server.client.post("/v1/connection-search").json()["candidates"]
        assert {candidate["name"]: candidate["connected"] for candidate in again} == {
            "one": True,
            MODEL: True,
            "tiny": False,
        }
        texts = found.text + answer.text + server.client.get("/v1/connections").text
        assert KEY not in texts
        assert server.client.delete(f"/v1/connections/{MODEL}").status_code == 204
        assert server.names() == ["one", EMBEDDED]


def test_only_what_the_search_has_found_can_be_connected(machine: Machine) -> None:
    with machine.serving() as server:
        for body, status in (
            ({"names": ["unknown"]}, 422),
            ({"names": []}, 422),
            ({"names": ["x"], "url": "http://llm.example"}, 422),
        ):
            answer = server.client.post("/v1/connections", json=body)
            assert (answer.status_code, machine.file.exists()) == (status, False), answer.text
        assert server.client.delete("/v1/connections/unknown").status_code == 404


def test_only_administrators_may(machine: Machine, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    secrets = {
        name: run_cfs("token", "create", name, "--tokens", str(tokens), "--grant", grant).stdout.strip()
        for name, grant in (("user", "/sessions/user"), ("reader", "/=ro"), ("admin", "/"))
    }
    with machine.serving("--tokens", str(tokens)) as server:
        for name in ("user", "reader"):
            for method, path in ROUTES:
                headers = {"Authorization": f"Bearer {secrets[name]}"}
                body = {"names": ["small"]} if path == "/v1/connections" and method == "POST" else None
                assert server.client.request(method, path, json=body, headers=headers).status_code == 403
        headers = {"Authorization": f"Bearer {secrets['admin']}"}
        assert server.client.get("/v1/connections", headers=headers).status_code == 200
