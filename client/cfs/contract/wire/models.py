"""Models: those that answer, and connections to their servers."""

from typing import Annotated

from pydantic import (
    Field,
)

from cfs.contract.wire.base import WireModel
from cfs.contract.wire.settings import ModelName

CURRENCY = "USD"
"""The currency of costs and of limits in money."""


class Price(WireModel):
    """What a million tokens cost: those of prompts, and those of replies.

    `cached` is for tokens of prompts that the model's server has read from its cache; null means as the others.
    """

    prompt: float
    completion: float
    currency: str
    cached: float | None = None


class Connection(WireModel):
    """A model of the server's file of models. `reason` is why it is not `usable`, or empty.

    `where` is the URL of its server, or its file. `key_variable` names the variable that holds its key.
    """

    name: str
    where: str
    default: bool
    usable: bool
    reason: str = ""
    context: int | None = None
    key_variable: str | None = None


class ConnectionList(WireModel):
    """The models of the server's file, the name of the default, and why the file is not used as it is, if so."""

    file: str
    default: str
    problem: str = ""
    connections: tuple[Connection, ...]


class ConnectionCandidate(WireModel):
    """A model that the server has tried with one short request. `reason` is why it does not work, or empty.

    `first_token_seconds` and `tokens_per_second` are those of that request.
    """

    name: str
    where: str
    works: bool
    reason: str = ""
    context: int | None = None
    first_token_seconds: float | None = None
    tokens_per_second: float | None = None
    key_variable: str | None = None
    connected: bool = False


class CandidateList(WireModel):
    """All models that a search has found, also those that do not work."""

    candidates: tuple[ConnectionCandidate, ...]


class NewConnections(WireModel):
    """Which models of the last search to connect, by their names, and which of all is to be the default."""

    names: Annotated[tuple[ModelName, ...], Field(min_length=1, max_length=100)]
    default: ModelName | None = None


class ModelShown(WireModel):
    """A model that answers: whether it is the small one that CFS contains, its context in tokens, and its price.

    `notes` are remarks for the user, a sentence each: that the model is a toy, or has no chat template. A model that is
    not `loaded` is loaded for the first turn that needs it; what is not known before that is null.
    """

    name: str
    embedded: bool
    context: int | None = None
    price: Price | None = None
    notes: tuple[str, ...] = ()
    loaded: bool = True
