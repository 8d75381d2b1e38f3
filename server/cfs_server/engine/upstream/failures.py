"""Classifies failed requests to an upstream and decides on retries. Pure: no I/O."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import tenacity
from pydantic import BaseModel, ValidationError

from cfs.errors import ContextTooLong, EngineError, UpstreamBusy, UpstreamRefused

T = TypeVar("T", bound=BaseModel)

_REPEATED = frozenset({408, 409, 425, 429})
_NO_HOPE = frozenset({"insufficient_quota", "billing_error", "billing_hard_limit_reached", "usage_limit_reached"})
"""Sent with a status that otherwise means "later", but retries fail until the account is paid."""
_STATUSES = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "insufficient_quota": 429,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "internal_server_error": 500,
    "api_error": 500,
    "unavailable_error": 503,
    "overloaded_error": 529,
    "timeout_error": 504,
}
"""The status that an error in a stream would have had, by its kind in either protocol."""
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|request_too_large"
    r"|(maximum|max|model's) (context|prompt) length|context (length|window|size)|prompt is too long|prompt too long"
    r"|exceeds? (the )?context|context (the )?overflow|input (prompt )?is too long|(prompt|requested|input) token count"
    r"|request (entity )?too large|model token limit|max tokens allowed|reduce the length of the (messages|input)"
    r"|`inputs` tokens",
    re.IGNORECASE,
)
"""Words of known servers, to cut at once. `upstream.acceptance` judges the refusals of others."""
_LENGTH_STATUS = frozenset({400, 413, 422, 500})
"""Ollama reports a prompt that is too long with 500."""
NO_REASON = "no reason was given"
_AWAY = frozenset({408, 429, 502, 503, 504, 529})
"""The status of an upstream that is down, restarts or is overloaded; it is worth waiting for."""
_LATER_SECONDS = 5.0
_LONGEST = 300


@dataclass(eq=False)
class Failure(Exception):
    """One request failed. `error` is the error that the session gets in the end.

    `repeat`: the same request may succeed later, in `after` seconds. `lost`: the upstream was not reachable.
    `said` is the upstream's full error text. `unrepeated`: the request was not, and will not be repeated here.
    """

    error: EngineError
    repeat: bool = False
    after: float | None = None
    lost: bool = False
    said: str = ""
    status: int | None = None
    unrepeated: bool = False

    @property
    def final(self) -> EngineError:
        """The error when no retry is left; an outage of the upstream tells the client when to ask again.

        It says whether the client should repeat its request, because the retries of all who do would multiply.
        """
        if not (self.repeat and self.unrepeated):
            self.error.extra["should_retry"] = False
        if self.repeat and self.error.retry_after is None and (self.status is None or self.status in _AWAY):
            self.error.retry_after = _LATER_SECONDS
        return self.error


@dataclass(frozen=True, slots=True)
class UpstreamProblem:
    """An error as an upstream words it, in either protocol."""

    kind: str
    message: str
    param: str = ""

    @property
    def text(self) -> str:
        """Everything in it that can be searched."""
        return f"{self.kind} {self.param} {self.message}"


def refusal_of(body: str) -> UpstreamProblem:
    """Parse the body of an error, or an error event; a text that is not JSON is the message."""
    try:
        document = json.loads(body)
    except ValueError:
        return UpstreamProblem("", _line(body))
    if isinstance(document, list) and document:  # Gemini's
        document = document[0]
    inner = (document.get("error") or document) if isinstance(document, dict) else document
    if not isinstance(inner, dict):
        return UpstreamProblem("", _line(str(inner)))
    kinds = (str(inner[key]) for key in ("code", "type") if inner.get(key) not in (None, "", "error"))
    message = next((inner[key] for key in ("message", "detail") if inner.get(key) is not None), None)
    message = json.dumps(inner, ensure_ascii=False) if message is None else message
    metadata = inner.get("metadata")
    if isinstance(metadata, dict) and metadata.get("raw"):  # the provider's own words, at OpenRouter
        message = f"{message}: {metadata['raw']}"
    return UpstreamProblem(" ".join(kinds), _line(str(message)), str(inner.get("param") or ""))


def of_status(status: int, body: str, retry_after: str | None, model: str) -> Failure:
    """Return the failure for an answer that is no success."""
    refusal = refusal_of(body)
    after = seconds_of(retry_after)
    hopeless = any(kind in _NO_HOPE for kind in refusal.kind.split())
    repeat = (status in _REPEATED or status >= 500) and not hopeless
    reason = _reason(status, refusal, model)
    error: EngineError = _error(status, reason, refusal, after if repeat else None, repeat=repeat)
    if status in _LENGTH_STATUS and _TOO_LONG.search(refusal.text):
        repeat = False
        error = ContextTooLong(f"the conversation is too long for the upstream's model: {refusal.message}")
    return Failure(error, repeat, after if repeat else None, said=refusal.text, status=status)


def of_event(refusal: UpstreamProblem) -> Failure:
    """Return the failure for an error in a stream, as if it had come with its status."""
    if _TOO_LONG.search(refusal.text):
        too_long = ContextTooLong(f"the conversation is too long for the upstream's model: {refusal.message}")
        return Failure(too_long, said=refusal.text)
    kinds = refusal.kind.split()
    status = next((int(kind) for kind in kinds if kind.isdecimal()), 0)
    status = status or next((_STATUSES[kind] for kind in kinds if kind in _STATUSES), 0)
    hopeless = any(kind in _NO_HOPE for kind in kinds)
    repeat = (status >= 500 or status in _REPEATED) and not hopeless
    error = _error(status, f"the upstream failed: {refusal.message}", refusal, None, repeat=repeat)
    return Failure(error, repeat, said=refusal.text)


def _error(status: int, reason: str, refusal: UpstreamProblem, after: float | None, *, repeat: bool) -> EngineError:
    if status == 429 and repeat:
        return UpstreamBusy(reason, retry_after=after)
    if 400 <= status < 500 and not repeat:
        code = next((kind for kind in refusal.kind.split() if not kind.isdecimal()), None)
        return UpstreamRefused(reason, upstream_status=status, upstream_code=code)
    return EngineError(reason, retry_after=after)


def declined(detail: str) -> Failure:
    """Make the failure of a reply that the model or a filter has refused to give."""
    return Failure(UpstreamRefused(detail, upstream_status=400, upstream_code="content_filter"))


def interrupted(detail: str = "the upstream's answer broke off in the middle") -> Failure:
    """Make the failure of an answer without an end."""
    return Failure(EngineError(detail), repeat=True)


def nonsense(data: str) -> Failure:
    """Make the failure for an answer that violates the protocol."""
    return Failure(EngineError(f"the upstream sent something that its protocol does not know: {_line(data)[:80]!r}"))


def read(model: type[T], value: dict[str, Any], data: str) -> T:
    """Read an object of an event's data; raises `Failure` when the protocol has no such object."""
    try:
        return model.model_validate(value)
    except ValidationError:
        raise nonsense(data) from None


def seconds_of(retry_after: str | None) -> float | None:
    """Read the header `Retry-After`: seconds, or a date (RFC 9110, 10.2.3)."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        due = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (due.replace(tzinfo=due.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _reason(status: int, refusal: UpstreamProblem, model: str) -> str:
    match status:
        case 401:
            return f"the upstream refuses the key that this server has for it: {refusal.message}"
        case 403:
            return f"the upstream forbids this to the key that this server has for it: {refusal.message}"
        case 404:
            return f"the upstream has no model {model!r}, or nothing at this address: {refusal.message}"
        case 429:
            return f"the upstream takes no more requests now: {refusal.message}"
        case _ if status >= 500:
            return f"the upstream failed with status {status}: {refusal.message}"
        case _ if 300 <= status < 400:
            return "the upstream sends elsewhere: give the address where it answers itself"
        case _:
            return f"the upstream refuses the request: {refusal.message}"


def _line(text: str) -> str:
    line = " ".join(text.split()) or NO_REASON
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to send a request again, and the pauses before that in seconds.

    Pauses are random up to a bound that begins at `first` and doubles up to `longest`. An upstream that names a time
    itself (`Retry-After`) is followed up to `longest`; a longer time ends the retries. `sleep` is for tests.
    """

    most: int = 3
    first: float = 0.5
    longest: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def attempts(
        self, may_repeat: Callable[[], bool], note: Callable[[Failure, float], None]
    ) -> tenacity.AsyncRetrying:
        """Make the loop for one turn: `async for attempt in ...: with attempt: ...`.

        A permanent `Failure`, and any that `may_repeat` refuses to repeat, is raised; others are passed to `note`.
        """
        grows = tenacity.wait_random_exponential(multiplier=self.first, max=self.longest)

        def again(error: BaseException) -> bool:
            return isinstance(error, Failure) and error.repeat and (error.after or 0) <= self.longest and may_repeat()

        def pause(state: tenacity.RetryCallState) -> float:
            failure = _failure_of(state)
            return grows(state) if failure.after is None else failure.after

        return tenacity.AsyncRetrying(
            sleep=self.sleep,
            stop=tenacity.stop_after_attempt(self.most + 1),
            wait=pause,
            retry=tenacity.retry_if_exception(again),
            before_sleep=lambda state: note(_failure_of(state), state.upcoming_sleep),
            reraise=True,
        )


def _failure_of(state: tenacity.RetryCallState) -> Failure:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, Failure):
        raise TypeError("only failures are repeated")
    return error
