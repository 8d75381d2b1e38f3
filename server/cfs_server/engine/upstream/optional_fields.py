"""Optional members of a request: sent until the upstream refuses one, then omitted.

Servers and models accept different members and name a refused member in the error. One failed request is enough to
learn this. A table of all models would soon be out of date.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, get_args

import structlog

from cfs.wire import Settings
from cfs_server.engine.contract.interface import GenerationRequest, Sampling
from cfs_server.engine.upstream.failures import Failure


class Instead(Enum):
    """What happens in place of a member that the upstream refuses. Nothing is dropped in silence."""

    HERE = "the server carries it out itself"
    TOLD = "the reply has a warning if the client has asked for it"
    FAILS = "the turn fails if it cannot do without"
    NOTHING = "it was to help the upstream, and changes no reply"


NEUTRAL: Mapping[str, float] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repeat_penalty": 1,
    "min_tokens": 0,
    "repeat_last_n": Settings().repeat_last_n,
}
"""Values by which a setting has no effect. They are not sent: fewer servers know these settings than take others."""


def unused(request: GenerationRequest, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return warnings for settings that were asked for and that a body has not. Those at their defaults were not."""
    settings, defaults = request.settings, Settings()
    fields = []
    for name in (*get_args(Sampling), "reproducible"):
        value = getattr(settings, name)
        if value == getattr(defaults, name) or body.get(name) == value:
            continue
        if name in body:
            fields.append(f"{name} was {body[name]}: the model's server takes no {value}")
        else:
            fields.append(f"{name} had no effect: the model's server does not get it or does not take it")
    if request.options.logprobs is not None:
        fields.append("there are no logprobs: those of the model's server are not read")
    return tuple(fields)


_UNKNOWN = re.compile(
    r"not supported|unsupported|does not support|not support|deprecated|unrecognized|unexpected|unknown|not permitted"
    r"|not allowed|cannot both|extra (inputs|fields)",
    re.IGNORECASE,
)


_log = structlog.get_logger(__name__)


class OptionalFields:
    """Which of some members the upstream takes."""

    def __init__(self, names: Iterable[str]) -> None:
        self._pattern = re.compile(rf"\b({'|'.join(names)})\b")
        self._refused: set[str] = set()

    def takes(self, name: str) -> bool:
        """Whether a member may be sent."""
        return name not in self._refused

    def learn(self, failure: Failure) -> None:
        """Note the first member that a failure reports as refused."""
        if failure.status not in (400, 422) or not _UNKNOWN.search(failure.said):
            return
        named = self._pattern.search(failure.said)
        if named and named[0] not in self._refused:  # another turn may have got the same failure
            self._refused.add(named[0])
            _log.warning("upstream.refused", setting=named[0], said=failure.said)
