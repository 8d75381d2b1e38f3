"""The events of an agent at work."""

from cfs_agents.base.events import *  # noqa: F403 - all public names, listed there
from cfs_agents.base.events import __all__ as __all__
