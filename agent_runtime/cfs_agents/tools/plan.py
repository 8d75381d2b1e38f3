"""The plan of one agent, and the tool `update_plan` (A12). Pure: no I/O.

A plan is also a section of Markdown, `- [x] a step` below a heading. In it `[ ]` is pending, and `[>]` in progress.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError, WithJsonSchema

from cfs.wire import MAX_STEPS, PlanStep, StepStatus, ToolCall
from cfs_agents.base.messages import Language
from cfs_agents.tools.definition import Tool, tool

UPDATE_PLAN = "update_plan"
"""Name of the tool."""

PLAN_CONTEXT = 16_384
"""Tokens of the smallest context whose model gets the tool."""

_DESCRIPTION = "Your plan: all steps as {text, status: pending|in_progress|completed}"
_BRIEF = WithJsonSchema({"type": "array", "items": {"type": "object"}})
"""The description says the rest, so that the first request stays short."""
_MARKS: dict[StepStatus, str] = {"pending": " ", "in_progress": ">", "completed": "x"}
_HEADINGS: dict[Language, str] = {"en": "# Plan", "zh": "# 计划"}
_STEPS = TypeAdapter(Annotated[tuple[PlanStep, ...], Field(max_length=MAX_STEPS)])
_SECTION = re.compile(r"^# (?:Plan|计划)[ \t]*\n(.*?)(?=^#{1,6} |\Z)", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^- \[([ >x])\] (.+)$", re.MULTILINE)


class Plan:
    """The steps of an agent's plan. `changed` is called with new ones."""

    def __init__(
        self, steps: Iterable[PlanStep] = (), changed: Callable[[Sequence[PlanStep]], object] = lambda _: None
    ) -> None:
        self.steps = tuple(steps)
        self._changed = changed

    def tool(self) -> Tool:
        """Return the tool, for models with a large context."""
        return tool(_DESCRIPTION, name=UPDATE_PLAN, min_context=PLAN_CONTEXT)(self.update_plan)

    async def update_plan(self, steps: Annotated[list[PlanStep], Field(max_length=MAX_STEPS), _BRIEF]) -> str:
        """Replace the plan."""
        self.steps = tuple(_in_one_line(step) for step in steps)
        self._changed(self.steps)
        return f"the plan is stored: {progress(self.steps)}"


def steps_in(call: ToolCall) -> tuple[PlanStep, ...]:
    """Return the steps that a call of the tool brings; empty for another tool, and for a call that is wrong."""
    try:
        return _STEPS.validate_python(call.arguments.get("steps")) if call.name == UPDATE_PLAN else ()
    except ValidationError:
        return ()


def progress(steps: Sequence[PlanStep]) -> str:
    """Return how far a plan is, and its first step in progress: `1 of 3 steps completed; in progress: test it`."""
    completed = sum(step.status == "completed" for step in steps)
    present = next((step.text for step in steps if step.status == "in_progress"), None)
    return f"{completed} of {len(steps)} steps completed" + (f"; in progress: {present}" if present else "")


def lines_of(steps: Iterable[PlanStep]) -> list[str]:
    """Return the steps as a list in Markdown."""
    return [f"- [{_MARKS[step.status]}] {step.text}" for step in steps]


def plan_in(text: str) -> tuple[PlanStep, ...]:
    """Return the plan in a text in Markdown; empty if it has none."""
    section = _SECTION.search(text)
    states = {mark: status for status, mark in _MARKS.items()}
    steps = _STEP.findall(section[1]) if section else []
    return tuple(PlanStep(text=step[:500], status=states[mark]) for mark, step in steps[:MAX_STEPS])


def with_plan(text: str, steps: Sequence[PlanStep], language: Language = "en") -> str:
    """Return a text in Markdown with this plan at its end, in place of the one that it has."""
    rest = _SECTION.sub("", text).rstrip("\n")
    return "\n".join([rest, "", _HEADINGS[language], *lines_of(steps), ""]) if steps else f"{rest}\n"


def _in_one_line(step: PlanStep) -> PlanStep:
    return step.model_copy(update={"text": " ".join(step.text.split())})
