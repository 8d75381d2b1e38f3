"""The models as the API of Ollama lists them."""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from cfs.completions import ModelCard
from cfs.completions.messages import Open


class OllamaModelDetails(Open):
    """What is known of a model. It has no parts that a client could use."""

    parent_model: str = ""
    format: str = ""
    family: str
    families: tuple[str, ...]
    parameter_size: str
    quantization_level: str = ""


class OllamaModel(Open):
    """A model of the server."""

    name: str
    model: str
    modified_at: str
    size: int = 0
    digest: str
    details: OllamaModelDetails
    context_length: int | None = None


class OllamaModels(Open):
    """Models of the server."""

    models: tuple[OllamaModel, ...]


class OllamaModelInfo(Open):
    """The description of a model."""

    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    modified_at: str
    details: OllamaModelDetails
    model_info: dict[str, Any]
    capabilities: tuple[str, ...] = ("completion", "tools", "thinking")


class OllamaVersion(Open):
    """The version of the API, as Ollama counts it."""

    version: str


_UNKNOWN = "unknown"


def models_of(cards: Iterable[ModelCard], families: Mapping[str, str]) -> OllamaModels:
    """Return a list of models. `families` has the architectures of those for which it is known."""
    return OllamaModels(
        models=tuple(
            OllamaModel(
                name=card.id,
                model=card.id,
                modified_at=_date(card),
                digest=hashlib.sha256(card.id.encode()).hexdigest(),
                details=_details(card, families.get(card.id, _UNKNOWN)),
                context_length=card.max_model_len,
            )
            for card in cards
        )
    )


def info_of(card: ModelCard, families: Mapping[str, str]) -> OllamaModelInfo:
    """Return the description of a model."""
    family = families.get(card.id, _UNKNOWN)
    facts: dict[str, Any] = {"general.architecture": family}
    if card.parameters is not None:
        facts["general.parameter_count"] = card.parameters
    if card.max_model_len is not None:
        facts[f"{family}.context_length"] = card.max_model_len
    texts = OllamaModelInfo.model_fields["capabilities"].default if "completion" in card.capabilities else ()
    return OllamaModelInfo(
        modified_at=_date(card),
        details=_details(card, family),
        model_info=facts,
        capabilities=(*texts, *(("embedding",) if "embedding" in card.capabilities else ())),
    )


def _details(card: ModelCard, family: str) -> OllamaModelDetails:
    count = card.parameters or 0
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
    return OllamaModelDetails(family=family, families=(family,), parameter_size=size if count else "")


def _date(card: ModelCard) -> str:
    return datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
