"""The interface of an upstream protocol: it builds request bodies and parses response events.

Implementations are pure: they do no I/O.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, get_args
from urllib.parse import urlsplit, urlunsplit

import structlog
from pydantic import SecretStr

from cfs.contract.sse import ServerSentEvent
from cfs.contract.transcript import PREFIXES, render, reply_stops
from cfs.errors import EngineError
from cfs.transports.proxies import is_here
from cfs.wire import FinishReason, Message, Settings
from cfs_server.engine.contract.fitting import leading_systems
from cfs_server.engine.contract.history_forms import Form, in_form
from cfs_server.engine.contract.interface import AffinityKind, Delta, GenerationRequest, Sampling, UpstreamKind
from cfs_server.engine.upstream.failures import Failure, Retries

# -- upstream kinds and their validated options -----------------------------------------------------------------------

LEAST_THINKING = 1024
"""Smallest thinking budget that the protocol of Anthropic takes."""


@dataclass(frozen=True, slots=True)
class KindOfUpstream:
    """The properties of all upstreams of one kind.

    `sampling` are the session settings that they get by default; `thinks`: they accept a thinking budget.
    """

    title: str
    sampling: tuple[Sampling, ...]
    thinks: bool = False


KINDS: dict[UpstreamKind, KindOfUpstream] = {
    "openai": KindOfUpstream("OpenAI", ("temperature", "top_p", "seed")),
    "anthropic": KindOfUpstream("Anthropic", ("temperature",), thinks=True),  # its newer models refuse top_p beside it
}
"""All kinds; `engine.DIALECTS` has the protocol of each."""


class InvalidOptions(ValueError):
    """An option cannot be used; the error's text names it and the reason."""


def _keep_nothing(name: str, text: str | None) -> None:
    """Keep no document."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Small texts that outlive the process: those of earlier ones, and how to keep one. None deletes it."""

    kept: Mapping[str, str] = field(default_factory=dict)
    keep: Callable[[str, str | None], None] = _keep_nothing


@dataclass(frozen=True, slots=True)
class Options:
    """An upstream and how to use it.

    `silence` is the longest time in seconds without any data; `parallel` turns are sent to it at a time. A reply has at
    most `reply_bytes`, as not all servers respect a number of tokens. `sampling` names the settings of a session that
    are sent; a setting that the upstream refuses is left out from then on. `context_tokens` is 0 where the upstream
    says it.
    """

    url: str
    kind: UpstreamKind
    model: str | None = None
    key: SecretStr | None = None
    sampling: tuple[Sampling, ...] = ()
    thinking_tokens: int = 0
    silence: float = 120.0
    parallel: int = 8
    affinity: AffinityKind = "x-session-id"
    reply_bytes: int = 4 << 20
    check: bool = True
    context_tokens: int = 0
    retries: Retries = field(default_factory=Retries)
    documents: Documents = field(default_factory=Documents)

    def masked(self, text: str) -> str:
        """Replace the key in a text that others may read, such as an error of the upstream."""
        key = self.key.get_secret_value() if self.key else ""
        return text.replace(key, "***") if key else text


def address(url: str) -> str:
    """Complete the base URL of the protocol's routes; raises `InvalidOptions`.

    A URL without a path gets `/v1`. One without a scheme gets `https`, or `http` on this machine.
    """
    parts = urlsplit(url.strip() if "://" in url else f"https://{url.strip()}")
    if "://" not in url and is_here(parts.hostname or ""):
        parts = parts._replace(scheme="http")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidOptions("an upstream's URL has no user, password, query or fragment: the key goes elsewhere")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidOptions(f"{url!r} is no URL of an upstream: give one like http://127.0.0.1:8080/v1")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or "/v1", "", ""))


def kind_of(url: str) -> UpstreamKind:
    """Guess the protocol: Anthropic's for a URL that names Anthropic, else OpenAI's."""
    parts = urlsplit(url)
    return "anthropic" if "anthropic" in f"{parts.hostname}{parts.path}".lower() else "openai"


def sampling_of(names: str, kind: UpstreamKind) -> tuple[Sampling, ...]:
    """Parse a list of settings, separated by commas; an empty list is the default of the kind."""
    given = tuple(name.strip() for name in names.split(",") if name.strip())
    known = get_args(Sampling)
    if unknown := [name for name in given if name not in known]:
        raise InvalidOptions(f"{unknown[0]!r} is no setting of sampling: these are {', '.join(known)}")
    return tuple(name for name in known if name in given) if given else KINDS[kind].sampling


def thinking_of(tokens: int, kind: UpstreamKind) -> int:
    """Check a thinking budget; 0 is none."""
    if tokens and not KINDS[kind].thinks:
        raise InvalidOptions(f"upstreams of kind {kind} take no thinking budget")
    if tokens and tokens < LEAST_THINKING:
        raise InvalidOptions(f"a thinking budget is at least {LEAST_THINKING} tokens, or 0 for none")
    return tokens


def affinity_of(affinity: AffinityKind, kind: UpstreamKind) -> AffinityKind:
    """Check where requests say which of them belong together."""
    if affinity == "prompt_cache_key" and kind == "anthropic":
        raise InvalidOptions("upstreams of kind anthropic have no member prompt_cache_key: use `user` or a header")
    return affinity


def continues_of(kind: UpstreamKind, *, continues: bool) -> bool:
    """Check whether an upstream can continue replies of others."""
    if continues and kind == "anthropic":
        raise InvalidOptions("upstreams of kind anthropic continue no replies of others")
    return continues


# -- the content of a turn's request ----------------------------------------------------------------------------------

MOST_STOPS = 4
"""The most stop strings that some servers accept; the requested ones are first."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The instruction, the messages, and the strings that end the reply."""

    system: str
    messages: tuple[Message, ...]
    stops: tuple[str, ...]


def conversation_of(request: GenerationRequest, form: Form = Form.PLAIN) -> Conversation:
    """Prepare the history of a turn (S8), in a form that the upstream takes.

    With `prompt_style=transcript` it becomes one message that the model continues. Raises `EngineError` when that
    is requested together with tools.
    """
    settings = request.settings
    if settings.prompt_style == "transcript":
        if request.options.tools:
            raise EngineError("tools need prompt_style=chat")
        leading = (Message(role="system", content=settings.system),) if settings.system else ()
        text = render([*leading, *request.messages]) + PREFIXES["assistant"]
        stops = reply_stops(settings.stop)[: max(MOST_STOPS, len(settings.stop or ()))]
        return Conversation("", (Message(role="user", content=text),), stops)
    count = leading_systems(request.messages)
    leading_messages, rest = request.messages[:count], request.messages[count:]
    system = "\n\n".join(text for text in (settings.system or "", *(m.content for m in leading_messages)) if text)
    return Conversation(system, tuple(in_form(rest, form)), settings.stop or ())


def stops_of(request: GenerationRequest) -> tuple[str, ...]:
    """Return all strings that end the reply; the upstream may get fewer."""
    settings = request.settings
    return reply_stops(settings.stop) if settings.prompt_style == "transcript" else settings.stop or ()


# -- optional members of a request: sent until the upstream refuses one, then omitted ---------------------------------
#
# Servers and models accept different members and name a refused member in the error. One failed request is enough to
# learn this. A table of all models would soon be out of date.


class Instead(Enum):
    """What happens in place of a member that the upstream refuses. Nothing is dropped in silence."""

    HERE = "the server carries it out itself"
    TOLD = "the reply has a warning if the client has asked for it"
    FAILS = "the turn fails if it cannot do without"
    NOTHING = "it was to help the upstream, and changes no reply"


def unused(request: GenerationRequest, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return warnings for settings that were asked for and that a body has not. Those at their defaults were not."""
    settings, defaults = request.settings, Settings()
    found = []
    for name in (*get_args(Sampling), "reproducible"):
        value = getattr(settings, name)
        if value == getattr(defaults, name) or body.get(name) == value:
            continue
        if name in body:
            found.append(f"{name} was {body[name]}: the model's server takes no {value}")
        else:
            found.append(f"{name} had no effect: the model's server does not get it or does not take it")
    if request.options.logprobs is not None:
        found.append("there are no logprobs: those of the model's server are not read")
    return tuple(found)


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


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of a turn as the upstream counts them; None if it does not report them."""

    prompt: int | None = None
    cached: int = 0
    completion: int | None = None


class Reply(Protocol):
    """Reads the events of one answer."""

    @property
    def over(self) -> bool:
        """Whether the answer has ended."""
        ...

    @property
    def spent(self) -> Spent:
        """Tokens as far as they are known."""
        ...

    @property
    def stop(self) -> str:
        """The stop string that ended the answer; empty if the upstream does not say."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the client has to know, a sentence each; complete after `finish`."""
        ...

    def feed(self, event: ServerSentEvent) -> Iterable[Delta]:
        """Process an event; return its new output. Raises `Failure` for an error or an invalid event."""
        ...

    def rest(self) -> Iterable[Delta]:
        """Return the output that was held until the end, after the last event; raises `Failure`."""
        ...

    def finish(self) -> FinishReason:
        """Return the end of the answer after `rest`; raises `Failure` if the answer is incomplete."""
        ...


class Dialect(Protocol):
    """One protocol, and the learned properties of its upstream."""

    @property
    def path(self) -> str:
        """Where turns are sent, below the upstream's address."""
        ...

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Make the headers of every request."""
        ...

    def body(self, request: GenerationRequest, form: Form = Form.PLAIN) -> dict[str, Any]:
        """Make the body of a turn's request; raises `EngineError` when this protocol cannot express it.

        In a strict `form`, ids and names of calls are those that all servers take.
        """
        ...

    def reply(self, request: GenerationRequest) -> Reply:
        """Make the reader of a turn's answer."""
        ...

    def learn(self, failure: Failure) -> None:
        """Omit a member from all later bodies if a failure reports that the upstream refused it."""
        ...

    def forget(self, cache_key: str) -> None:
        """Drop everything stored for a session."""
        ...
