"""What a tree says of its work in its sessions: plans, jobs in the background, and the budget (A5, A12, B7)."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cfs import AsyncTree
from cfs.wire import AgentJob, BudgetUse, PlanStep, Usage
from cfs_agents.main.testing import ScriptedModel, calls, says
from cfs_agents.tools import CommandMode
from cfs_agents.tools.plan import PLAN_CONTEXT
from tests.agents.fibre.trees import ScriptedModels, finish, late, spawn, tree, wait
from tests.server.support import ServerHarness

STEPS = [{"text": "start it", "status": "completed"}, {"text": "watch it", "status": "in_progress"}]
PLAN = tuple(map(PlanStep.model_validate, STEPS))
JOB = calls("execute_command", command="sleep 1357", background=True)


async def test_plan_jobs_and_budget_are_in_the_outcome(server: ServerHarness, tmp_path: Path) -> None:
    usage = Usage(prompt_tokens=100, completion_tokens=20)
    scripted = ScriptedModels(
        main=[calls("update_plan", steps=STEPS), spawn("a"), wait("a"), says("ok", usage=usage)],
        a=[
            JOB,
            calls("job", id=1, action="stop"),
            calls("execute_command", command="exit 3", background=True),
            calls("job", id=2, action="wait"),
            finish(),
        ],
    )
    async with (
        tree(tmp_path, scripted, server.url, commands=CommandMode.HOST, tree_budget=90_000) as agent,
        AsyncTree("main", url=server.url) as sdk,
    ):
        assert (await agent.run("go")).ok
        outcome = await sdk.outcome()
        used = agent._orchestrator.guards.budget.used("main")
    root, child = outcome.agents
    assert root.work is not None
    assert root.work.plan == PLAN
    assert outcome.budget == BudgetUse(limit="90000", tokens=used)
    assert used > 120
    assert outcome.jobs == (
        ("main/a", AgentJob(id=1, command="sleep 1357", state="stopped")),
        ("main/a", AgentJob(id=2, command="exit 3", state="exit status 3")),
    )
    assert child.work is not None
    assert child.work.budget is None, "the root says it for all"


async def test_a_running_job_is_seen_and_one_that_a_crash_has_ended_is_lost(
    server: ServerHarness, tmp_path: Path
) -> None:
    scripted = ScriptedModels(main=[calls("update_plan", steps=STEPS), JOB, late(says("never"))])
    async with AsyncTree("main", url=server.url) as sdk:
        async with tree(tmp_path, scripted, server.url, commands=CommandMode.HOST) as agent:
            working = asyncio.create_task(agent.run("go"))
            await scripted.clock.until_asleep()
            while (work := (await sdk.agents())[0].work) is None or not work.jobs:
                pass  # it is sent a moment after the call
            assert work.jobs == (AgentJob(id=1, command="sleep 1357", state="running"),)
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
        async with tree(tmp_path, ScriptedModels(main=[says("I see")]), server.url, commands=CommandMode.HOST) as agent:
            assert (await agent.resume()).ok
        outcome = await sdk.outcome()
    assert outcome.jobs == (("main", AgentJob(id=1, command="sleep 1357", state="lost")),)
    assert outcome.agents[0].work is not None
    assert outcome.agents[0].work.plan == PLAN, "it survives"


async def test_another_task_begins_without_a_plan(server: ServerHarness, tmp_path: Path) -> None:
    scripted = ScriptedModels(main=[calls("update_plan", steps=STEPS), says("one"), says("two")])
    async with tree(tmp_path, scripted, server.url) as agent, AsyncTree("main", url=server.url) as sdk:
        await agent.run("first")
        await agent.run("second")
        work = (await sdk.agents())[0].work
    assert work is not None
    assert work.plan == ()


class LargeModel(ScriptedModel):
    """A scripted model that reads much."""

    async def context_window(self) -> int:
        """Return how many tokens it reads."""
        return PLAN_CONTEXT


@pytest.mark.parametrize(("config", "offered"), [({}, True), ({"plan": False}, False)])
async def test_a_setting_turns_the_tool_off(tmp_path: Path, config: dict[str, Any], offered: bool) -> None:
    model = LargeModel([says("ok")])
    async with tree(tmp_path, lambda _: model, **config) as agent:
        await agent.run("go")
    assert ("update_plan" in {tool["function"]["name"] for tool in model.asked[0].tools}) is offered


async def test_the_usage_of_a_turn_is_that_of_its_task(server: ServerHarness, tmp_path: Path) -> None:
    """A session counts each task once, also after the agent has ended in between."""
    first, second = Usage(prompt_tokens=100, completion_tokens=20), Usage(prompt_tokens=150, completion_tokens=30)
    scripted = ScriptedModels(main=[says("one", usage=first), says("two", usage=second), says("three", usage=second)])
    async with tree(tmp_path, scripted, server.url) as agent:
        assert (await agent.run("go")).usage.completion_tokens == 20
        assert (await agent.run("again")).usage.completion_tokens == 30
    async with tree(tmp_path, scripted, server.url) as agent:
        assert (await agent.run("once more")).usage.completion_tokens == 30
    detail = (await server.client.get("/v1/sessions/main")).json()
    assert detail["tokens"] == 120 + 180 + 180
