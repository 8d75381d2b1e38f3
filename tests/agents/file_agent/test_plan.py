"""The plan of a file agent is a section of its context window, so it survives syncs, ends and kills (A4, A12)."""

from pathlib import Path
from typing import Any

from cfs.errors import Unreachable
from cfs.wire import PlanStep
from cfs_agents.main.testing import Line, ScriptedModel, calls, raises, says
from cfs_agents.tools.plan import PLAN_CONTEXT, plan_in
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from tests.agents.file_agent.support import WINDOW, agent

STEPS = [{"text": "read it", "status": "completed"}, {"text": "test it", "status": "in_progress"}]
PLAN = tuple(map(PlanStep.model_validate, STEPS))


class SizedModel(ScriptedModel):
    """A scripted model that says how much it reads."""

    def __init__(self, window: int, *script: Line) -> None:
        super().__init__(script)
        self.window = window

    async def context_window(self) -> int:
        """Return how many tokens it reads."""
        return self.window


def window_file(root: Path) -> str:
    return (root / "context_window_main.md").read_text()


async def offered(root: Path, window: int, **config: Any) -> set[str]:
    model = SizedModel(window, says("Done."))
    async with FileSystemAgent(project_root=root, model=model, config=FileSystemAgentConfig(**config)) as made:
        await made.run("Look.")
    return {tool["function"]["name"] for tool in model.asked[0].tools}


async def test_a_large_context_is_needed_and_a_setting_turns_it_off(tmp_path: Path) -> None:
    assert "update_plan" in await offered(tmp_path / "large", PLAN_CONTEXT)
    assert "update_plan" not in await offered(tmp_path / "medium", PLAN_CONTEXT - 1)
    assert "update_plan" not in await offered(tmp_path / "off", PLAN_CONTEXT, plan=False)


async def test_the_plan_stands_in_the_window_and_the_next_task_begins_with_it(tmp_path: Path) -> None:
    made, _ = agent(tmp_path, calls("update_plan", steps=STEPS), says("Planned."))
    async with made:
        assert (await made.run("Plan it.")).reason == "answered"
    assert plan_in(window_file(tmp_path)) == PLAN
    made, model = agent(tmp_path, says("Done."))
    async with made:
        await made.run("Go on.")
    assert "# Plan\n- [x] read it\n- [>] test it" in model.asked[0].messages[0].content


async def test_a_sync_keeps_the_plan_unless_it_brings_another(tmp_path: Path) -> None:
    made, model = agent(
        tmp_path,
        calls("update_plan", steps=STEPS),
        calls("sync_context", new_context_content=WINDOW),
        calls("sync_context", new_context_content=f"{WINDOW}\n# Plan\n- [x] all of it\n"),
        calls("sync_context", new_context_content=WINDOW),
        says("Done."),
    )
    async with made:
        await made.run("Plan it.")
    assert plan_in(model.asked[2].messages[0].content) == PLAN
    assert plan_in(window_file(tmp_path)) == (PlanStep(text="all of it", status="completed"),)


async def test_a_resumed_task_has_its_plan(tmp_path: Path) -> None:
    made, _ = agent(tmp_path, calls("update_plan", steps=STEPS), raises(Unreachable("the model is away")))
    async with made:
        assert (await made.run("Plan it.")).reason == "failed"
    made, model = agent(tmp_path, calls("sync_context", new_context_content=WINDOW), says("Done."))
    async with made:
        assert (await made.resume()).reason == "answered"
    assert plan_in(model.asked[0].messages[0].content) == PLAN
    assert plan_in(window_file(tmp_path)) == PLAN
