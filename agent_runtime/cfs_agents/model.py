"""The models of agents: their interface, and the model behind a CFS server."""

from cfs_agents.base.events import Retrying
from cfs_agents.loop.model import CallPiece, Chunk, CompleteResponse, HasContextWindow, Item, Model
from cfs_agents.loop.retries import Outages, Retries
from cfs_agents.loop.server_model import ModelSettings, ServerCounter, ServerModel

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
