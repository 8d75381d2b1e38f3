"""What agents say of their work: their plan, their jobs in the background, and the budget of their tree."""

from typing import Annotated, Literal

from pydantic import (
    Field,
    StringConstraints,
)

from cfs.contract.wire.base import Integral, WireModel
from cfs.contract.wire.settings import Budget

Line = Annotated[str, StringConstraints(max_length=500)]
StepStatus = Literal["pending", "in_progress", "completed"]
MAX_STEPS = 50
"""Maximum number of steps of a plan."""
MAX_JOBS = 64
"""Maximum number of jobs in the background that an agent reports, the newest ones."""


class PlanStep(WireModel):
    """A step of an agent's plan."""

    text: Annotated[Line, StringConstraints(min_length=1)]
    status: StepStatus = "pending"


class AgentJob(WireModel):
    """A command that an agent runs in the background. `state` is `running`, or how it has ended."""

    id: Annotated[int, Field(ge=1, lt=2**53), Integral]
    command: Line
    state: Line = "running"


class BudgetUse(WireModel):
    """The budget of a tree of agents for one task of its first agent, and what they have spent; cost in US dollars."""

    limit: Budget
    tokens: Annotated[int, Field(ge=0, lt=2**53), Integral] = 0
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class AgentWork(WireModel):
    """What the agent of a session says of its work. Only the first of a tree reports the budget, which all share.

    `folder` is a folder of the agent's machine that it works on and whose files are not on the server.
    """

    plan: Annotated[tuple[PlanStep, ...], Field(max_length=MAX_STEPS)] = ()
    jobs: Annotated[tuple[AgentJob, ...], Field(max_length=MAX_JOBS)] = ()
    budget: BudgetUse | None = None
    folder: Annotated[str, StringConstraints(max_length=4_096)] | None = Field(
        None, exclude_if=lambda folder: folder is None
    )
