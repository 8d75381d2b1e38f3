"""What one model of an upstream accepts, as its answers show: a form of histories, and a length. Pure: no I/O.

Servers refuse a history in words of their own, or in none (microsoft/autogen#5965), so words only help. A refused
request is sent again in the next form that differs. A form that is accepted then is used from then on.
"""

import re
from collections.abc import Iterator

import structlog
from cachetools import LRUCache

from cfs.errors import ContextTooLong, EngineError
from cfs_server.engine.contract.fitting import TARGET, count_within, estimated_tokens, exchanges, leading_systems
from cfs_server.engine.contract.history_forms import HistoryForm
from cfs_server.engine.contract.interface import GenerationRequest, HistoryRefused
from cfs_server.engine.upstream.failures import NO_REASON, Failure

_REFUSED = frozenset({400, 413, 422})
_ABOUT_HISTORY = re.compile(
    r"template|jinja|\broles?\b|alternat|tool.?call|tool.?use|tool.?result|function (call|response)|thought.?signature"
    r"|system message|(assistant|user|tool) message|last message|message order|content block|prefill|consecutive"
    r"|interleave",
    re.IGNORECASE,
)
"""A server whose template fails may answer 404 or 500: ml-explore/mlx-lm#1375, ggml-org/llama.cpp#27367."""
_ABOUT_CALLER = re.compile(r"authenti|api.?key|permission|quota|billing|rate.?limit|not.?found", re.IGNORECASE)
_TELLING_WORDS = 4
"""A refusal of fewer words does not say what it refuses."""
_MOST_USELESS = 32
_NEVER_TOO_LONG = 2048
"""Tokens of a prompt that every model takes."""
_LESS = 0.5
"""The part of a context that a prompt may fill after a cut, by estimates."""
_log = structlog.get_logger(__name__)


class Acceptance:
    """The form that the upstream wants, and the longest prompt that it has accepted."""

    def __init__(self) -> None:
        self.form = HistoryForm.PLAIN
        self._accepted = _NEVER_TOO_LONG
        self._helped = 0
        self._useless: LRUCache[str, None] = LRUCache(_MOST_USELESS)

    def accepted(self, request: GenerationRequest, form: HistoryForm, refusal: Failure | None) -> None:
        """Note that a request was answered, perhaps after the `refusal` of another form.

        A server that has failed without a reason may have been in trouble, so one time is not enough then.
        """
        self._accepted = max(self._accepted, estimated_tokens(request.messages))
        if refusal is None:
            self._helped = 0
            return
        self._helped += 1
        if form > self.form and (refuses(refusal) or self._helped > 1):
            self.form = form
            _log.warning("upstream.form", form=form.name.lower(), said=refusal.said)

    def other_forms(
        self, request: GenerationRequest, form: HistoryForm, failure: Failure, *, last: bool
    ) -> Iterator[HistoryForm]:
        """Yield the forms that may help after a failure, the `last` one of this turn or not."""
        about = bool(_ABOUT_HISTORY.search(failure.said))
        if not (refuses(failure) or (failure.status == 500 and last)) or isinstance(failure.error, ContextTooLong):
            return
        if _gist(failure) in self._useless:
            return
        yield from _forms(form, HistoryForm.STRICT)
        # It may be shorter than the others, so a prompt that is too long for them may pass in it.
        if about or estimated_tokens(request.messages) <= self._accepted:
            yield from _forms(max(form, HistoryForm.STRICT), HistoryForm.TEXT)

    def helps_nothing(self, failure: Failure) -> None:
        """Note that no form was accepted instead of a refused one."""
        if NO_REASON not in failure.said and len(failure.said.split()) >= _TELLING_WORDS:
            self._useless[_gist(failure)] = None

    def error_of(self, request: GenerationRequest, failure: Failure, context_tokens: int) -> EngineError:
        """Return the error for a request that was refused in all forms: perhaps a shorter prompt is accepted."""
        error = failure.final
        if isinstance(error, ContextTooLong) or not refuses(failure):
            return error
        messages = request.messages
        size = estimated_tokens(messages)
        reply = min(request.settings.max_tokens, context_tokens // 4)
        if context_tokens and size + reply > TARGET * context_tokens:
            fits = count_within(messages, int(_LESS * context_tokens))
            detail = f"the conversation is probably too long for the upstream's model: {error.detail}"
            return ContextTooLong(detail, fits=fits, leaving=max(0, size - int(_LESS * context_tokens)))
        if not request.may_shorten or len(exchanges(messages, leading_systems(messages))) < 2:
            return error
        fits = count_within(messages, int(TARGET * self._accepted)) if size > self._accepted else 1
        return HistoryRefused(error, fits=fits)


def refuses(failure: Failure) -> bool:
    """Whether a failure is a refusal of what was sent. An error in a stream has no status."""
    if failure.status is None:
        return bool(failure.said) and not failure.repeat and not _ABOUT_CALLER.search(failure.said)
    return failure.status in _REFUSED or (failure.status in (404, 500) and bool(_ABOUT_HISTORY.search(failure.said)))


def _forms(after: HistoryForm, last: HistoryForm) -> Iterator[HistoryForm]:
    """Yield the forms between one, which is not included, and the last one."""
    return (form for form in HistoryForm if after < form <= last)


def _gist(failure: Failure) -> str:
    return re.sub(r"\d+", "#", failure.said)
