"""Finds models that could be connected: servers of this machine, services whose key is set, and GGUF files."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr, ValidationError

from cfs.errors import InvalidRequest
from cfs_server.config.models_file import ModelEntry, UpstreamEntry
from cfs_server.connect import providers
from cfs_server.connect.providers import Provider
from cfs_server.engine.contract.interface import ModelLoadError
from cfs_server.engine.host import models
from cfs_server.engine.upstream import connection
from cfs_server.engine.upstream.connection import Link
from cfs_server.engine.upstream.engine import DIALECTS
from cfs_server.engine.upstream.failures import Failure
from cfs_server.engine.upstream.options import InvalidOptions, UpstreamOptions

_ANSWER_SECONDS = 3.0
_PER_SERVER = 3
"""Models of one server that are tried, unless it is named: a server may load each of them for that."""
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_NO_MODEL = re.compile(r"mmproj|vocab|imatrix", re.IGNORECASE)
_OLLAMA_MODEL = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that could be connected: its entry for the file of models, or why it cannot be one.

    `where` names its server or file for people. `here`: this machine computes, so such models are tried in turn.
    """

    name: str
    where: str
    entry: ModelEntry | None = None
    fault: str = ""
    provider: str = ""
    here: bool = True
    note: str = ""

    def renamed(self, name: str) -> "Candidate":
        """Return the same model with another name."""
        return replace(self, name=name, entry=self.entry and self.entry.model_copy(update={"name": name}))


async def everything(environment: Mapping[str, str], models_folder: Path) -> list[Candidate]:
    """Find all models: those of servers first, then those of services, then files. Nothing is tried."""
    sources = providers.configured(environment)
    lists = await asyncio.gather(*(_of_provider(provider, environment, limit=_PER_SERVER) for provider in sources))
    candidates = [candidate for listed in lists for candidate in listed]
    candidates.sort(key=lambda candidate: not candidate.here)
    has_ollama = any(candidate.provider == "ollama" for candidate in candidates)
    files = await asyncio.to_thread(lambda: list(_files(environment, models_folder, ollama=not has_ollama)))
    return _distinct([*candidates, *files])


async def target(name: str, model: str | None, environment: Mapping[str, str]) -> list[Candidate]:
    """Find the models of one provider, URL, GGUF file or name of a download. Raises `ModelLoadError`."""
    if sources := providers.named(name, environment):
        answers = [await _of_provider(provider, environment, model, required=True) for provider in sources]
        candidates = [candidate for answer in answers for candidate in answer]
        return _distinct([candidate for candidate in candidates if candidate.entry] or candidates[:1])
    if (path := await asyncio.to_thread(_gguf, name)) is not None:
        return [_file(path)]
    if models.is_download(name):
        return [Candidate(name, "a download", ModelEntry(name=_name(name), model=name))]
    if "/" not in name and ":" not in name and "." not in name:
        names = ", ".join(dict.fromkeys(provider.name for provider in (*providers.SERVERS, *providers.SERVICES)))
        raise ModelLoadError(
            f"{name}: name one of {names}, the URL of a server, the path of a GGUF file, or a model such as smollm2"
        )
    try:
        provider = providers.of_url(name, environment)
    except InvalidOptions as error:
        raise ModelLoadError(str(error)) from None
    return _distinct(await _of_provider(provider, environment, model, required=True))


async def hints(environment: Mapping[str, str]) -> list[str]:
    """Name what could be connected, in a moment: servers of this machine, and variables with keys."""
    sources = providers.configured(environment)
    servers = [provider for provider in sources if provider in providers.SERVERS]
    names = [provider.title for provider in servers if await _answers(provider.url) and not await _is_cfs(provider)]
    return [*names, *(variable for provider in sources if (variable := provider.key_variable(environment)))]


# The models of a server or a service


async def _of_provider(
    provider: Provider,
    environment: Mapping[str, str],
    model: str | None = None,
    *,
    limit: int | None = None,
    required: bool = False,
) -> list[Candidate]:
    """List the models of a provider. A server that does not answer has none, unless it is `required`."""
    variable = provider.key_variable(environment)
    where = f"{provider.title}, {urlsplit(provider.url).netloc}" if provider.here else provider.title

    def fault(reason: str) -> list[Candidate]:
        return [Candidate(provider.name, where, fault=reason, provider=provider.name, here=provider.here)]

    if required and provider.key_variables and variable is None and not provider.here:
        return fault(f"the variable {' or '.join(provider.key_variables)} is not set")
    key = SecretStr(environment[variable].strip()) if variable else None
    if provider.here and not await _answers(provider.url):
        return fault("no server answers there") if required else []
    try:
        if await _is_cfs(provider):
            return fault("this is a CFS server, not the server of a model") if required else []
        listed = await _listed(provider, key)
    except Failure as failure:
        if provider.here and not required and not provider.key_variables:
            return []  # something else listens at the usual port
        return fault(failure.error.detail)
    except InvalidRequest as error:
        return fault(error.detail)
    if listed is None and model is None:
        return fault("it does not list its models: name one with --model") if required or not provider.here else []
    chosen = _chosen(provider, listed or (), model)
    if not chosen:
        return fault(f"it has no model {model!r}" if model else "it has no model that holds conversations")
    more = f"{len(chosen) - limit} more: cfs connect {provider.name}" if limit and len(chosen) > limit else ""
    return [
        Candidate(
            _name(listing.id),
            where,
            ModelEntry(
                name=_name(listing.id),
                upstream=(UpstreamEntry(url=provider.url),),
                kind=provider.kind,
                upstream_model=listing.id,
                key_variable=variable,
                sampling=provider.sampling,
                check=False,
                context=listing.context_tokens or None,
            ),
            provider=provider.name,
            here=provider.here,
            note=more,
        )
        for listing in chosen[:limit]
    ]


def _chosen(
    provider: Provider, listed: Iterable[connection.UpstreamModel], model: str | None
) -> list[connection.UpstreamModel]:
    """Return a named model, all of a server, or one of a service."""
    listings = {listing.id: listing for listing in listed}
    if model is not None:
        return [listings.get(model) or connection.UpstreamModel(id=model)]
    if provider.here or not provider.key_variables:
        return [listings[name] for name in providers.chat_models(list(listings))]
    name = providers.preferred_model(provider, list(listings))
    return [] if name is None else [listings[name]]


async def _answers(url: str) -> bool:
    """Return whether something listens at an address of this machine."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


class _Index(BaseModel):
    name: str


async def _is_cfs(provider: Provider) -> bool:
    """Return whether a server is CFS, such as this one: it must not answer itself. Services are not asked."""
    if provider in providers.SERVICES:
        return False
    parts = urlsplit(provider.url)
    try:
        async with _link(f"{parts.scheme}://{parts.netloc}", provider, None) as link:
            answer = await link.get("/")
        return _Index.model_validate_json(answer.body).name == "cfs"
    except (Failure, ValidationError):
        return False


async def _listed(provider: Provider, key: SecretStr | None) -> tuple[connection.UpstreamModel, ...] | None:
    async with _link(provider.url, provider, key) as link:
        return await connection.listed(link)


class _RunningModel(BaseModel):
    name: str
    context_length: int | None = None


class _RunningModels(BaseModel):
    models: tuple[_RunningModel, ...]


async def context_in_use(entry: ModelEntry) -> int | None:
    """Return the context with which Ollama has loaded a model: less than the model's own, and it cuts longer prompts.

    None for other servers, which say it in their list.
    """
    url = entry.upstream[0].url if entry.upstream else ""
    parts = urlsplit(url)
    provider = Provider("", "", f"{parts.scheme}://{parts.netloc}")
    try:
        async with _link(provider.address, provider, None) as link:
            running = _RunningModels.model_validate_json((await link.get("/api/ps")).body).models
    except (Failure, InvalidRequest, ValidationError):
        return None
    return next((model.context_length for model in running if model.name == entry.upstream_model), None)


@asynccontextmanager
async def _link(url: str, provider: Provider, key: SecretStr | None) -> AsyncIterator[Link]:
    """Connect to a server for its lists."""
    options = UpstreamOptions(url, provider.kind, key=key, silence=_ANSWER_SECONDS)
    headers = DIALECTS[provider.kind](options, "").headers(key.get_secret_value() if key else None)
    link = await asyncio.to_thread(Link, options, headers)
    try:
        yield link
    finally:
        await link.close()


# Files


def _files(environment: Mapping[str, str], models_folder: Path, *, ollama: bool) -> Iterator[Candidate]:
    """List the GGUF files in the folders of CFS and of other programs, the largest first."""
    paths: dict[Path, str] = {model.path: model.name for model in models.local(models_folder)[1:]}
    for folder in _folders(environment):
        for path in folder.rglob("*.gguf") if folder.is_dir() else ():
            paths.setdefault(path, path.stem)
    if ollama:
        paths |= _ollama_files(environment)
    seen: set[Path] = set()
    for path in sorted(filter(Path.is_file, paths), key=lambda path: path.stat().st_size, reverse=True):
        real = path.resolve()
        if real in seen or _PART.search(path.stem) or _NO_MODEL.search(path.stem):
            continue
        seen.add(real)
        yield _file(path, paths[path])


def _folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Return where programs keep GGUF files."""
    home = Path(environment.get("HOME") or Path.home())
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    yield Path("models").absolute()
    yield Path(
        environment.get("LLAMA_CACHE") or (home / "Library/Caches" if sys.platform == "darwin" else cache) / "llama.cpp"
    )
    yield home / ".lmstudio/models"
    yield cache / "lm-studio/models"
    yield Path(environment.get("HF_HUB_CACHE") or Path(environment.get("HF_HOME") or cache / "huggingface") / "hub")


def _ollama_files(environment: Mapping[str, str]) -> dict[Path, str]:
    """Return the models that Ollama has downloaded, by its manifests: it gives its files no names."""
    home = Path(environment.get("HOME") or Path.home())
    root = Path(environment.get("OLLAMA_MODELS") or home / ".ollama/models")
    files: dict[Path, str] = {}
    for manifest in root.glob("manifests/*/*/*/*"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            layers: list[dict[str, Any]] = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
            digest = next(layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_MODEL)
            files[root / "blobs" / str(digest).replace(":", "-")] = f"{manifest.parent.name}:{manifest.name}"
    return files


def _gguf(name: str) -> Path | None:
    """Return the path of a file that is named; None if it is no path of one. Raises `ModelLoadError`."""
    path = Path(name).expanduser().absolute()
    if not name.endswith(".gguf") and not path.is_file():
        return None
    models.check(path)
    return path


def _file(path: Path, name: str | None = None) -> Candidate:
    return Candidate(_name(name or path.stem), str(path), ModelEntry(name=_name(name or path.stem), model=str(path)))


def _name(text: str) -> str:
    """Make a name of a model: without spaces."""
    return re.sub(r"[\x00-\x20\x7f]+", "-", text.removeprefix("models/"))[:200]


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Give models of the same name the name of their provider, or a number."""
    names: dict[str, Candidate] = {}
    for candidate in candidates:
        name, number = candidate.name, 2
        if name in names and candidate.provider:
            name = f"{candidate.provider}/{candidate.name}"
        while name in names:
            name, number = f"{candidate.name}-{number}", number + 1
        names[name] = candidate if name == candidate.name else candidate.renamed(name)
    return list(names.values())
