"""Embeddings of an upstream, by the protocol of OpenAI."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from cfs.completions.estimates import estimate_inputs
from cfs_server.engine.contract.interface import EmbeddingRequest, Embeddings, Input
from cfs_server.engine.upstream.connection import Link
from cfs_server.engine.upstream.failures import nonsense

_ANSWER_BYTES, _VECTOR_BYTES = 64 << 10, 256 << 10
"""Bytes of an answer, and of each of its vectors: one of 8,192 numbers has fewer."""

TEXTS = 256
"""Texts of one request: the event loop is busy for some milliseconds with the answer."""

_Number = Annotated[float, Field(allow_inf_nan=False)]


class _Vector(BaseModel):
    index: int | None = None
    embedding: list[_Number]


class _Usage(BaseModel):
    prompt_tokens: Annotated[int, Field(ge=0)] | None = None
    total_tokens: Annotated[int, Field(ge=0)] | None = None


class _Answer(BaseModel):
    data: list[_Vector]
    usage: _Usage | None = None


async def request_embeddings(
    link: Link, path: str, model: str, request: EmbeddingRequest, inputs: Sequence[Input]
) -> Embeddings:
    """Send some texts of a request, `TEXTS` at most; raises `Failure`."""
    body: dict[str, Any] = {
        "model": model,
        "input": [text if isinstance(text, str) else list(text) for text in inputs],
    }
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    answer = await link.post(path, body, _ANSWER_BYTES + _VECTOR_BYTES * len(inputs))
    if answer.status != 200:
        raise answer.failure(model)
    try:
        page = _Answer.model_validate_json(answer.body)
    except ValidationError:
        raise nonsense(answer.body) from None
    if len(page.data) != len(inputs):
        raise nonsense(answer.body)
    vectors = sorted(page.data, key=lambda vector: vector.index or 0)  # stable: without numbers they keep their order
    usage = page.usage or _Usage()
    counted = usage.total_tokens if usage.prompt_tokens is None else usage.prompt_tokens
    tokens = estimate_inputs(inputs) if counted is None else counted
    return Embeddings(tuple(vector.embedding for vector in vectors), tokens)
