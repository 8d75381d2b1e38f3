"""Completions in the OpenAI protocol, for any program that supports it (H4)."""

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Request, Response

from cfs import completions as wire
from cfs.errors import CfsError, ModelNotFound, Unsupported
from cfs_server.completions.requests import messages_of, tools_of
from cfs_server.engine.contract.interface import Delta, EmbeddingRequest, Finished
from cfs_server.http.bodies import apart, json_body
from cfs_server.http.caller import Me
from cfs_server.http.disconnects import attend
from cfs_server.http.generation import ERRORS, RECORDED_ERRORS, NamedSession, StartedCompletion, begin, data, frames_of
from cfs_server.http.idempotency import Idempotency
from cfs_server.http.openapi import answer, body, problems
from cfs_server.http.representations import as_json, as_json_with
from cfs_server.protocols import text_completions as texts
from cfs_server.protocols.anthropic_replies import AnthropicModel, AnthropicModels
from cfs_server.protocols.chat import Writer, chunk_json, completion_json, read_chat
from cfs_server.protocols.embeddings import EmbeddingsReply, EmbeddingsRequest, data_of, reply_of
from cfs_server.protocols.errors import openai_problem

router = APIRouter(prefix="/v1", tags=["completions"])

AnthropicVersion = Annotated[
    str | None, Header(description="Clients of Anthropic send it; they get the form of their protocol.")
]
_MODEL_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9._:-]{0,62}(/[A-Za-z0-9_-][A-Za-z0-9._:-]{0,62}){0,3}$"


@router.post(
    "/chat/completions",
    responses={
        200: answer("The completion, or its chunks", json=wire.ChatCompletion, events=None),
        **problems(*RECORDED_ERRORS),
    },
    openapi_extra=body(json=wire.ChatRequest),
)
async def complete(
    request: Request,
    payload: Annotated[wire.ChatRequest, Depends(json_body(wire.ChatRequest))],
    session: NamedSession,
    me: Me,
    ticket: Idempotency,
) -> Response:
    """Complete a conversation. With `X-CFS-Session`, that session records it as a turn.

    A completion is cancelled when its client disconnects, unless `X-CFS-On-Disconnect` says otherwise for a turn.
    """
    items = await begin(request, me, ticket, session, payload.model, partial(read_chat, payload))
    writer = Writer(items.model, items.recorded)
    if not payload.stream:
        return await items.whole(request, _whole(writer, items))
    usage = payload.stream_options is not None and payload.stream_options.include_usage
    first, last = data(chunk_json(writer.first(), include_usage=usage) or ""), data(wire.DONE)
    frames = frames_of(items, lambda item: _frames(writer, item, usage=usage), _failed, first=first, last=last)
    return await items.stream(request, me, frames)


async def _whole(writer: Writer, items: StartedCompletion) -> str:
    return completion_json(await writer.completion(items))


def _frames(writer: Writer, item: Delta | Finished, *, usage: bool) -> Iterator[bytes]:
    return map(data, writer.texts(item, include_usage=usage))


def _failed(error: CfsError) -> bytes:
    return data(json.dumps(openai_problem(error)))


@router.post(
    "/completions",
    responses={
        200: answer("The completion, or its pieces", json=texts.TextCompletion, events=None),
        **problems(*RECORDED_ERRORS),
    },
    openapi_extra=body(json=texts.TextCompletionRequest),
)
async def complete_text(
    request: Request,
    payload: Annotated[texts.TextCompletionRequest, Depends(json_body(texts.TextCompletionRequest))],
    session: NamedSession,
    me: Me,
    ticket: Idempotency,
) -> Response:
    """Answer a prompt, for programs that use OpenAI's older protocol. With `X-CFS-Session`, it continues that session.

    A completion is cancelled when its client disconnects, unless `X-CFS-On-Disconnect` says otherwise for a turn.
    """
    read = partial(texts.read_completion, payload, recorded=session is not None)
    items = await begin(request, me, ticket, session, payload.model, read)
    writer = texts.TextWriter(items.model, items.recorded)
    if not payload.stream:
        return await items.whole(request, _whole_text(writer, items))
    usage = payload.stream_options is not None and payload.stream_options.include_usage
    frames = frames_of(items, lambda item: _text_frames(writer, item, usage=usage), _failed, last=data(wire.DONE))
    return await items.stream(request, me, frames)


async def _whole_text(writer: texts.TextWriter, items: StartedCompletion) -> str:
    return texts.completion_json(await writer.completion(items)) or ""


def _text_frames(writer: texts.TextWriter, item: Delta | Finished, *, usage: bool) -> Iterator[bytes]:
    for piece in writer.write(item):
        if text := texts.completion_json(piece, include_usage=usage):
            yield data(text)


@router.post(
    "/embeddings",
    responses={200: answer("The vectors", json=EmbeddingsReply), **problems(*ERRORS, ModelNotFound, Unsupported)},
    openapi_extra=body(json=EmbeddingsRequest),
)
async def embed(
    request: Request, payload: Annotated[EmbeddingsRequest, Depends(json_body(EmbeddingsRequest))], me: Me
) -> Response:
    """Return a vector for each text, by a model that makes embeddings."""
    gate = me.completions
    work = gate.embed(
        EmbeddingRequest(
            payload.input, gate.choose(payload.model), dimensions=payload.dimensions, account=payload.user or ""
        )
    )
    embeddings, usage, model = await attend(request, work)
    return await as_json_with(reply_of(model, usage), "data", data_of(embeddings.vectors, payload.encoding_format))


@router.get("/models", responses={200: answer("All models", json=wire.ModelList), **problems()})
async def models(me: Me, anthropic_version: AnthropicVersion = None) -> Response:
    """List the available models, the default first. Clients of Anthropic get the form of their protocol."""
    cards = tuple(me.completions.models)
    return as_json(AnthropicModels.of(cards) if anthropic_version else wire.ModelList(data=cards))


@router.get(
    "/models/{model:path}",
    responses={200: answer("The model", json=wire.ModelCard), **problems(ModelNotFound)},
)
async def model(
    model: Annotated[
        str, Path(description="Name of the model; it may hold slashes.", json_schema_extra={"pattern": _MODEL_PATTERN})
    ],
    me: Me,
    anthropic_version: AnthropicVersion = None,
) -> Response:
    """Return the description of a model."""
    card = me.completions.card(model)
    return as_json(AnthropicModel.of(card) if anthropic_version else card)


async def _place(me: Me) -> AsyncIterator[None]:
    """Reserve a place for token counting until the request is finished."""
    with me.completions.counting():
        yield


PlaceToCount = Annotated[None, Depends(_place)]


@router.post(
    "/tokens",
    responses={200: answer("How many tokens", json=wire.TokenCounts), **problems(*ERRORS, ModelNotFound)},
    openapi_extra=body(required=False, json=wire.TokensRequest),
)
async def tokens(
    request: Request,
    _: PlaceToCount,
    payload: Annotated[wire.TokensRequest, Depends(json_body(wire.TokensRequest))],
    me: Me,
) -> Response:
    """Return the number of tokens of texts, and of the prompt for a conversation with tools."""
    gate = me.completions
    messages, model = None, gate.choose(payload.model)
    if payload.messages is not None:
        messages = await apart(request, partial(messages_of, payload.messages, gate.limits))
    return as_json(await attend(request, gate.count(payload.texts, messages, tools_of(payload.tools), model)))
