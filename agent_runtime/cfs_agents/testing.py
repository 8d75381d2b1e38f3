"""Test doubles for agents."""

from cfs_agents.main.testing import *  # noqa: F403 - all public names, listed there
from cfs_agents.main.testing import __all__ as __all__
