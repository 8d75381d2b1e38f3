"""The kinds of upstreams, and their validated options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import get_args
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr

from cfs.transports.proxies import is_here
from cfs_server.engine.contract.interface import AffinityKind, Sampling, UpstreamKind
from cfs_server.engine.upstream.failures import RetryPolicy

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


OPENAI_SAMPLING: tuple[Sampling, ...] = (
    *("temperature", "top_p", "seed"),
    *("presence_penalty", "frequency_penalty", "logit_bias"),
)
"""Settings that the protocol of OpenAI has."""
KINDS: dict[UpstreamKind, KindOfUpstream] = {
    "openai": KindOfUpstream("OpenAI", OPENAI_SAMPLING),
    "anthropic": KindOfUpstream("Anthropic", ("temperature",), thinks=True),  # its newer models refuse top_p beside it
}
"""All kinds; `engine.DIALECTS` has the protocol of each."""


class InvalidOptions(ValueError):
    """An option cannot be used; the error's text names it and the reason."""


def _keep_nothing(name: str, text: str | None) -> None:
    """Keep no document."""


@dataclass(frozen=True, slots=True)
class PersistentTexts:
    """Small texts that outlive the process: those of earlier ones, and how to keep one. None deletes it."""

    kept: Mapping[str, str] = field(default_factory=dict)
    keep: Callable[[str, str | None], None] = _keep_nothing


@dataclass(frozen=True, slots=True)
class UpstreamOptions:
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
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    documents: PersistentTexts = field(default_factory=PersistentTexts)

    def masked(self, text: str) -> str:
        """Replace the key in a text that others may read, such as an error of the upstream."""
        key = self.key.get_secret_value() if self.key else ""
        return text.replace(key, "***") if key else text


def base_url(url: str) -> str:
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
    requested = tuple(name.strip() for name in names.split(",") if name.strip())
    allowed = get_args(Sampling)
    if unknown := [name for name in requested if name not in allowed]:
        raise InvalidOptions(f"{unknown[0]!r} is no setting of sampling: these are {', '.join(allowed)}")
    return tuple(name for name in allowed if name in requested) if requested else KINDS[kind].sampling


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
