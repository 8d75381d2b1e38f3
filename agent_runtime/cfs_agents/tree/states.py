"""The states of a sub-agent, and which may follow which. No I/O."""

from enum import StrEnum

from cfs_agents.tree.record import SubAgentRecord


class SubAgentState(StrEnum):
    """The state of a sub-agent."""

    STARTING = "starting"
    """It has a task, and has not claimed the turn of it yet, or not again after an interruption."""
    WORKING = "working"
    """It sends requests to its model and runs tools."""
    WAITING = "waiting"
    """It waits for a report, for the consent of a person, or for the end of a pause."""
    REPORTING = "reporting"
    """Its task is over: its report is checked and stored, and its turn ends. It cannot be cancelled any more."""
    DONE = "done"
    """It has reported, and takes another message as its next task."""


TRANSITIONS: dict[SubAgentState, frozenset[SubAgentState]] = {
    SubAgentState.STARTING: frozenset({SubAgentState.WORKING, SubAgentState.REPORTING, SubAgentState.DONE}),
    SubAgentState.WORKING: frozenset({SubAgentState.WAITING, SubAgentState.REPORTING, SubAgentState.STARTING}),
    SubAgentState.WAITING: frozenset({SubAgentState.WORKING, SubAgentState.REPORTING, SubAgentState.STARTING}),
    SubAgentState.REPORTING: frozenset({SubAgentState.DONE, SubAgentState.STARTING}),
    SubAgentState.DONE: frozenset({SubAgentState.STARTING}),
}
"""The states that may follow each state. An interruption leads back to `STARTING` if the task is to be resumed."""


def state_at_rest(record: SubAgentRecord) -> SubAgentState:
    """Return the state of a sub-agent that does not run; it determines the next action when the tree runs."""
    return SubAgentState.DONE if record.state == "done" else SubAgentState.STARTING
