"""The lines of `cfs agent tree` in terminals of any width (C10)."""

import pytest
from rich.cells import cell_len

from cfs.state.tree_state import AgentOutcome, TreeAgent
from cfs.wire import AgentJob, AgentWork, BudgetUse, PlanStep
from cfs_agents.main.tree_lines import tree_lines

NOW = 1_000.0
STATES = ["working", "asks you", "failed", "no agent"]


def agent(session: str, **more: object) -> TreeAgent:
    fields = {"state": "generating", "paused": False, "open_questions": 0, "queued": 0, "messages": 12}
    fields |= {"tokens": 34_567, "seconds": 3_661.0, "tool": None, "tool_since": None, "outcome": None}
    return TreeAgent(**fields | {"session": session} | more)  # type: ignore[arg-type]


TREE = (
    agent("主要的会话🦊", tool="execute_command", tool_since=NOW - 14),
    agent("主要的会话🦊/a_sub_agent_with_a_long_name_that_no_narrow_terminal_holds", queued=3, open_questions=1),
    agent("主要的会话🦊/b", state="idle", messages=1, outcome=AgentOutcome("failed", "没有足够的空间 " * 9)),
    agent("主要的会话🦊/b/c", state="waiting_for_agent", tokens=0),
)


@pytest.mark.parametrize("width", [40, 60, 80, 96, 200])
def test_every_line_fits(width: int) -> None:
    lines = tree_lines(TREE, NOW, width)
    assert max(map(cell_len, lines)) <= width, lines
    parts = [line.partition(state) for line, state in zip(lines, STATES, strict=True)]
    assert [state for _, state, _ in parts] == STATES
    assert len({cell_len(name) for name, _, _ in parts}) == 1, "the states stand in one column"
    assert all("1h01m" in line for line in lines)


def test_a_wide_terminal_and_a_pipe_show_all() -> None:
    for width in (200, None):
        lines = tree_lines(TREE, NOW, width)
        assert "execute_command 14s" in lines[0]
        assert "a_sub_agent_with_a_long_name_that_no_narrow_terminal_holds" in lines[1]
        assert "  12 messages     34567 tokens" in lines[1]
        assert "没有足够的空间" in lines[2]


def test_a_narrow_terminal_shows_states_and_times() -> None:
    lines = tree_lines(TREE, NOW, 40)
    assert lines[1].startswith("  a_sub_agent")
    assert "…" in lines[1]
    assert "tokens" not in "".join(lines)


def test_plan_jobs_and_budget_stand_below_their_agent() -> None:
    plan = (PlanStep(text="write it", status="completed"), PlanStep(text="test it", status="in_progress"))
    jobs = (AgentJob(id=1, command="make test"), AgentJob(id=2, command="make", state="exit status 2"))
    root = agent("main", cost=0.125, work=AgentWork(plan=plan, budget=BudgetUse(limit="$0.50", tokens=9, cost=0.2)))
    child = agent("main/child", cost=0.025, work=AgentWork(jobs=jobs))
    lines = tree_lines((root, child, agent("main/other", work=AgentWork())), NOW, None)
    assert lines[1:3] == [
        "    budget: $0.20 of $0.50 spent, $0.30 left",
        "    plan: 1 of 2 steps completed; in progress: test it",
    ]
    assert lines[4:6] == ["      job 1 (make test): running", "      job 2 (make): exit status 2"]
    assert lines[7:] == ["$0.15 spent by the tasks that have ended"]
    assert max(map(cell_len, tree_lines((root, child), NOW, 40))) <= 40
    tokens = agent("main", work=AgentWork(budget=BudgetUse(limit="1000", tokens=1200)))
    assert tree_lines((tokens,), NOW, None)[1:] == ["    budget: 1200 of 1000 tokens spent, 0 left"]
