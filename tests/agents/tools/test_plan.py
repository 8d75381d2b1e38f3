"""The plan of an agent: stored whole, shown in few words, and a section of Markdown (A12)."""

import pytest

from cfs.wire import MAX_STEPS, PlanStep, ToolCall
from cfs_agents.tools import Registry
from cfs_agents.tools.plan import PLAN_CONTEXT, Plan, lines_of, plan_in, progress, with_plan

STEPS = (
    PlanStep(text="read it", status="completed"),
    PlanStep(text="write it", status="in_progress"),
    PlanStep(text="test it"),
)


async def call(plan: Plan, steps: object) -> str:
    registry = Registry([plan.tool()])
    return (await registry.call(ToolCall(id="1", name="update_plan", arguments={"steps": steps}))).text


async def test_a_plan_replaces_the_one_before() -> None:
    seen: list[object] = []
    plan: Plan = Plan(changed=seen.append)
    text = await call(plan, [step.model_dump() for step in STEPS])
    assert text == "the plan is stored: 1 of 3 steps completed; in progress: write it"
    assert seen == [STEPS]
    await call(plan, [{"text": "two\nlines"}])
    assert seen == [STEPS, (PlanStep(text="two lines"),)]


@pytest.mark.parametrize(
    "steps", ["none", [{}], [{"text": ""}], [{"text": "a", "status": "late"}], [{"text": "a"}] * (MAX_STEPS + 1)]
)
async def test_a_wrong_plan_changes_nothing_and_says_why(steps: object) -> None:
    plan = Plan(STEPS)
    assert (await call(plan, steps)).startswith("Error: update_plan was not run: ")
    assert plan.steps == STEPS


def test_only_models_with_a_large_context_get_the_tool() -> None:
    registry = Registry([Plan().tool()])
    lengths = [len(registry.schemas(window=window)) for window in (None, 8_192, PLAN_CONTEXT - 1, PLAN_CONTEXT)]
    assert lengths == [0, 0, 0, 1]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_plan_is_a_section_of_a_text(language: str) -> None:
    text = with_plan("# Current Task\n\nBuild it.\n", STEPS, language)  # type: ignore[arg-type]
    assert text.endswith("\n- [x] read it\n- [>] write it\n- [ ] test it\n")
    assert plan_in(text) == STEPS
    assert plan_in(with_plan(text, STEPS[:1])) == STEPS[:1]
    assert with_plan(text, STEPS).count("- [x]") == 1, "it replaces the one that is there"
    assert with_plan(text, ()) == "# Current Task\n\nBuild it.\n"
    assert plan_in("# Current Task\n- [x] no step of a plan\n") == ()


def test_what_follows_the_section_stays() -> None:
    text = "# Plan\n- [ ] old\n# Facts\nOne.\n"
    assert with_plan(text, STEPS[:1]) == "# Facts\nOne.\n\n# Plan\n- [x] read it\n"


def test_a_plan_in_few_words() -> None:
    assert progress(STEPS[:1]) == "1 of 1 steps completed"
    assert lines_of(STEPS[1:]) == ["- [>] write it", "- [ ] test it"]
