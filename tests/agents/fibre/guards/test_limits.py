"""Limits: a spawn beyond them is refused with a reason that a model can act on."""

import pytest

from cfs_agents.guards.limits import TreeLimits
from cfs_agents.tools import ToolError

LIMITS = TreeLimits(depth=2, alive=3, total=5)


@pytest.mark.parametrize(("depth", "alive", "total"), [(1, 0, 0), (2, 2, 4)])
def test_within_the_limits(depth: int, alive: int, total: int) -> None:
    LIMITS.check_spawn(depth=depth, alive=alive, total=total)


@pytest.mark.parametrize(
    ("depth", "alive", "total", "reason"),
    [
        (3, 0, 0, "2 levels of agents are the most"),
        (1, 3, 3, "3 are at work, which is the most"),
        (1, 0, 5, "there have been 5 already"),
    ],
)
def test_beyond_the_limits(depth: int, alive: int, total: int, reason: str) -> None:
    with pytest.raises(ToolError, match=reason):
        LIMITS.check_spawn(depth=depth, alive=alive, total=total)
    with pytest.raises(ToolError, match="没有启动智能体"):
        LIMITS.check_spawn(depth=depth, alive=alive, total=total, language="zh")
