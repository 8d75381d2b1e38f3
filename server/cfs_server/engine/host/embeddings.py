"""Requests for embeddings to a worker: some texts at a time, so that requests of others come in between."""

import asyncio
import base64
import sys
from array import array
from collections.abc import Awaitable, Callable, Sequence

from cfs import errors
from cfs.errors import EngineError, InvalidRequest, Unsupported, WorkerCrashed
from cfs_server.engine.contract.interface import TOO_LONG, EmbeddingRequest, Embeddings, Input
from cfs_server.engine.contract.protocol import Embed, Embedded
from cfs_server.engine.host.worker_questions import Answer

NO_EMBEDDINGS = (
    "this model makes texts, no embeddings: its file names no pooling; name a model for embeddings, which the operator"
    " can add to the server's models"
)
TEXTS = 32
"""Texts of one frame to the worker."""


async def embed(
    request: EmbeddingRequest, pooling: str, ask: Callable[[Callable[[int], Embed]], Awaitable[Answer | None]]
) -> Embeddings:
    """Let the worker make the vectors of a request; see `Embeds.embed`. `ask` sends a frame with its number."""
    if not pooling:
        raise Unsupported(NO_EMBEDDINGS)
    vectors: list[Sequence[float]] = []
    tokens = 0
    try:
        async with asyncio.timeout(request.deadline_seconds):
            for start in range(0, len(request.inputs), TEXTS):
                answer = _checked(await ask(_Frame(request, request.inputs[start : start + TEXTS])))
                vectors += map(_vector, answer.vectors)
                tokens += answer.tokens
                _check_dimensions(request.dimensions, len(vectors[0]))
    except TimeoutError:
        raise EngineError(TOO_LONG.format(request.deadline_seconds)) from None
    return Embeddings(tuple(vectors), tokens)


class _Frame:
    """Makes the frame for some of a request's texts."""

    def __init__(self, request: EmbeddingRequest, inputs: Sequence[Input]) -> None:
        self._request = request
        self._inputs: list[str | list[int]] = [text if isinstance(text, str) else list(text) for text in inputs]

    def __call__(self, number: int) -> Embed:
        request = self._request
        return Embed(number, self._inputs, request.owner, request.account, request.truncate)


def _checked(answer: Answer | None) -> Embedded:
    if not isinstance(answer, Embedded):
        raise WorkerCrashed("the engine's worker process has ended; try again in a moment")
    if answer.error:
        kind = getattr(errors, answer.kind, EngineError)
        raise kind(answer.error) if issubclass(kind, EngineError) else EngineError(answer.error)
    return answer


def _vector(text: str) -> "array[float]":
    vector = array("f", base64.b64decode(text))  # little-endian
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


def _check_dimensions(requested: int | None, dimensions: int) -> None:
    if requested not in (None, dimensions):
        raise InvalidRequest(
            f"the vectors of this model have {dimensions} numbers, and its file does not say that fewer are enough:"
            " leave `dimensions` out"
        )
