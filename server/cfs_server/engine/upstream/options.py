"""How an upstream is reached and what is asked of it: values, checked once. Pure: no I/O."""

import ipaddress
from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr

from cfs_server.engine.upstream.failures import Retries

Kind = Literal["openai", "anthropic"]
Sampling = Literal["temperature", "top_p", "top_k", "min_p", "seed"]
LEAST_THINKING = 1024
"""Smallest budget for thinking that the protocol of Anthropic takes."""

_SAMPLING: dict[Kind, tuple[Sampling, ...]] = {
    "openai": ("temperature", "top_p", "seed"),
    "anthropic": ("temperature",),  # its newer models do not take top_p beside it
}


class InvalidOptions(ValueError):
    """An option cannot be used; its text says which and why."""


@dataclass(frozen=True, slots=True)
class Options:
    """An upstream and how to use it.

    `silence` is the longest time in seconds that it may say nothing; `parallel` turns are sent to it at a time. A reply
    has at most `reply_bytes`: not all keep to a number of tokens. `sampling` names the settings of a session that it is
    told; a setting that it refuses is left out from then on.
    """

    url: str
    kind: Kind
    model: str | None = None
    key: SecretStr | None = None
    sampling: tuple[Sampling, ...] = ()
    thinking_tokens: int = 0
    silence: float = 120.0
    parallel: int = 8
    reply_bytes: int = 4 << 20
    check: bool = True
    retries: Retries = field(default_factory=Retries)

    def masked(self, text: str) -> str:
        """Take the key out of a text that others may read, such as the upstream's own words."""
        key = self.key.get_secret_value() if self.key else ""
        return text.replace(key, "***") if key else text


def address(url: str) -> str:
    """Complete the address below which the protocol's routes are; raises `InvalidOptions`.

    One that names no path gets `/v1`, where all of these servers have them. One without a scheme is encrypted, unless
    it is on this machine.
    """
    parts = urlsplit(url.strip() if "://" in url else f"https://{url.strip()}")
    if "://" not in url and is_here(parts.hostname or ""):
        parts = parts._replace(scheme="http")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidOptions("an upstream's URL has no user, password, query or fragment: the key goes elsewhere")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidOptions(f"{url!r} is no URL of an upstream: give one like http://127.0.0.1:8080/v1")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or "/v1", "", ""))


def is_here(host: str) -> bool:
    """Whether a host is this machine, where no proxy has a part."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def kind_of(url: str) -> Kind:
    """Guess the protocol: an address that says Anthropic speaks Anthropic's, all others OpenAI's."""
    parts = urlsplit(url)
    return "anthropic" if "anthropic" in f"{parts.hostname}{parts.path}".lower() else "openai"


def sampling_of(names: str, kind: Kind) -> tuple[Sampling, ...]:
    """Read a list of settings, separated by commas; an empty one is what each server of its kind takes."""
    given = tuple(name.strip() for name in names.split(",") if name.strip())
    known = get_args(Sampling)
    if unknown := [name for name in given if name not in known]:
        raise InvalidOptions(f"{unknown[0]!r} is no setting of sampling: these are {', '.join(known)}")
    return tuple(name for name in known if name in given) if given else _SAMPLING[kind]


def thinking_of(tokens: int, kind: Kind) -> int:
    """Check a budget for thinking; 0 is none."""
    if tokens and kind != "anthropic":
        raise InvalidOptions("a budget for thinking is part of Anthropic's protocol only")
    if tokens and tokens < LEAST_THINKING:
        raise InvalidOptions(f"a budget for thinking is at least {LEAST_THINKING} tokens, or 0 for none")
    return tokens
