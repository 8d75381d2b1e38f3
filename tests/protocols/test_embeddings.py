"""Embeddings by the official clients of OpenAI and Ollama: of real models in a worker, and of an upstream (H4, H8)."""

import asyncio
import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest
from llama_cpp import Llama
from openai import OpenAI

import make_random_gguf
from tests.documentation import block
from tests.models.support import Models, models_server, table
from tests.server.openai_client import blocking
from tests.upstream.stub import MODEL, Refusal

PAGE = "docs/how-to/embeddings.md"
TEXTS = ["hello world", "hello there, how are you?"]
PRICE = "10000, 1000, 50000 USD"
"""A token of a prompt costs a cent."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for embeddings alone."""
    return make_random_gguf.make(tmp_path_factory.mktemp("encoder") / "encoder.gguf", "encoder", pooling="mean")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Iterator[Models]:
    """A server with a model of each kind: for embeddings alone, for both, for texts alone, and one of an upstream."""
    folder = tmp_path_factory.mktemp("models")
    both = make_random_gguf.make(folder / "both.gguf", pooling="last")
    texts = make_random_gguf.make(folder / "texts.gguf")
    tables = (
        table("encoder", model=str(encoder), price=PRICE),
        table("both", model=str(both)),
        table("texts", model=str(texts)),
    )
    with models_server(folder, tables=tables, names=("upstream",)) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Models) -> Iterator[OpenAI]:
    with blocking(server.url) as found:
        yield found


@pytest.fixture(scope="module")
def ollama_client(server: Models) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url, trust_env=False) as found:
        yield found


@pytest.fixture(scope="module")
def expected(encoder: Path) -> list[list[float]]:
    """The vectors of the library's own interface."""
    model = Llama(str(encoder), embedding=True, n_ctx=512, n_ubatch=512, n_threads=1, verbose=False)
    try:
        return [list(vector) for vector in model.embed(TEXTS, normalize=True)]
    finally:
        model.close()


def same(vectors: Any, others: Any) -> bool:
    """Whether vectors of length 1 have the same direction."""
    return bool((np.sum(np.array(vectors) * np.array(others), axis=-1) > 0.9995).all())


@pytest.mark.feature("openai", "embeddings", "usage")
def test_the_client_of_openai_gets_the_vectors_of_the_model(client: OpenAI, expected: list[list[float]]) -> None:
    """It asks for Base64 by itself, and for numbers when it is told to."""
    found = client.embeddings.create(model="encoder", input=TEXTS)
    assert (found.object, found.model) == ("list", "encoder")
    assert [item.index for item in found.data] == [0, 1]
    assert same([item.embedding for item in found.data], expected)
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (35, 35)
    numbers = client.embeddings.create(model="encoder", input=TEXTS, encoding_format="float")
    assert [item.embedding for item in numbers.data] == [item.embedding for item in found.data]
    one = client.embeddings.create(model="encoder", input=TEXTS[0], dimensions=64, user="somebody")
    assert same(one.data[0].embedding, expected[0])


def test_tokens_are_taken_in_both_forms(client: OpenAI) -> None:
    text, tokens = "hello", list(b"hello")
    expected = client.embeddings.create(model="both", input=text).data[0].embedding
    one = client.embeddings.create(model="both", input=tokens)
    several = client.embeddings.create(model="both", input=[tokens, tokens[:2]])
    assert same(one.data[0].embedding, expected)
    assert same(several.data[0].embedding, expected)
    assert (len(one.data), len(several.data), several.usage.prompt_tokens) == (1, 2, 7)


def test_base64_is_in_single_precision_and_little_endian(server: Models) -> None:
    body = {"model": "encoder", "input": "hello"}
    numbers = server.client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    text = server.client.post("/v1/embeddings", json=body | {"encoding_format": "base64"}).json()["data"][0]
    assert list(struct.unpack("<64f", base64.b64decode(text["embedding"]))) == numbers


@pytest.mark.feature("ollama", "/api/embed", "usage")
def test_the_client_of_ollama_gets_the_vectors_of_the_model(
    ollama_client: ollama.Client, expected: list[list[float]]
) -> None:
    found = ollama_client.embed("encoder:latest", TEXTS)
    assert same(found.embeddings, expected)
    assert (found.model, found.prompt_eval_count) == ("encoder", 35)
    assert (found.total_duration or 0) > 0
    assert same(ollama_client.embed("encoder", TEXTS[0]).embeddings, expected[:1])
    older = ollama_client.embeddings("encoder", TEXTS[0])
    assert same(older.embedding, expected[0])
    assert list(ollama_client.embed("encoder", "").embeddings) == []
    assert list(ollama_client.embeddings("encoder", "").embedding) == []
    assert ollama_client.show("encoder").capabilities == ["embedding"]
    assert "embedding" in (ollama_client.show("both").capabilities or [])
    assert "embedding" not in (ollama_client.show("texts").capabilities or [])


def test_ollama_cuts_a_text_that_is_too_long_and_openai_does_not(client: OpenAI, ollama_client: ollama.Client) -> None:
    text = "x" * 600
    assert ollama_client.embed("encoder", text).prompt_eval_count == 512
    with pytest.raises(ollama.ResponseError, match="the model's context holds 512") as refused:
        ollama_client.embed("encoder", text, truncate=False)
    assert refused.value.status_code == 400
    with pytest.raises(openai.BadRequestError, match="the model's context holds 512") as caught:
        client.embeddings.create(model="encoder", input=["short", text])
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.feature("openai", "embeddings", "error")
@pytest.mark.feature("ollama", "/api/embed", "error")
def test_a_model_for_texts_is_refused_in_the_form_of_each_protocol(
    client: OpenAI, ollama_client: ollama.Client, server: Models
) -> None:
    with pytest.raises(openai.InternalServerError, match="makes texts, no embeddings") as caught:
        client.embeddings.create(model="texts", input="hello")
    assert (caught.value.status_code, caught.value.type, caught.value.code) == (501, "server_error", "unsupported")
    for call in (ollama_client.embed, ollama_client.embeddings):
        with pytest.raises(ollama.ResponseError, match="makes texts, no embeddings") as refused:
            call("texts", "hello")
        assert refused.value.status_code == 501
    with pytest.raises(openai.NotFoundError, match="model 'nobody' not found"):
        client.embeddings.create(model="nobody", input="hello")
    assert "makes embeddings, no texts" in server.say("wrong", "hello", model="encoder")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 32}, "have 64 numbers"),
        ({"input": "a", "encoding_format": "binary"}, "encoding_format"),
        ({"input": [600]}, "no token 600"),
    ],
)
def test_what_is_wrong_is_said(server: Models, change: dict[str, Any], reason: str) -> None:
    answer = server.client.post("/v1/embeddings", json={"model": "encoder"} | change)
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["error"]["message"]


def test_a_model_that_makes_both_answers_in_sessions_too(server: Models, client: OpenAI) -> None:
    assert len(client.embeddings.create(model="both", input="hello").data[0].embedding) == 64
    assert server.say("both", "hello", model="both", max_tokens=4).startswith("User: hello\nAssistant: ")
    kinds = {card["id"]: card["capabilities"] for card in server.client.get("/v1/models").json()["data"]}
    assert kinds == {
        "encoder": ["embedding"],
        "both": ["completion", "embedding"],
        "texts": ["completion"],
        "upstream": ["completion"],
    }


def test_an_upstream_answers_for_its_model(server: Models, client: OpenAI, ollama_client: ollama.Client) -> None:
    """It gets its own name of the model. Its vectors are passed on as they are."""
    stub = server.stubs["upstream"]
    found = client.embeddings.create(model="upstream", input=["a", "bcd"], encoding_format="float", dimensions=2)
    assert [item.embedding for item in found.data] == [[1.0, 0.1], [3.0, 0.1]]
    assert found.usage.prompt_tokens == 14
    assert stub.bodies[-1] == {"model": MODEL, "input": ["a", "bcd"], "dimensions": 2}
    assert [list(vector) for vector in ollama_client.embed("upstream", "four").embeddings] == [[4.0, 0.1, 0.001]]
    client.embeddings.create(model="upstream", input=[[1, 2], [3]])
    assert stub.bodies[-1]["input"] == [[1, 2], [3]]


def test_many_texts_are_several_requests_to_an_upstream(server: Models, client: OpenAI) -> None:
    asked = len(server.stubs["upstream"].bodies)
    texts = ["x" * (1 + number % 9) for number in range(600)]
    found = client.embeddings.create(model="upstream", input=texts, encoding_format="float")
    assert [item.embedding[0] for item in found.data] == [float(len(text)) for text in texts]
    assert found.usage.prompt_tokens == 600 * 7
    assert [len(body["input"]) for body in server.stubs["upstream"].bodies[asked:]] == [256, 256, 88]


def test_the_refusal_of_an_upstream_is_passed_on(server: Models, client: OpenAI) -> None:
    stub = server.stubs["upstream"]
    stub.acts.append(Refusal(400, "invalid_request_error", "this model has no embeddings"))
    with pytest.raises(openai.BadRequestError, match="this model has no embeddings"):
        client.embeddings.create(model="upstream", input="a")
    asked = len(stub.bodies)
    stub.acts.append(Refusal(503, "overloaded", "later"))
    assert client.embeddings.create(model="upstream", input="a").usage.prompt_tokens == 7
    assert len(stub.bodies) == asked + 2


def test_what_is_spent_counts(server: Models, client: OpenAI) -> None:
    """Costs and metrics have the tokens, and the answer the price."""
    before = sum(
        row["prompt_tokens"] for row in server.client.get("/v1/costs").json()["costs"] if row["model"] == "encoder"
    )
    usage = client.embeddings.create(model="encoder", input=TEXTS).usage.to_dict()
    assert usage == {"prompt_tokens": 35, "total_tokens": 35, "cost": 0.35}
    rows = [row for row in server.client.get("/v1/costs").json()["costs"] if row["model"] == "encoder"]
    assert sum(row["prompt_tokens"] for row in rows) == before + 35
    spent = [
        line for line in server.client.get("/metrics").text.splitlines() if line.startswith("cfs_spent_tokens_total")
    ]
    assert any('model="encoder"' in line and float(line.split()[-1]) == before + 35 for line in spent)


async def test_many_requests_at_the_same_time_are_all_answered(server: Models) -> None:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
        bodies = [{"model": "encoder", "input": [f"text {number}", "the same"]} for number in range(24)]
        answers = await asyncio.gather(*(client.post("/v1/embeddings", json=body) for body in bodies))
    assert [answer.status_code for answer in answers] == [200] * 24
    vectors = [answer.json()["data"][1]["embedding"] for answer in answers]
    assert same(vectors, [vectors[0]] * 24)
    assert not same(answers[0].json()["data"][0]["embedding"], vectors[0])


@pytest.mark.parametrize("name", ["openai", "ollama"])
def test_the_snippets_of_the_guide_run(
    name: str, server: Models, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CFS_URL", server.url)
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(block(PAGE, name), PAGE, "exec"), namespace)  # noqa: S102 - it is our own page
    namespace["client"].close()
    assert capsys.readouterr().out.strip()
