"""The known model servers and services: where each answers, and which variables of the environment belong to it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from cfs.transports.proxies import is_here
from cfs_server.engine.contract.interface import Sampling, UpstreamKind
from cfs_server.engine.upstream.options import OPENAI_SAMPLING, InvalidOptions, base_url, kind_of

_LOCAL: tuple[Sampling, ...] = (*OPENAI_SAMPLING, "top_k", "min_p")
_LLAMA_SERVER: tuple[Sampling, ...] = (*_LOCAL, "repeat_penalty", "repeat_last_n")
_VLLM: tuple[Sampling, ...] = (*_LOCAL, "min_tokens")
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - addresses to replace, not to bind


@dataclass(frozen=True, slots=True)
class Provider:
    """A model server or a service.

    `address` is its base URL or less: what `base_url` completes. `key_variables` may hold its key. `preferred`
    are patterns of model names, the best first: of a service with many models, one is used. `sampling` are the settings
    of sessions that it takes, if they are not those of its protocol.
    """

    name: str
    title: str
    address: str
    kind: UpstreamKind = "openai"
    key_variables: tuple[str, ...] = ()
    address_variable: str = ""
    preferred: tuple[str, ...] = ()
    sampling: tuple[Sampling, ...] = ()
    here: bool = False

    @property
    def url(self) -> str:
        """The base URL of its protocol's routes."""
        return base_url(self.address)

    def key_variable(self, environment: Mapping[str, str]) -> str | None:
        """Return the variable that has its key, if one is set."""
        return next((name for name in self.key_variables if environment.get(name, "").strip()), None)


SERVERS = (
    Provider("ollama", "Ollama", "127.0.0.1:11434", address_variable="OLLAMA_HOST", here=True),
    Provider("llama-server", "llama-server", "127.0.0.1:8080", sampling=_LLAMA_SERVER, here=True),
    Provider("lmstudio", "LM Studio", "127.0.0.1:1234", here=True),
    Provider("vllm", "vLLM", "127.0.0.1:8000", sampling=_VLLM, here=True),
    Provider("vllm", "vLLM", "127.0.0.1:8001", sampling=_VLLM, here=True),
)
"""Model servers at their usual ports on this machine. vLLM has that of CFS, so it is often one port further."""

SERVICES = (
    Provider(
        "openai",
        "OpenAI",
        "api.openai.com/v1",
        key_variables=("OPENAI_API_KEY",),
        address_variable="OPENAI_BASE_URL",
        preferred=(r"gpt-[\d.]+-mini", r"gpt-[\d.]+", r"gpt-4o-mini"),
    ),
    Provider(
        "anthropic",
        "Anthropic",
        "api.anthropic.com/v1",
        "anthropic",
        key_variables=("ANTHROPIC_API_KEY",),
        preferred=(r"claude-sonnet-\d.*", r"claude-haiku-\d.*", r"claude-.*"),
    ),
    Provider(
        "openrouter",
        "OpenRouter",
        "openrouter.ai/api/v1",
        key_variables=("OPENROUTER_API_KEY",),
        preferred=(r"openrouter/auto",),
    ),
    Provider(
        "mistral",
        "Mistral",
        "api.mistral.ai/v1",
        key_variables=("MISTRAL_API_KEY",),
        preferred=(r"mistral-medium-latest", r"mistral-small-latest"),
    ),
    Provider(
        "groq",
        "Groq",
        "api.groq.com/openai/v1",
        key_variables=("GROQ_API_KEY",),
        preferred=(r"openai/gpt-oss-\d+b", r"llama-.*-versatile"),
    ),
    Provider(
        "gemini",
        "Gemini",
        "generativelanguage.googleapis.com/v1beta/openai",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        preferred=(r"models/gemini-[\d.]+-flash", r"gemini-[\d.]+-flash"),
    ),
    Provider(
        "deepseek",
        "DeepSeek",
        "api.deepseek.com/v1",
        key_variables=("DEEPSEEK_API_KEY",),
        preferred=(r"deepseek-chat", r"deepseek-.*"),
    ),
)
"""Services on the network, which are used if their key is in the environment."""

_DATE = 1000
_NO_CHAT = re.compile(
    r"embed|rerank|bge-|minilm|whisper|tts|speech|audio|realtime|transcri|moderation|dall-e|image|sora|ocr|guard",
    re.IGNORECASE,
)


def configured(environment: Mapping[str, str]) -> list[Provider]:
    """Return the providers to look for: all servers of this machine, and the services whose key is set.

    A variable with an address moves its provider. An address is in the list once.
    """
    services = [
        provider
        for provider in SERVICES
        if provider.key_variable(environment) or environment.get(provider.address_variable, "").strip()
    ]
    providers: dict[str, Provider] = {}
    for provider in (*SERVERS, *services):
        moved = _moved(provider, environment.get(provider.address_variable, "").strip())
        if moved is not None:
            providers.setdefault(identity(moved.url), moved)
    return list(providers.values())


def of_url(url: str, environment: Mapping[str, str]) -> Provider:
    """Return the known provider at a URL, or a new one of its host's name. Raises `InvalidOptions`."""
    address = base_url(url)
    providers = {identity(provider.url): provider for provider in (*SERVERS, *SERVICES, *configured(environment))}
    if (provider := providers.get(identity(address))) is not None:
        return provider
    host = urlsplit(address).hostname or ""
    return Provider(host, host, address, kind_of(address), here=is_here(host))


def named(name: str, environment: Mapping[str, str]) -> list[Provider]:
    """Return the providers of a name, where the environment says that they are."""
    moved = [provider for provider in configured(environment) if provider.name == name]
    return moved or [provider for provider in SERVICES if provider.name == name]


def identity(url: str) -> str:
    """Return the same text for all URLs of one server: this machine has several names."""
    parts = urlsplit(url)
    host = "localhost" if is_here(parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or parts.scheme}{parts.path.rstrip('/')}"


def preferred_model(provider: Provider, names: list[str]) -> str | None:
    """Choose a model of a service: by its patterns, then the first that holds conversations. The newest one counts."""
    for pattern in provider.preferred:
        if matches := [name for name in names if re.fullmatch(pattern, name)]:
            return max(matches, key=_version)
    return next(iter(chat_models(names)), None)


def chat_models(names: list[str]) -> list[str]:
    """Return the models that hold conversations, as far as their names tell."""
    return [name for name in names if not _NO_CHAT.search(name)]


def _version(name: str) -> tuple[list[float], list[float]]:
    """Return the numbers in a name, and then its dates: the newer model has the larger ones."""
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", name)]
    return [number for number in numbers if number < _DATE], [number for number in numbers if number >= _DATE]


def _moved(provider: Provider, address: str) -> Provider | None:
    """Apply the address of a variable, such as `0.0.0.0`, `host:port` or a URL; None if it cannot be used."""
    if not address:
        return provider
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname or "127.0.0.1", parts.port
    except ValueError:
        return None
    host = _ANY_ADDRESS.get(host, f"[{host}]" if ":" in host else host)
    usual = urlsplit(f"//{provider.address}").port
    if provider.here:  # a host without a scheme and a port has those that are usual
        scheme = parts.scheme or "http"
        port = port or (443 if scheme == "https" else usual)
        return replace(provider, address=f"{scheme}://{host}:{port}{parts.path}")
    try:
        url = base_url(address)
    except InvalidOptions:
        return None
    title = provider.title if identity(url) == identity(provider.url) else urlsplit(url).netloc
    return replace(provider, address=address, title=title, here=is_here(host.strip("[]")))
