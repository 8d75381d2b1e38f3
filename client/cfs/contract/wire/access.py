"""The caller: rights, limits, and the models that answer (G9)."""

from pydantic import Field

from cfs.contract.wire.base import WireModel
from cfs.contract.wire.models import ModelShown


class GrantInfo(WireModel):
    """A right: some operations at and below a prefix."""  # G2

    prefix: str
    ops: tuple[str, ...]


class Taken(WireModel):
    """How much a principal may take, and how much it has taken; null is no bound of its own."""  # H7

    sessions: int | None
    bytes: int | None
    streams: int | None
    requests: float | None = None
    daily_tokens: int | None = None
    daily_cost: float | None = Field(None, description="In US dollars, for a day in UTC.")


class WhoAmI(WireModel):
    """The caller as the server knows it, the model that answers by default, and all models, that one first."""  # G9

    name: str
    grants: tuple[GrantInfo, ...]
    limits: Taken
    usage: Taken
    model: ModelShown | None = None
    models: tuple[ModelShown, ...] = ()
