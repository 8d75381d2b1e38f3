"""The lines of `cfs agent tree`, fitted to the columns of a terminal. Pure: no I/O (C10)."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from cfs.cli.actions.sessions import duration
from cfs.cli.base.output import visible
from cfs.contract.money import money
from cfs_agents.tools.plan import progress

if TYPE_CHECKING:
    from cfs.state.tree_state import TreeAgent

_REASON = 80
"""Characters of a reason that are shown."""
_STATES = {"idle": "idle", "generating": "working", "waiting_for_agent": "no agent"}
_ALL_COLUMNS, _WITH_TOKENS = 96, 60
"""Columns of a terminal from which on all figures have room, or those but the messages."""
_SHORTEST_NAME, _SHORTEST_REASON = 8, 12
_NAME = 32


def tree_lines(agents: "Sequence[TreeAgent]", now: float, width: int | None) -> list[str]:
    """Write each agent: what it took, and the tool that runs, or why it did not finish, and what it says of its work.

    Names are indented by depth. With a `width` in columns, figures are left out and texts cut until a line fits.
    """
    if not agents:
        return []
    top = agents[0].depth
    names = [
        visible(agent.session if agent.depth == top else "  " * (agent.depth - top) + agent.name) for agent in agents
    ]
    figures = [_figures(agent, width) for agent in agents]
    longest = max(_NAME if width is None or width >= _ALL_COLUMNS else 0, *map(cell_len, names))
    if width is not None:
        longest = max(_SHORTEST_NAME, min(longest, width - max(map(cell_len, figures)) - 1))
    lines: list[str] = []
    for agent, name, figure in zip(agents, names, figures, strict=True):
        line, reason = f"{set_cell_size(_cut(name, longest), longest)} {figure}", visible(_reason(agent, now))
        if width is None:
            lines.append(f"{line}  {reason}".rstrip())
        else:
            room = width - cell_len(line) - 2
            lines.append(_cut(f"{line}  {_cut(reason, room)}".rstrip() if room >= _SHORTEST_REASON else line, width))
        indent = "  " * (agent.depth - top + 2)
        lines += [_fitted(f"{indent}{visible(text)}", width) for text in _work(agent)]
    if cost := sum(agent.cost for agent in agents):
        lines.append(_fitted(f"{money(round(cost, 6))} spent by the tasks that have ended", width))
    return lines


def _work(agent: "TreeAgent") -> Iterator[str]:
    """Write what an agent says of its work: the budget of the tree, its plan, and its jobs."""
    if (work := agent.work) is None:
        return
    if (budget := work.budget) is not None and budget.limit.startswith("$"):
        left = max(0.0, float(budget.limit[1:]) - budget.cost)
        yield f"budget: {money(budget.cost)} of {budget.limit} spent, {money(left)} left"
    elif budget is not None:
        rest = max(0, int(budget.limit) - budget.tokens)
        yield f"budget: {budget.tokens} of {budget.limit} tokens spent, {rest} left"
    if work.plan:
        yield f"plan: {progress(work.plan)}"
    yield from (f"job {job.id} ({job.command}): {job.state}" for job in work.jobs)


def _fitted(text: str, width: int | None) -> str:
    return text if width is None else _cut(text, width)


def _figures(agent: "TreeAgent", width: int | None) -> str:
    queued = f" +{agent.queued}" if agent.queued else ""
    state, seconds = f"{_state(agent):<10}", f"{duration(agent.seconds):>7}{queued}"
    if width is not None and width < _WITH_TOKENS:
        return f"{state} {seconds}".rstrip()
    tokens = f"{agent.tokens:>9} tokens" if agent.tokens else " " * 16
    if width is not None and width < _ALL_COLUMNS:
        return f"{state} {tokens} {seconds}"
    messages = f"{agent.messages:>4} {'message ' if agent.messages == 1 else 'messages'}"
    return f"{state} {messages} {tokens} {seconds}"


def _reason(agent: "TreeAgent", now: float) -> str:
    if agent.tool is not None:
        since = "" if agent.tool_since is None else duration(now - agent.tool_since)
        return f"{agent.tool} {since}"
    if agent.outcome is not None and not agent.outcome.ok:
        return agent.outcome.text.partition("\n")[0][:_REASON]
    return ""


def _state(agent: "TreeAgent") -> str:
    if agent.state == "idle" and agent.outcome is not None:
        return agent.outcome.status
    if agent.paused:
        return "paused"
    if agent.open_questions:
        return "asks you"
    return _STATES[agent.state]


def _cut(text: str, width: int) -> str:
    """Cut a text to so many columns, with an ellipsis."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"
