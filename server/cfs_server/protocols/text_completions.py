"""The older completions of the OpenAI API, of one prompt: requests in, one text or its pieces out. Pure: no I/O (H4).

A prompt is one message of a user here: models of today answer messages, and each engine has the template for them.
"""

import json
import time
import uuid
from collections.abc import AsyncIterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from cfs.completions import CompletionUsage, Recorded, StreamOptions
from cfs.completions.messages import Open
from cfs.completions.models import LogitOptions, Number
from cfs.wire import FinishReason, Message, TokenLogprob
from cfs_server.completions.requests import CompletionSpec, checked, patch_of, refusal
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.contract.interface import Delta, Finished
from cfs_server.engine.contract.reply_options import ReplyOptions

_MOST_LOGPROBS = 5


def _one_text(value: Any) -> Any:
    """Say what a prompt is, more clearly than the message of a union would."""
    texts = value if isinstance(value, list) else [value]
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise ValueError("a prompt is one text: several ones are several requests, and token ids are not read")
    return texts[0]


_One = WithJsonSchema({"enum": [None, 1]})


class TextCompletionRequest(LogitOptions):
    """Body of `POST /v1/completions`.

    A server with several models answers with the one that `model` names; a server with one takes any name.
    `n` and `best_of` may be 1 only. Members that are not listed are ignored.
    """

    prompt: Annotated[
        str,
        BeforeValidator(_one_text),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1},
                ]
            }
        ),
    ]
    model: str = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=5)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | None = None
    logprobs: Annotated[int, Field(ge=0, le=_MOST_LOGPROBS)] | None = None
    user: Annotated[str, StringConstraints(max_length=256)] | None = None
    n: Annotated[int | None, _One] = None
    best_of: Annotated[int | None, _One] = None
    echo: Annotated[bool | None, WithJsonSchema({"enum": [None, False]})] = None
    suffix: Annotated[str | None, WithJsonSchema({"enum": [None, ""]})] = None


def read_completion(request: TextCompletionRequest, limits: StoreLimits, *, recorded: bool = False) -> CompletionSpec:
    """Convert a request. Raises `InvalidParameters` for what is not supported, and `TooLarge`.

    A prompt that a session records continues that session.
    """
    _refuse_unsupported(request)
    spec = CompletionSpec(
        messages=checked((Message(role="user", content=request.prompt),), limits),
        before=SizedMessages(),
        patch=patch_of(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            stop=request.stop,
            logits=request,
        ),
        options=ReplyOptions(logprobs=request.logprobs),
        account=request.user or "",
    )
    return replace(spec, before=None) if recorded else spec


def _refuse_unsupported(request: TextCompletionRequest) -> None:
    for member in ("n", "best_of"):
        if getattr(request, member) not in (None, 1):
            raise refusal(member, "one completion is made at a time: leave it out, or set it to 1")
    for member in ("echo", "suffix"):
        if getattr(request, member):
            raise refusal(member, "the prompt is answered as a message of a chat, not continued: leave it out")


_REASONS: dict[FinishReason, Literal["stop", "length"]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "cancelled": "stop",  # the protocol has no value for it; `cfs.finish_reason` has
    "error": "stop",
}


class TextLogprobs(Open):
    """The tokens of a text: their log-probabilities, alternatives, and places in the text, in characters."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


class TextChoice(Open):
    """The text of a completion, or a piece of it."""

    text: str
    index: int = 0
    logprobs: TextLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None


class TextCompletion(Open):
    """A completion of a prompt, or a piece of it. The usage comes with the last piece."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    usage: CompletionUsage | None = None
    warnings: tuple[str, ...] | None = None
    cfs: Recorded | None = None


class TextWriter:
    """Formats one completion. `recorded` is the session and turn that record it, if any."""

    def __init__(self, model: str, recorded: Recorded | None = None) -> None:
        self._model = model
        self._recorded = recorded
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._characters = 0

    def write(self, item: Delta | Finished) -> Iterator[TextCompletion]:
        """Yield the piece of a piece, or the end and the usage. What the model thinks is not shown."""
        if isinstance(item, Finished):
            recorded = self._recorded and self._recorded.model_copy(update={"finish_reason": item.reason})
            more = {"cfs": recorded, "warnings": item.warnings or None}
            yield self._piece(TextChoice(text="", finish_reason=_REASONS[item.reason])).model_copy(update=more)
            yield self._piece(usage=CompletionUsage.of(item.usage), cfs=recorded)
        elif item.text or item.logprobs:
            yield self._piece(TextChoice(text=item.text, logprobs=self._ranked(item.logprobs)))
            self._characters += len(item.text)

    async def completion(self, items: AsyncIterable[Delta | Finished]) -> TextCompletion:
        """Return the complete response."""
        pieces = [piece async for item in items for piece in self.write(item)]
        choices = [choice for piece in pieces for choice in piece.choices]
        ranked = [choice.logprobs for choice in choices if choice.logprobs]
        whole = TextChoice(
            text="".join(choice.text for choice in choices),
            logprobs=_joined(ranked) if ranked else None,
            finish_reason=choices[-1].finish_reason,
        )
        warnings = next((piece.warnings for piece in pieces if piece.warnings), None)
        return pieces[-1].model_copy(update={"choices": (whole,), "warnings": warnings})

    def _ranked(self, tokens: tuple[TokenLogprob, ...]) -> TextLogprobs | None:
        if not tokens:
            return None
        offsets, at = [], self._characters
        for token in tokens:
            offsets.append(at)
            at += len(token.token)
        return TextLogprobs(
            tokens=tuple(token.token for token in tokens),
            token_logprobs=tuple(token.logprob for token in tokens),
            top_logprobs=tuple({choice.token: choice.logprob for choice in token.top} for token in tokens),
            text_offset=tuple(offsets),
        )

    def _piece(
        self, *choices: TextChoice, usage: CompletionUsage | None = None, cfs: Recorded | None = None
    ) -> TextCompletion:
        return TextCompletion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage, cfs=cfs
        )


def _joined(pieces: list[TextLogprobs]) -> TextLogprobs:
    return TextLogprobs(
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        token_logprobs=tuple(value for piece in pieces for value in piece.token_logprobs),
        top_logprobs=tuple(top for piece in pieces for top in piece.top_logprobs),
        text_offset=tuple(offset for piece in pieces for offset in piece.text_offset),
    )


def completion_json(completion: TextCompletion, *, include_usage: bool = True) -> str | None:
    """Return the JSON of a completion or a piece; None for usage that was not requested."""
    if not completion.choices and not include_usage:
        return None
    document = completion.model_dump()
    if completion.usage is not None:
        document["usage"] = completion.usage.model_dump(exclude_none=True)
    for member in ("usage", "warnings", "cfs"):
        if document[member] is None:
            del document[member]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
