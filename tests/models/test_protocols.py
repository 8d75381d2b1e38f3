"""The `model` of a request chooses the model, in each protocol by its official client; an unknown one is a 404."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from anthropic import Anthropic

from cfs.api import count_tokens
from cfs.completions import TokensRequest
from cfs.errors import ModelNotFound
from cfs.transports.http import Client
from tests.models.support import KEY_VARIABLE, Models, models_file, models_server, table
from tests.server.openai_client import blocking
from tests.server.support import run_cfs, serving
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import KEY, WINDOW, served_aside

HELLO: Any = [{"role": "user", "content": "hello there"}]
PLACES = ("/v1/models", "/v1/models/away", "/v1/whoami", "/api/tags", "/api/ps", "/readyz", "/metrics")
GONE = "model 'gpt-x' not found; there are 'one', 'two'"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """Two upstreams; the first is the default."""
    with models_server(tmp_path_factory.mktemp("models")) as server:
        yield server


def test_openais_chat_and_text_completions_choose_a_model(models: Models) -> None:
    before = models.asked()
    with blocking(models.url) as client:
        chat = client.chat.completions.create(model="two", messages=HELLO)
        text = client.completions.create(model="two", prompt="hello there")
        default = client.chat.completions.create(model="", messages=HELLO)
        stream = list(client.chat.completions.create(model="two", messages=HELLO, stream=True))
        for create in (client.chat.completions, client.completions):
            content: Any = {"messages": HELLO} if create is client.chat.completions else {"prompt": "hello"}
            with pytest.raises(openai.NotFoundError) as caught:
                create.create(model="gpt-x", **content)
            assert (caught.value.code, caught.value.type) == ("model_not_found", "invalid_request_error")
            assert GONE in str(caught.value)
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-x")
        listed = client.models.list().data
    assert (chat.model, text.model, default.model, stream[0].model) == ("two", "two", "one", "two")
    assert chat.choices[0].message.content == text.choices[0].text == "hello there"
    assert models.asked() == {"one": before["one"] + 1, "two": before["two"] + 3}
    assert [(card.id, card.to_dict()["max_model_len"]) for card in listed] == [("one", WINDOW), ("two", WINDOW)]


def test_openais_responses_choose_a_model(models: Models) -> None:
    """A stored one still knows it when it is read again."""
    before = models.asked()
    with blocking(models.url) as client:
        stored = client.responses.create(model="two", input="hello there")
        passing = client.responses.create(model="two", input="hello there", store=False)
        default = client.responses.create(input="hello there")
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.create(model="gpt-x", input="hello")
        assert (caught.value.code, GONE in str(caught.value)) == ("model_not_found", True)
    assert (stored.model, passing.model, default.model) == ("two", "two", "one")
    assert stored.output_text == "hello there"
    assert models.asked() == {"one": before["one"] + 1, "two": before["two"] + 2}


def test_anthropics_messages_choose_a_model(models: Models) -> None:
    before = models.asked()
    http = anthropic.DefaultHttpxClient(trust_env=False, verify=False)
    with Anthropic(base_url=models.url, api_key="any", http_client=http, max_retries=0) as client:
        found = client.messages.create(model="two", max_tokens=20, messages=HELLO)
        counted = client.messages.count_tokens(model="two", messages=HELLO)
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.messages.create(model="gpt-x", max_tokens=20, messages=HELLO)
        with pytest.raises(anthropic.NotFoundError):
            client.messages.count_tokens(model="gpt-x", messages=HELLO)
        listed = [model.id for model in client.models.list().data]
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"], body["error"]["message"]) == ("error", "not_found_error", GONE)
    assert (found.model, counted.input_tokens > 0, listed) == ("two", True, ["one", "two"])
    assert models.asked() == {"one": before["one"], "two": before["two"] + 1}


def test_ollamas_chats_and_generations_choose_a_model(models: Models) -> None:
    """The tag `latest` may be named or not."""
    before = models.asked()
    with ollama.Client(host=models.url, trust_env=False) as client:
        chat = client.chat(model="two:latest", messages=HELLO)
        generated = client.generate(model="two", prompt="hello there")
        calls: tuple[Callable[[], Any], ...] = (
            lambda: client.chat(model="gpt-x", messages=HELLO),
            lambda: client.chat(model="gpt-x"),
            lambda: client.show("gpt-x"),
        )
        for call in calls:
            with pytest.raises(ollama.ResponseError, match="model 'gpt-x' not found") as caught:
                call()
            assert caught.value.status_code == 404
        assert (chat.model, generated.model, chat.message.content) == ("two", "two", "hello there")
        assert [model.model for model in client.list().models] == ["one", "two"]
        assert [model.model for model in client.ps().models] == ["one", "two"]
        assert client.show("two").modelinfo == {"general.architecture": "unknown", "unknown.context_length": WINDOW}
        assert models.asked() == {"one": before["one"], "two": before["two"] + 2}


def test_a_recorded_completion_is_answered_by_the_named_model_or_that_of_the_session(models: Models) -> None:
    models.client.post("/v1/sessions", json={"id": "recorded", "settings": {"model": "two"}})
    headers = {"X-CFS-Session": "recorded"}
    before = models.asked()
    first = models.client.post("/v1/chat/completions", json={"messages": HELLO}, headers=headers).json()
    told = [*HELLO, first["choices"][0]["message"], *HELLO]
    second = models.client.post("/v1/chat/completions", json={"messages": told, "model": "one"}, headers=headers).json()
    assert (first["model"], second["model"]) == ("two", "one")
    assert models.asked() == {"one": before["one"] + 1, "two": before["two"] + 1}
    assert models.client.get("/v1/sessions/recorded/settings").json()["model"] == "two"


def test_a_server_with_one_model_takes_any_name() -> None:
    with serving("--engine", "scripted") as process, blocking(process.url) as client:
        assert client.chat.completions.create(model="gpt-x", messages=HELLO).model == "scripted"


def test_tokens_are_counted_for_the_model_that_is_named(tmp_path: Path) -> None:
    """Exactly by its tokenizer, if it has one here."""
    tables = (table("small", model="embedded"),)
    with models_server(tmp_path, tables=tables, names=("one",)) as models, Client(models.url) as client:
        exact = client.call(count_tokens(TokensRequest(texts=("Hello",), model="small")))
        guessed = client.call(count_tokens(TokensRequest(texts=("Hello",), model="one")))
        with pytest.raises(ModelNotFound):
            client.call(count_tokens(TokensRequest(texts=("Hello",), model="gpt-x")))
    assert (exact.exact, guessed.exact) == (True, False)


def test_a_token_learns_the_names_and_not_where_the_models_are(tmp_path: Path) -> None:
    """Neither in lists nor in errors: no address, key, file or variable."""
    stub = OpenAIStub()
    with served_aside(stub) as url:
        port = url.split(":")[2].split("/")[0]
        away = table("away", upstream="http://127.0.0.1:9", upstream_model="m", check=False, retries=0)
        there = table("there", upstream=url, key_variable=KEY_VARIABLE)
        file = models_file(tmp_path, there, away)
        tokens = tmp_path / "tokens.toml"
        made = run_cfs("token", "create", "guest", "--grant", "/sessions/mine:read,write", "--tokens", str(tokens))
        headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
        flags = ("--models", str(file), "--tokens", str(tokens))
        with (
            serving(*flags, **{KEY_VARIABLE: KEY}) as process,
            httpx.Client(base_url=process.url, headers=headers, trust_env=False) as client,
        ):
            seen = [client.get(path).text for path in PLACES]
            seen.append(client.post("/api/show", json={"model": "away"}).text)
            for name in ("away", "gone"):
                asked = {"content": "hi", "settings": {"model": name}}
                seen.append(client.post("/v1/sessions/mine/messages", json=asked, params={"wait": "true"}).text)
                seen.append(client.post("/v1/chat/completions", json={"messages": HELLO, "model": name}).text)
    assert all(name in seen[0] for name in ("there", "away"))
    secrets = (KEY, KEY_VARIABLE, f":{port}", ":9/", url, str(tmp_path), "127.0.0.1")
    assert [(secret, text) for secret in secrets for text in seen if secret in text] == []


def test_the_command_lists_all_models_with_what_is_known(tmp_path: Path) -> None:
    tables = (table("small", model="embedded", price="0, 0.5 EUR"),)
    with models_server(tmp_path, tables=tables, names=("one",)) as models:
        shown = run_cfs("model", "ps", "--url", models.url).stdout.splitlines()
        cards = json.loads(run_cfs("model", "ps", "--json", "--url", models.url).stdout)
        me = models.client.get("/v1/whoami").json()
        env = {"CFS_MODELS": str(tmp_path / "models.toml"), "CFS_PORT": "0", KEY_VARIABLE: KEY}
        doctor = run_cfs("doctor", "--json", **env)
    assert shown[0].split() == ["NAME", "PARAMETERS", "CONTEXT", "LOADED", "SINCE", "PRICE"]
    assert [line.split()[0] for line in shown[1:]] == ["small", "one"]
    assert shown[1].endswith("0, 0.5 EUR")
    assert cards[0]["price"] == {"prompt": 0.0, "completion": 0.5, "currency": "EUR"}
    assert [model["name"] for model in me["models"]] == ["small", "one"]
    assert (me["model"]["name"], me["model"]["price"]["currency"]) == ("small", "EUR")
    found = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    assert found["model one"]["status"] == "ok"
    assert found["model one"]["found"].endswith(f"has small-1, context of {WINDOW} tokens")
