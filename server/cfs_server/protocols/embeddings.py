"""Embeddings in the protocols of OpenAI and Ollama: texts in, vectors out. Pure: no I/O (H4)."""

import base64
import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, StringConstraints, WithJsonSchema

from cfs.completions.messages import Open
from cfs.wire import Usage
from cfs_server.completions.requests import refusal
from cfs_server.engine.contract.interface import Input

MOST_INPUTS = 2048
"""Texts of one request."""
_MOST_DIMENSIONS = 65_536

_Name = Annotated[str, StringConstraints(max_length=256)]
_Dimensions = Annotated[int, Field(ge=1, le=_MOST_DIMENSIONS)]
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_TOKENS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "minItems": 1,
}


def _inputs(value: Any) -> tuple[Input, ...]:
    """Return the texts, or the tokens of each."""
    match value:
        case str() if value:
            return (value,)
        case [*items] if _are_tokens(items):
            return (tuple(items),)
        case [*items] if items and len(items) <= MOST_INPUTS:
            if all(isinstance(item, str) and item for item in items):
                return tuple(items)
            if all(isinstance(item, list) and _are_tokens(item) for item in items):
                return tuple(map(tuple, items))
    raise ValueError(
        f"this is a text, a list of texts, a list of tokens, or a list of such lists: {MOST_INPUTS} at most, none empty"
    )


def _are_tokens(values: list[Any]) -> bool:
    return bool(values) and all(type(item) is int and 0 <= item < 2**31 for item in values)


class EmbeddingsRequest(Open):
    """Body of `POST /v1/embeddings`.

    A server with several models answers with the one that `model` names; a server with one takes any name. A model of
    this machine has vectors of one length: others are refused. `user` names the account within the caller's that the
    request draws on. Members that are not listed are ignored.
    """

    input: Annotated[
        tuple[Input, ...],
        PlainValidator(_inputs),
        WithJsonSchema(
            {
                "anyOf": [
                    _TEXT,
                    {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MOST_INPUTS},
                    _TOKENS,
                    {"type": "array", "items": _TOKENS, "minItems": 1, "maxItems": MOST_INPUTS},
                ]
            }
        ),
    ]
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: _Dimensions | None = None
    user: _Name | None = None


class Embedding(Open):
    """The vector of a text: numbers, or Base64 of them in single precision, little-endian."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: str | tuple[float, ...]


class EmbeddingsUsage(Open):
    """What a request cost, in tokens, and in US dollars if the model has a price."""

    prompt_tokens: int
    total_tokens: int
    cost: float | None = None


class EmbeddingsReply(Open):
    """The vectors of a request's texts, in their order."""

    object: Literal["list"] = "list"
    data: tuple[Embedding, ...]
    model: str
    usage: EmbeddingsUsage


def reply_of(model: str, usage: Usage) -> EmbeddingsReply:
    """Make the answer in the protocol of OpenAI, without its data."""
    tokens = usage.prompt_tokens
    return EmbeddingsReply(
        data=(), model=model, usage=EmbeddingsUsage(prompt_tokens=tokens, total_tokens=tokens, cost=usage.cost)
    )


def data_of(vectors: Iterable[Sequence[float]], encoding: Literal["float", "base64"] | None) -> Iterator[str]:
    """Write the data of an answer in the protocol of OpenAI, each vector as JSON."""
    for index, vector in enumerate(vectors):
        text = json.dumps(_base64(vector)) if encoding == "base64" else numbers_of(vector)
        yield f'{{"object":"embedding","index":{index},"embedding":{text}}}'


def numbers_of(vector: Sequence[float]) -> str:
    """Write a vector as JSON."""
    return json.dumps(list(vector), separators=(",", ":"))


def _base64(vector: Sequence[float]) -> str:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")


class OllamaEmbedRequest(Open):
    """Body of `POST /api/embed`. Without `truncate: false`, the end of a text that is too long is left out.

    A request without `input` only loads the model. The members `options` and `keep_alive` are ignored.
    """

    model: _Name = ""
    input: str | Annotated[tuple[str, ...], Field(max_length=MOST_INPUTS)] | None = None
    truncate: bool | None = None
    dimensions: _Dimensions | None = None

    def inputs(self) -> tuple[Input, ...]:
        """The texts. Raises `InvalidParameters` if one of several is empty."""
        if not self.input:
            return ()
        texts = (self.input,) if isinstance(self.input, str) else self.input
        if not all(texts):
            raise refusal("input", "a text is empty")
        return texts


class OllamaEmbeddings(Open):
    """The vectors of the texts, in their order; the times are in nanoseconds."""

    model: str
    embeddings: tuple[tuple[float, ...], ...]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0


class OllamaEmbeddingRequest(Open):
    """Body of `POST /api/embeddings`, the older form. A request without a prompt only loads the model."""

    model: _Name = ""
    prompt: str = ""


class OllamaEmbedding(Open):
    """The vector of the prompt; empty if there was none."""

    embedding: tuple[float, ...]
