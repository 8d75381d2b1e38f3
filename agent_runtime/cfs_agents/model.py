"""The models of agents: their interface, and the model behind a CFS server."""

from cfs_agents.base.events import Retrying
from cfs_agents.loop.model import (
    CallPiece,
    Chunk,
    CompleteResponse,
    HasContextWindow,
    Item,
    Model,
    ModelSettings,
    Outages,
    Retries,
    ServerCounter,
    ServerModel,
)

__all__ = [
    "CallPiece",
    "Chunk",
    "CompleteResponse",
    "HasContextWindow",
    "Item",
    "Model",
    "ModelSettings",
    "Outages",
    "Retries",
    "Retrying",
    "ServerCounter",
    "ServerModel",
]
