"""Chats and generations in the protocol of Ollama, for any program that supports it (H4)."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from cfs.errors import CfsError, ModelNotFound, Unsupported, UnsupportedMedia
from cfs_server.engine.contract.interface import Delta, EmbeddingRequest, Finished, Input
from cfs_server.http.bodies import apart, json_body
from cfs_server.http.caller import AppContext, Me
from cfs_server.http.disconnects import attend
from cfs_server.http.generation import ERRORS, RECORDED_ERRORS, NamedSession, StartedCompletion, begin, frames_of
from cfs_server.http.idempotency import Idempotency, Ticket
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json, as_json_with
from cfs_server.protocols import ollama_replies as protocol
from cfs_server.protocols.embeddings import (
    OllamaEmbedding,
    OllamaEmbeddingRequest,
    OllamaEmbeddings,
    OllamaEmbedRequest,
    numbers_of,
)
from cfs_server.protocols.errors import ollama_problem
from cfs_server.protocols.ollama_models import OllamaModelInfo, OllamaModels, OllamaVersion, info_of, models_of
from cfs_server.protocols.ollama_requests import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
    read_request,
)

router = APIRouter(prefix="/api", tags=["ollama"])

_ERRORS = tuple(kind for kind in RECORDED_ERRORS if kind is not UnsupportedMedia)
_ERRORS_OF_EMBEDDINGS = (*(kind for kind in ERRORS if kind is not UnsupportedMedia), ModelNotFound, Unsupported)
_body = partial(json_body, any_media=True)
"""Ollama reads a body as JSON whatever its content type is: `curl -d` names a form, and litellm names nothing."""
_ANSWERS = answer("The answer, or its pieces, a line each", lines=None, json=protocol.OllamaReply)


@router.post(
    "/chat",
    responses={200: _ANSWERS, **problems(*_ERRORS)},
    openapi_extra=body(required=False, json=OllamaChatRequest),
)
async def chat(
    request: Request,
    payload: Annotated[OllamaChatRequest, Depends(_body(OllamaChatRequest))],
    session: NamedSession,
    me: Me,
    ticket: Idempotency,
) -> Response:
    """Answer a conversation as Ollama does. With `X-CFS-Session`, that session records it as a turn.

    A chat without messages only loads the model, which is loaded always. An answer is cancelled when its client
    disconnects, unless `X-CFS-On-Disconnect` says otherwise for a turn.
    """
    return await _answered(request, payload, session, me, ticket)


@router.post(
    "/generate",
    responses={200: _ANSWERS, **problems(*_ERRORS)},
    openapi_extra=body(required=False, json=OllamaGenerateRequest),
)
async def generate(
    request: Request,
    payload: Annotated[OllamaGenerateRequest, Depends(_body(OllamaGenerateRequest))],
    session: NamedSession,
    me: Me,
    ticket: Idempotency,
) -> Response:
    """Answer a prompt as Ollama does; `context` continues the conversation of an earlier answer.

    With `X-CFS-Session`, that session records it as a turn. A request without a prompt only loads the model.
    """
    return await _answered(request, payload, session, me, ticket)


async def _answered(
    request: Request,
    payload: OllamaChatRequest | OllamaGenerateRequest,
    session: str | None,
    me: Me,
    ticket: Ticket,
) -> Response:
    read = partial(read_request, payload, recorded=session is not None)
    if payload.is_empty:
        await apart(request, partial(read, me.completions.limits))  # refuses what it would refuse with a prompt
        name = me.completions.choose(_untagged(payload.model)) or me.completions.models[0].id
        me.sessions.require_somewhere("write")
        piece = protocol.writer_of(payload, name, None).loaded(unload=payload.unloads)
        return Response(protocol.line(piece), media_type="application/json")
    items = await begin(request, me, ticket, session, _untagged(payload.model), read)
    writer = protocol.writer_of(payload, items.model, items.recorded)
    if not payload.streams:
        return await items.whole(request, _whole(writer, items))
    return await items.stream(request, me, frames_of(items, lambda item: _lines(writer, item), _failed), lines=True)


def _untagged(model: str) -> str:
    """Return the name of a model without the tag that stands for none."""
    return model.removesuffix(":latest")


async def _whole(writer: protocol.OllamaWriter, items: StartedCompletion) -> str:
    return protocol.line(await writer.reply(items)).decode().rstrip("\n")


def _lines(writer: protocol.OllamaWriter, item: Delta | Finished) -> Iterator[bytes]:
    return map(protocol.line, writer.write(item))


def _failed(error: CfsError) -> bytes:
    return protocol.line(ollama_problem(error))


@router.get("/tags", responses={200: answer("All models", json=OllamaModels), **problems()})
async def tags(me: Me, parts: AppContext) -> Response:
    """List the models as Ollama does, the default first."""
    return as_json(models_of(me.completions.models, _families(parts)))


@router.get("/ps", responses={200: answer("The loaded models", json=OllamaModels), **problems()})
async def loaded(me: Me, parts: AppContext) -> Response:
    """List the loaded models as Ollama does."""
    return as_json(models_of([card for card in me.completions.models if card.loaded], _families(parts)))


@router.post(
    "/show",
    responses={200: answer("The model", json=OllamaModelInfo), **problems(ModelNotFound)},
    openapi_extra=body(required=False, json=OllamaShowRequest),
)
async def show(
    payload: Annotated[OllamaShowRequest, Depends(_body(OllamaShowRequest))],
    me: Me,
    parts: AppContext,
) -> Response:
    """Describe the model that answers by a name, as Ollama does."""
    chosen = me.completions.choose(_untagged(payload.model or payload.name))
    card = me.completions.card(chosen) if chosen else me.completions.models[0]
    return as_json(info_of(card, _families(parts)))


def _families(parts: AppContext) -> dict[str, str]:
    """Return the architecture of each model for which it is known."""
    return {model.name: model.engine.family for model in parts.models if model.engine}


@router.get("/version", responses={200: answer("The version", json=OllamaVersion), **problems()})
async def version(me: Me) -> Response:  # noqa: ARG001 - a caller must be known
    """Return the version of Ollama whose API this is; clients require a least one."""
    return as_json(OllamaVersion(version=protocol.API_VERSION))


@router.post(
    "/embed",
    responses={200: answer("The vectors", json=OllamaEmbeddings), **problems(*_ERRORS_OF_EMBEDDINGS)},
    openapi_extra=body(required=False, json=OllamaEmbedRequest),
)
async def embed(
    request: Request, payload: Annotated[OllamaEmbedRequest, Depends(_body(OllamaEmbedRequest))], me: Me
) -> Response:
    """Return a vector for each text as Ollama does, by a model that makes embeddings."""
    began = time.monotonic_ns()
    truncate = payload.truncate is not False
    vectors, tokens, model = await _embedded(request, me, payload.model, payload.inputs(), truncate, payload.dimensions)
    duration = time.monotonic_ns() - began if vectors else 0
    reply = OllamaEmbeddings(model=model, embeddings=(), total_duration=duration, prompt_eval_count=tokens)
    return await as_json_with(reply, "embeddings", map(numbers_of, vectors))


@router.post(
    "/embeddings",
    responses={200: answer("The vector", json=OllamaEmbedding), **problems(*_ERRORS_OF_EMBEDDINGS)},
    openapi_extra=body(required=False, json=OllamaEmbeddingRequest),
)
async def embed_prompt(
    request: Request, payload: Annotated[OllamaEmbeddingRequest, Depends(_body(OllamaEmbeddingRequest))], me: Me
) -> Response:
    """Return the vector of one text, for programs that use Ollama's older form."""
    prompts = (payload.prompt,) if payload.prompt else ()
    vectors, _, _ = await _embedded(request, me, payload.model, prompts, True, None)
    return as_json(OllamaEmbedding(embedding=tuple(vectors[0]) if vectors else ()))


async def _embedded(
    request: Request, me: Me, name: str, inputs: tuple[Input, ...], truncate: bool, dimensions: int | None
) -> tuple[Sequence[Sequence[float]], int, str]:
    """Return the vectors, the number of tokens, and the name of the model."""
    gate = me.completions
    model = gate.choose(_untagged(name))
    if not inputs:
        me.sessions.require_somewhere("write")
        return (), 0, model or gate.models[0].id
    work = gate.embed(EmbeddingRequest(inputs, model, dimensions=dimensions, truncate=truncate))
    embeddings, usage, answering = await attend(request, work)
    return embeddings.vectors, usage.prompt_tokens, answering


_OPERATOR = "the operator chooses the models of a server: see `cfs model`"
_ELSEWHERE = (
    ("POST", "/pull", _OPERATOR),
    ("POST", "/push", _OPERATOR),
    ("POST", "/create", _OPERATOR),
    ("DELETE", "/delete", _OPERATOR),
)


def _refuse(method: str, path: str, reason: str) -> None:
    async def refuse() -> Response:
        raise Unsupported(reason)

    router.add_api_route(path, refuse, methods=[method], include_in_schema=False)


for _row in _ELSEWHERE:
    _refuse(*_row)
