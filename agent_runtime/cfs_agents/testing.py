"""Test doubles for agents."""

from cfs_agents.main.testing import (
    Asked,
    Line,
    ManualClock,
    ScriptedModel,
    ScriptOver,
    breaks_off,
    calls,
    cut_off,
    garbles,
    raises,
    says,
    together,
)

__all__ = [
    "Asked",
    "Line",
    "ManualClock",
    "ScriptOver",
    "ScriptedModel",
    "breaks_off",
    "calls",
    "cut_off",
    "garbles",
    "raises",
    "says",
    "together",
]
