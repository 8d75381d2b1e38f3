"""For tests of agents: a model that says what its script says, and a clock that a test turns.

A test reads like the conversation:

    model = ScriptedModel([
        calls("write_file", path="a.txt", content="hello"),
        raises(Unavailable("the engine restarts")),
        says("I have written it."),
    ])
"""

from cfs_agents.testing.clock import ManualClock
from cfs_agents.testing.lines import Line, breaks_off, calls, cut_off, garbles, raises, says, together
from cfs_agents.testing.scripted import Asked, ScriptedModel, ScriptOver

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
